"""The two cells and the namespace ``acme`` of the tests that move a namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from nexus_tasks import Message, Nexus, reflect_perspective
from nexus_tasks.deployment import use
from nexus_tasks.errors import Transient
from nexus_tasks.services.cells import moving
from tests.cells import TwoCells, rows, two_cells
from tests.integration.inline import work
from tests.sandbox import Sandbox

T = TypeVar("T")

ACME = "acme"
TALK = ("I moved to Lisbon in March.", "I drink green tea every morning.", "My sister Eva lives in Porto.")


@pytest.fixture
def both(deploy: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoCells]:
    """Two cells. ``acme`` lives in ``one``, with facts, digests, tokens, a budget, a dead letter and wanted work."""
    monkeypatch.setattr(moving, "NAMESPACE_REMEMBERED_SECONDS", 0.0)  # no worker remembers the namespace here
    with two_cells(deploy, tmp_path) as made:
        Nexus(made.cells.deployments["one"]).create_namespace(ACME, budget_usd_per_day=5.0, observers=["ann", "bob"])
        made.cells.prepare()
        said = [Message(content=text, author="ann", id=str(n)) for n, text in enumerate(TALK)]
        made.nexus.ingest(ACME, "chat", said, end=True, observe=True)
        with use(made.cells.deployments["one"]):
            work()
            reflect_perspective.delay(namespace=ACME, observer="ann", subject="ann")
            work()
        made.nexus.create_token(ACME, "agent")
        made.nexus.remember(ACME, "Not derived yet.", author="ann")
        yield made


def everything(here: Sandbox) -> dict[str, list[str]]:
    """All rows of the namespace, except the time of a token's last use."""
    return rows(here, ACME)


def attempt(call: Callable[[], T]) -> T | None:
    """The answer of a call; ``None`` while Postgres keeps the lock of a killed process."""
    try:
        return call()
    except Transient as error:
        if "Another process" not in error.message:
            raise
        return None
