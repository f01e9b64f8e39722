"""Store messages for the client. While Postgres is away, write the messages to this machine's session buffer instead.

An outage may end by itself. After a wrong setting, such as a wrong password, nothing is buffered: the call fails.

``ingestion.py`` stores messages in Postgres, and ``buffer_flush.py`` stores the buffer when Postgres is back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal
from weakref import WeakValueDictionary

from pydantic import TypeAdapter, ValidationError

from nexus_tasks import limits
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import (
    EmbeddedUnavailable,
    InvalidInput,
    StorageMisconfigured,
    Transient,
    faults,
)
from nexus_tasks.services import buffer_flush
from nexus_tasks.services.ingestion import SessionWriter, check_derivations, without_secrets
from nexus_tasks.storage import namespaces
from nexus_tasks.storage.engine import TRIES, Transaction
from nexus_tasks.storage.messages import StoredMessages
from nexus_tasks.types import Message, Receipt, check_message, check_name, check_namespace

_MESSAGE = TypeAdapter(Message)


class _Turns:
    """One thread of a process at a time scrubs messages of a namespace.

    Scrubbing 60,000 characters that are made for it takes 2 s. With eight such texts at a time, one tenant kept the
    threads of all others waiting for the interpreter: a search took 3 s.
    """

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._of: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def of(self, namespace: str) -> threading.Lock:
        """The lock of a namespace."""
        with self._making:
            return self._of.setdefault(namespace, threading.Lock())


def ingest(
    deployment: Deployment,
    namespace: str,
    session_key: str,
    messages: Sequence[Message | Mapping[str, Any]],
    *,
    observers: Sequence[str] | None = None,
    observe: bool | None = None,
    end: bool = False,
    replace: bool = False,
) -> Receipt:
    """See :meth:`nexus_tasks.client.Nexus.ingest`."""
    session_key, said, wanted = _checked(namespace, session_key, messages, observers)

    def store() -> tuple[SessionWriter, StoredMessages]:
        # Messages that were buffered earlier are stored first.
        buffer_flush.store_pending(deployment, namespace, session_key)
        with deployment.local(_Turns).of(namespace):
            clean = without_secrets(said)
        changed: Literal["replace", "refuse"] = "replace" if replace else "refuse"

        def committed(tx: Transaction) -> tuple[SessionWriter, StoredMessages]:
            writer = SessionWriter(deployment, tx, namespaces.ensure(tx, namespace), session_key)
            stored = writer.store(said, wanted, observe=observe, changed=changed, clean=clean)
            if end:
                writer.end(stored.session)
            return writer, stored

        # A replacement erases, which may meet a deadlock. Other messages go to the buffer at once.
        return deployment.database.commit(committed, tries=TRIES if replace else 1)

    try:
        writer, stored = deployment.unless_silent(store)
    except StorageMisconfigured:  # waiting does not help, so the messages could never be stored from the buffer
        raise
    except (Transient, EmbeddedUnavailable):
        if replace:  # the buffer cannot ask Postgres whether a message has changed
            raise
        return buffer_flush.keep(deployment, namespace, session_key, said, wanted, observe=observe, end=end)
    enqueued = writer.enqueue()
    return Receipt(
        namespaces=(namespace,),
        session_keys=(session_key,),
        messages=len(said),
        stored=len(stored.memory_ids),
        duplicates=stored.duplicates,
        enqueued=enqueued,
    )


def keep(
    deployment: Deployment,
    namespace: str,
    session_key: str,
    messages: Sequence[Message | Mapping[str, Any]],
    *,
    observers: Sequence[str] | None = None,
    observe: bool | None = None,
    end: bool = False,
    replace: bool = False,
) -> Receipt:
    """Buffer a call of ``ingest``, because it is unknown which deployment it is for.

    Raises:
        InvalidInput: an argument is wrong, or ``replace`` is set: the buffer cannot ask whether a message has changed.
        BufferError: the session buffer cannot keep the messages.
    """
    if replace:
        raise InvalidInput("replace=True needs Postgres, which is away.", remedy="Call again when it is back.")
    session_key, said, wanted = _checked(namespace, session_key, messages, observers)
    return buffer_flush.keep(deployment, namespace, session_key, said, wanted, observe=observe, end=end)


def _checked(
    namespace: str,
    session_key: str,
    messages: Sequence[Message | Mapping[str, Any]],
    observers: Sequence[str] | None,
) -> tuple[str, list[Message], list[str] | None]:
    check_namespace(namespace)
    session_key = check_name("session_key", session_key)
    said = _messages(messages)
    wanted = None if observers is None else [check_name("observers", observer) for observer in observers]
    check_derivations(said, wanted or ())  # before the messages may go to the buffer
    return session_key, said, wanted


def _messages(given: Iterable[Message | Mapping[str, Any]]) -> list[Message]:
    said = list[Message]()
    for position, message in enumerate(given):  # may be a generator without an end
        if position == limits.MESSAGES_PER_CALL:
            raise InvalidInput(
                f"messages has more than {limits.MESSAGES_PER_CALL:,} messages.",
                remedy="Give each message an id, and store them in several calls; nothing was stored.",
            )
        said.append(_message(position, message))
        check_message(said[-1])
    return said


def _message(position: int, message: Message | Mapping[str, Any]) -> Message:
    if isinstance(message, Message):
        return message
    if not isinstance(message, Mapping):
        raise InvalidInput(f"messages[{position}] must be a Message or a mapping, not {type(message).__name__}.")
    try:
        return _MESSAGE.validate_python(dict(message))
    except (TypeError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"messages[{position}] is not a message: {error}.") from None
    except ValidationError as error:
        raise InvalidInput(f"messages[{position}] is not a message: {faults(error.errors(), root='it')}.") from None
