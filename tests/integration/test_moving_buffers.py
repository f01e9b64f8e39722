"""Messages that are said while a namespace moves keep their place in their session, in whichever buffer they wait."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Message
from nexus_tasks.errors import NamespaceMoving, StorageUnavailable
from nexus_tasks.services import buffer_flush, intake
from nexus_tasks.services.cells import buffers
from nexus_tasks.services.cells.moving import Step, move
from nexus_tasks.storage import namespaces
from tests.cells import TwoCells
from tests.integration.moved import ACME, TALK, both

__all__ = ["both"]  # the fixture


def test_during_the_copy_the_namespace_is_read_and_messages_wait_in_the_buffer(both: TwoCells) -> None:
    seen = list[object]()

    def note(step: Step) -> None:
        if step == "close":
            seen.append(both.nexus.search(ACME, "Eva")[0].content)
            seen.append(both.nexus.remember(ACME, "Said meanwhile.", author="ann").buffered)
            with pytest.raises(NamespaceMoving, match="moving to another cell"):
                both.nexus.set_namespace(ACME, concurrency=3)
            seen.append(both.nexus.remember("other", "Another tenant goes on.").stored)

    move(both.cells, ACME, "two", note=note)
    assert seen == [TALK[2], 1, 1]
    buffers.note_buffered(both.cells)
    both.nexus.remember(ACME, "Said after.", author="ann")
    assert [one.content for one in both.nexus.session(ACME, "notes").said][1:] == ["Said meanwhile.", "Said after."]
    assert not any(one.buffer.pending() for one in both.cells.deployments.values())


def test_a_buffer_that_could_not_be_stored_keeps_the_later_ones_waiting(
    both: TwoCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection breaks while the buffer of the first cell is stored. Before, that of the second one came first."""
    for cell, content in (("one", "First."), ("two", "Second.")):
        intake.keep(both.cells.deployments[cell], ACME, "talk", [Message(content=content, author="ann")])
    store, failing = buffer_flush.store_buffer, [StorageUnavailable()]

    def breaks_once(*given: Any, **named: Any) -> Any:
        if failing:
            raise failing.pop()
        return store(*given, **named)

    monkeypatch.setattr(buffer_flush, "store_buffer", breaks_once)
    assert buffers.store_all(both.cells, wait=True).entries == 0
    assert buffers.store_all(both.cells, wait=True).entries == 2
    assert [one.content for one in both.nexus.session(ACME, "talk").said] == ["First.", "Second."]


@pytest.mark.parametrize("why", ["another process stores it", "its namespace is locked", "its namespace moves"])
def test_a_later_buffer_waits_for_what_stays_in_an_earlier_one(
    both: TwoCells, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = both.cells.deployments.values()
    home = both.cells.deployment_of(ACME, writing=False)
    for deployment, content in ((one, "First."), (two, "Second.")):
        intake.keep(deployment, ACME, "talk", [Message(content=content, author="ann")])
    with ExitStack() as stack:
        if why == "another process stores it":
            stack.enter_context(one.buffer.storing(wait=True))
        elif why == "its namespace is locked":
            importing = stack.enter_context(home.database.transaction())
            importing.execute(text("SELECT 1 FROM namespaces WHERE name = :name FOR UPDATE"), {"name": ACME})
        else:
            refusals, ensure = [NamespaceMoving(ACME)], namespaces.ensure

            def refuses_once(*given: Any) -> Any:
                if refusals:
                    raise refusals.pop()
                return ensure(*given)

            patched = stack.enter_context(monkeypatch.context())
            patched.setattr(namespaces, "ensure", refuses_once)
        assert buffers.store_all(both.cells, briefly=True).entries == 0
    assert buffers.store_all(both.cells).entries == 2
    assert [said.content for said in both.nexus.session(ACME, "talk").said] == ["First.", "Second."]


def test_messages_of_the_pause_keep_their_place_in_the_conversation(both: TwoCells) -> None:
    """An adapter gives the session to a model, and erases the newest message when it takes it back."""
    seen = list[object]()

    def say(content: str) -> int:
        return both.nexus.ingest(ACME, "talk", [Message(content=content, author="ann")]).buffered

    def told() -> list[str]:
        return [one.content for one in both.nexus.session(ACME, "talk").said]

    def note(step: Step) -> None:
        if step == "close":
            seen.append(say("Second."))
        if step == "leave":
            seen.append(say("Third."))

    say("First.")
    move(both.cells, ACME, "two", note=note)
    assert seen == [1, 1]
    assert told() == ["First.", "Second.", "Third."], "a read stores what waits in the buffer of the old cell"

    def storing(step: Step) -> None:
        if step == "close":
            seen.append(say("Fourth."))
        if step == "open":
            with both.cells.deployments["two"].buffer.storing(wait=True) as mine:  # as another process does
                assert mine
                seen.append(say("Fifth."))
                with pytest.raises(NamespaceMoving):
                    both.nexus.end_session(ACME, "talk")

    move(both.cells, ACME, "one", note=storing)
    assert seen == [1] * 4
    assert say("Sixth.") == 0
    assert told() == ["First.", "Second.", "Third.", "Fourth.", "Fifth.", "Sixth."]


@pytest.mark.parametrize("silent", [False, True])
def test_a_message_is_buffered_behind_those_that_other_processes_have_buffered(both: TwoCells, silent: bool) -> None:
    """Several cells' buffers may have messages of a session, and they are stored in the order of the cells."""

    def say(content: str) -> int:
        return both.nexus.ingest(ACME, "talk", [Message(content=content, author="ann")]).buffered

    home = "one" if silent else "two"
    move(both.cells, ACME, home)
    assert say("First.") == 0  # so this process has looked at the buffers
    # As a process of all cells does before or during a move, and before it one with NEXUS_CELL.
    for cell, content in [*[("one", "Second.")] * (not silent), ("two", "Third.")]:
        message = Message(content=content, author="ann")
        intake.keep(both.cells.deployments[cell], ACME, "talk", [message])
    if silent:
        both.cells.silence.note(home, time.monotonic() - 5, StorageUnavailable("Postgres does not answer."))
    assert say("Fourth.") == 1
    if silent:
        both.cells.silence.note(home, time.monotonic(), None)
    assert buffers.store_all(both.cells, wait=True).entries == (2 if silent else 3)
    told = [one.content for one in both.nexus.session(ACME, "talk").said]
    assert told == ["First.", *["Second."] * (not silent), "Third.", "Fourth."]


def test_a_write_that_began_before_the_close_is_waited_for(both: TwoCells) -> None:
    one = both.cells.deployments["one"]
    began, closed = threading.Event(), threading.Event()

    def write() -> None:
        from nexus_tasks.storage import namespaces

        with one.database.transaction() as tx:
            known = namespaces.get(tx, ACME)
            began.set()
            closed.wait(1.0)  # never set: the close waits for this transaction
            from nexus_tasks.services.ingestion import SessionWriter

            SessionWriter(one, tx, known, "slow").store([Message(content="Slow, and not lost.", author="ann")])

    writer = threading.Thread(target=write)
    writer.start()
    began.wait(10)
    move(both.cells, ACME, "two", note=lambda step: closed.set() if step == "close" else None)
    writer.join()
    assert [said.content for said in both.nexus.session(ACME, "slow").said] == ["Slow, and not lost."]
