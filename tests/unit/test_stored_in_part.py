"""When a later session of a file is refused, the command says that the earlier ones are stored."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cli.store_and_wait import store_and_wait
from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers import Conversation
from nexus_tasks.types import Message, Receipt


class _RefusesNames:
    cells = None

    def ingest(self, namespace: str, session_key: str, messages: Any, **_options: Any) -> Receipt:
        if session_key == "refused":
            raise InvalidInput("session_key has a secret.")
        number = len(messages)
        return Receipt(
            namespaces=(namespace,),
            session_keys=(session_key,),
            messages=number,
            stored=number,
            duplicates=0,
            enqueued=0,
        )


def _conversations(*keys: str) -> list[Conversation]:
    message = Message(content="Hello", author="ann", role="user")
    return [Conversation(namespace="acme", session_key=key, messages=(message,)) for key in keys]


@pytest.mark.parametrize(
    ("keys", "said"), [(("s1", "s2", "refused"), "2 messages of earlier sessions stored."), (("refused", "s1"), "")]
)
def test_what_was_stored_before_a_refused_session_is_told(
    keys: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidInput):
        store_and_wait(cast(Nexus, _RefusesNames()), _conversations(*keys), end=True)
    err = capsys.readouterr().err
    assert said in err
    assert ("no message twice" in err) == bool(said)
