"""Moving a namespace between cells: nothing is lost or doubled, whenever the move is killed and whoever writes."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, text

from nexus_tasks import Cells, Message, Nexus, reflect_perspective
from nexus_tasks.deployment import use
from nexus_tasks.errors import InvalidInput, NamespaceMoved, NamespaceMoving, NexusError, StorageUnavailable, Transient
from nexus_tasks.idempotency.claim_index import ClaimIndex
from nexus_tasks.idempotency.engine import JobEngine
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.services import context_cache
from nexus_tasks.services.cells import buffers, moving
from nexus_tasks.services.cells.moving import STEPS, Step, move
from nexus_tasks.services.cells.tokens import CellTokenChecker
from nexus_tasks.storage import engine
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Base
from nexus_tasks.storage.transfer import copying
from nexus_tasks.transcripts import context_file
from tests.cells import TwoCells, document, move_in_child, residence, two_cells
from tests.integration.inline import work
from tests.integration.moved import ACME, TALK, attempt, both, everything
from tests.sandbox import Sandbox, eventually
from tests.standin import Call, StandIn, answers
from tests.transcripts.generate import Transcript

__all__ = ["both"]  # the fixture


def test_every_table_is_copied_or_made_again() -> None:
    copied = {table.name for table in copying.TABLES} | copying.REMADE
    assert copied == {table.name for table in Base.metadata.sorted_tables if "namespace_id" in table.c}


def test_a_moved_namespace_is_as_it_was(both: TwoCells) -> None:
    before, found = everything(both.one), [hit.id for hit in both.nexus.search(ACME, "where does Eva live?")]
    assert {
        "memories",
        "evidence",
        "session_digests",
        "embeddings",
        "tokens",
        "job_runs",
        "derivations",
    } <= before.keys()
    receipt = move(both.cells, ACME, "two")
    assert (receipt.cell, receipt.moved_from) == ("two", "one")
    assert receipt.rows == {name: len(some) for name, some in before.items()}
    assert everything(both.two) == before
    assert [hit.id for hit in both.nexus.search(ACME, "where does Eva live?")] == found != []
    assert both.nexus.search(ACME, "Eva").missing_embeddings == 1, "as before: the message that is not derived yet"
    assert both.nexus.namespace(ACME).budget_usd_per_day == 5.0
    assert everything(both.one) == {}, "the old cell has erased its copy"
    assert both.one.sql("SELECT count(*) FROM postings") == [(0,)]
    assert both.one.sql("SELECT cell, moving_to, moved_from, move_id FROM placements") == [("two", None, None, None)]
    assert [entry.action for entry in both.nexus.audit(ACME, action="move")] == ["move"]


def test_new_rows_of_a_moved_namespace_have_greater_ids(both: TwoCells) -> None:
    """What a reflection has read is known by the greatest id. It would never read a new fact with a smaller one."""
    for table in ("memories", "sessions", "digest_requests"):
        both.one.sql(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 25600000)")
    both.nexus.remember(ACME, "I drink cocoa every evening.", author="ann")
    with use(both.cells.deployments["one"]):
        work()
        reflect_perspective.delay(namespace=ACME, observer="ann", subject="ann")
        work()
    move(both.cells, ACME, "two")
    both.nexus.remember(ACME, "I drink lemonade every noon.", author="ann")
    with use(both.cells.deployments["two"]) as two:
        Reconciler(two.engine).round()
        work("derive_memory")
    [unread] = [one.unreflected for one in both.nexus.perspectives(ACME) if one.observer == "ann"]
    assert unread == 1
    told = "SELECT min(id), max(id), array_agg(DISTINCT id % 256) FROM memories WHERE content LIKE :said"
    [(_, noon, own)] = both.two.sql(told, said="%lemonade%")
    move(both.cells, ACME, "one")
    both.nexus.remember(ACME, "I drink coffee every night.", author="ann")
    [(night, _, other)] = both.one.sql(told, said="%coffee%")
    assert (night > noon, own, other) == (True, [1], [0])


def test_work_that_was_wanted_goes_on_in_the_new_cell(both: TwoCells) -> None:
    assert both.nexus.status(ACME).namespaces[0].underived == 1
    with use(both.cells.deployments["one"]):
        reflect_perspective.delay(namespace=ACME, observer="bob", subject="ann")  # only Redis knows of it
    move(both.cells, ACME, "two")
    assert both.one.redis().keys(f"{both.one.name}:job:*") == []
    with use(both.cells.deployments["two"]) as two:
        assert {claim.kind for claim in (*two.claims.pending("derive"), *two.claims.pending("reflect"))} >= {
            "reflect_perspective"
        }
        Reconciler(two.engine).round()
        work()
    after = both.nexus.status(ACME).namespaces[0]
    assert (after.underived, after.jobs.waiting, after.jobs.pending, after.jobs.dead) == (0, 0, 0, 0)


def test_a_job_with_a_countdown_keeps_it_in_the_new_cell(both: TwoCells) -> None:
    with use(both.cells.deployments["one"]):
        scope = {"namespace": ACME, "observer": "bob", "subject": "ann"}
        reflect_perspective.apply_async(kwargs=scope, countdown=3_600)
    move(both.cells, ACME, "two")
    claims = both.cells.deployments["two"].claims
    [claim] = [one for one in claims.waiting() if one.kind == "reflect_perspective"]
    assert claim.wait_reason == "delay"
    assert claim.due_at is not None
    assert 3_500 < claim.due_at - claims.now() <= 3_600


def test_a_job_of_a_kind_that_only_workers_know_moves_too(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command `nexus cells move` has not imported the module of an application that declares the kind."""
    scope = {"namespace": ACME, "observer": "bob", "subject": "ann"}
    with use(both.cells.deployments["one"]):
        reflect_perspective.delay(**scope)
    with monkeypatch.context() as patched:
        patched.setattr(JobEngine, "kinds", lambda _self: {})
        move(both.cells, ACME, "two")
    with use(both.cells.deployments["two"]) as two:
        found = [*two.claims.pending("reflect"), *two.claims.waiting()]
        assert [claim.args for claim in found if claim.kind == "reflect_perspective"] == [scope]
        done = work()
    assert "reflect_perspective" in {one["kind"] for one in done}


def test_no_job_is_queued_in_the_cell_that_the_namespace_has_left(both: TwoCells) -> None:
    """No worker would ever run it: only Redis knows of a reflection by hand."""
    late = Cells(str(both.file))
    scope = {"namespace": ACME, "observer": "bob", "subject": "ann"}
    old = late.deployment_of(ACME)
    move(both.cells, ACME, "two")
    for ask in (reflect_perspective.on(old).delay, lambda **one: reflect_perspective.on(old).enqueue_many([one])):
        with pytest.raises(NamespaceMoved):
            ask(**scope)
    assert both.one.redis().keys(f"{both.one.name}:job:*") == []
    reflect_perspective.on(late.deployment_of(ACME)).delay(**scope)
    claims = both.cells.deployments["two"].claims
    assert "reflect_perspective" in {claim.kind for claim in (*claims.pending("reflect"), *claims.waiting())}
    late.close()


def test_a_job_that_cannot_be_read_does_not_keep_the_move_from_its_end(both: TwoCells) -> None:
    with use(both.cells.deployments["one"]) as one:
        asked = reflect_perspective.delay(namespace=ACME, observer="bob", subject="ann")
        claim = ClaimIndex(one.claims).find(str(asked.id))
        assert claim is not None
    both.one.redis().hset(claim.key, "args", '{"namespace": "acme", "observer": 5}')
    assert move(both.cells, ACME, "two").cell == "two"
    assert both.one.sql("SELECT move_id FROM placements") == [(None,)]


def test_the_context_files_of_other_namespaces_are_written_after_a_move(both: TwoCells) -> None:
    one = both.cells.deployments["one"]
    home = str(one.settings.home)
    for name in (ACME, "stays"):
        context_file.put(home, name, "")
    Nexus(one).remember("stays", "I drink green tea every morning.", author="ann")
    move(both.cells, ACME, "two")
    assert context_cache.refresh(one) == 1


def test_a_client_that_remembers_the_old_cell_is_refused_and_finds_the_new_one(both: TwoCells) -> None:
    late, plain = Nexus(cells=str(both.file)), Nexus(both.cells.deployments["one"])
    assert late.cells is not None
    late.search(ACME, "Eva")
    move(both.cells, ACME, "two")
    assert late.cells.knows(ACME)
    assert late.remember(ACME, "Written late.").stored == 1
    assert late.search(ACME, "late")[0].content == "Written late."
    late.cells.close()
    for call in (lambda: plain.remember(ACME, "To the old cell."), lambda: plain.search(ACME, "Eva")):
        with pytest.raises(NamespaceMoved, match="has moved to the cell two"):
            call()
    with use(both.cells.deployments["one"]), pytest.raises(NamespaceMoved):
        plain.forget(ACME, everything=True)
    assert everything(both.one) == {}
    assert plain.namespaces() == []
    with use(both.cells.deployments["one"]) as one:
        Reconciler(one.engine).round()
        assert one.claims.waiting() == []


def test_messages_that_can_be_read_only_once_are_stored_in_the_new_cell(both: TwoCells) -> None:
    late = Nexus(cells=str(both.file))
    assert late.cells is not None
    late.search(ACME, "Eva")
    move(both.cells, ACME, "two")
    messages: Any = (Message(content=f"Late message {number}.") for number in range(2))
    assert late.ingest(ACME, "late", messages).stored == 2
    late.cells.close()


def test_a_moved_namespace_keeps_no_hook_of_the_old_cell_waiting(both: TwoCells) -> None:
    """A worker of the old cell goes on writing the contexts of the others, and the old context goes with the copy."""
    old, home = both.cells.deployments["one"], str(both.one.folder)
    Nexus(old).remember("later", "Deploys happen on Tuesdays.")
    for name in (ACME, "later"):
        context_file.take(home, name)
    context_file.put_session(home, ACME, "chat", "")
    assert context_cache.refresh(old) == 3
    assert "Lisbon" in context_file.take(home, ACME)
    move(both.cells, ACME, "two")
    assert context_file.take(home, ACME) == ""
    Nexus(old).remember("later", "Reviews happen on Mondays.")
    context_file.put_session(home, ACME, "chat", "")
    assert context_cache.refresh(old) == 1


def test_the_context_files_of_the_old_cell_on_other_machines_are_erased(both: TwoCells, tmp_path: Path) -> None:
    """An erasure in the new cell does not reach them. The move runs on a machine that has none of them."""
    old, home = both.cells.deployments["one"], str(both.one.folder)

    def give() -> None:
        context_file.take(home, ACME)
        context_file.take_session(home, ACME, "chat")
        context_cache.refresh(old)
        assert "Lisbon" in context_file.take(home, ACME)
        assert "Lisbon" in context_file.take_session(home, ACME, "chat")

    named: Any = document(both.one, both.two)
    for settings in named["cells"].values():
        settings["home"] = str(tmp_path / "of-the-administrator")
    for _ in range(2):  # it comes back, and moves again
        give()
        with closing(Cells(json.dumps(named))) as elsewhere:
            move(elsewhere, ACME, "two")
        assert context_cache.refresh(old) == 0
        assert context_file.take(home, ACME) == ""
        assert context_file.sessions_asked_for(home) == {}
        context_file.put(home, ACME, "Of a worker of the other cell, in the same folder.")
        assert context_cache.refresh(old) == 0
        assert context_file.take(home, ACME) != ""
        both.cells.forget(ACME)
        move(both.cells, ACME, "one")


def test_a_transcript_is_read_on_in_the_new_cell_and_brings_nothing_back(both: TwoCells, tmp_path: Path) -> None:
    """Each of the two cells has a home of its own, and the buffer with the hook's events is in that of the old one."""
    made = Transcript()
    made.prompt("The vault opens at six.")
    path = made.write(tmp_path / "t.jsonl")
    buffer = both.cells.deployments["one"].buffer

    def stop() -> None:
        buffer.append(ACME, "agent", {"event": "Stop", "transcript_path": str(path)}, "claude-code")
        buffers.store_all(both.cells, wait=True)

    stop()
    [said] = both.nexus.session(ACME, "agent").said
    both.nexus.forget(ACME, memory_id=said.id)
    move(both.cells, ACME, "two")
    made.prompt("Who paints the door?")
    made.write(path)
    stop()
    assert [one.content for one in both.nexus.session(ACME, "agent").said] == ["Who paints the door?"]


def test_a_namespace_comes_back(both: TwoCells) -> None:
    before = everything(both.one)
    move(both.cells, ACME, "two")
    move(both.cells, ACME, "one", keep=True)
    assert everything(both.one) == before
    assert residence(both.two, ACME) == "left"
    with pytest.raises(InvalidInput):
        moving.erase_copy(both.cells, ACME, "one")
    assert moving.erase_copy(both.cells, ACME, "two")["memories"] == len(before["memories"])
    move(both.cells, ACME, "two")
    assert everything(both.two) == before


# --- killed -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("step", STEPS)
def test_a_move_that_is_killed_after_a_step_goes_on(both: TwoCells, step: Step) -> None:
    before = everything(both.one)
    pid = move_in_child(both.cells, ACME, "two", die_after=step)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    both.cells.forget(ACME)
    holders = [name for name in ("one", "two") if residence(both.of(name), ACME) in ("here", "draining", "leaving")]
    assert len(holders) <= 1, "two cells would answer"
    receipt = eventually(lambda: attempt(lambda: move(both.cells, ACME, "two")), within=30)
    assert receipt.cell == "two"
    assert everything(both.two) == before
    assert everything(both.one) == {}
    assert (residence(both.one, ACME), residence(both.two, ACME)) == ("left", "here")
    assert both.cells.moves() == []


@pytest.mark.long
def test_a_move_that_is_killed_at_any_moment_goes_on(both: TwoCells) -> None:
    luck, before, target = random.Random(7), everything(both.one), "two"
    for _ in range(12):
        pid = move_in_child(both.cells, ACME, target)
        time.sleep(luck.uniform(0.0, 0.6))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    both.cells.forget(ACME)
    eventually(lambda: attempt(lambda: move(both.cells, ACME, target)), within=30)
    assert everything(both.two) == before
    assert everything(both.one) == {}


@pytest.mark.parametrize("cut_off", ["copy", "switch", "leave", "open"])
def test_no_step_of_a_move_makes_a_token_unknown(both: TwoCells, cut_off: Step) -> None:
    """A client takes 401 as final."""
    made = both.nexus.create_token(ACME, "client")
    with closing(Cells(str(both.file))) as cells:
        checker = CellTokenChecker(cells)
        assert checker.check(made.token).namespace == ACME
        os.waitpid(move_in_child(both.cells, ACME, "two", die_after=cut_off), 0)
        if cut_off == "leave":
            with pytest.raises(NamespaceMoving):
                checker.check(made.token)
        else:
            assert checker.check(made.token).namespace == ACME
        assert checker.check(made.token[:-1] + "~").refusal == "unknown"
        eventually(lambda: attempt(lambda: move(both.cells, ACME, "two")), within=30)
        assert checker.check(made.token).namespace == ACME
        both.nexus.revoke_token(ACME, made.id)
        assert checker.check(made.token).refusal == "revoked"


def test_a_move_can_be_given_up_until_the_switch(both: TwoCells) -> None:
    before = everything(both.one)
    pid = move_in_child(both.cells, ACME, "two", die_after="copy")
    os.waitpid(pid, 0)
    with pytest.raises(NamespaceMoving):
        both.nexus.pin(ACME, both.nexus.memories(ACME, levels=["explicit"])[0].id)
    with pytest.raises(NamespaceMoving):
        Nexus(both.cells.deployments["two"]).search(ACME, "Eva")
    eventually(lambda: attempt(lambda: move(both.cells, ACME, "one")), within=30)
    assert both.nexus.remember(ACME, "Written after.", author="ann").stored == 1
    assert both.cells.moves() == []
    move(both.cells, ACME, "two")  # it copies anew, and not what the first attempt has left there
    assert len(everything(both.two)["memories"]) == len(before["memories"]) + 1


def given_up(both: TwoCells) -> None:
    """Give a move up that was cut off after the copy."""
    os.waitpid(move_in_child(both.cells, ACME, "two", die_after="copy"), 0)
    assert everything(both.two)
    eventually(lambda: attempt(lambda: move(both.cells, ACME, "one")), within=30)


def test_a_move_that_is_given_up_leaves_no_copy_that_an_erasure_would_miss(both: TwoCells) -> None:
    before = everything(both.one)
    given_up(both)
    assert everything(both.two) == {}
    assert everything(both.one) == before
    with pytest.raises(NamespaceMoved):
        Nexus(both.cells.deployments["two"]).remember(ACME, "For the wrong cell.")


@pytest.mark.parametrize(
    ("step", "target"), [*((step, "one") for step in STEPS[:4]), *((step, "two") for step in STEPS[:8])]
)
def test_a_move_whose_lock_was_lost_stops_when_another_process_has_ended_it(
    both: TwoCells, step: Step, target: str
) -> None:
    """The directory's Postgres restarts, and the mover does not notice."""
    before = everything(both.one)

    def lose_the_lock(done: Step) -> None:
        if done == step:
            both.one.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database d ON d.oid = database"
                " WHERE locktype = 'advisory' AND datname = current_database()"
            )
            eventually(lambda: attempt(lambda: move(both.cells, ACME, target)), within=30)

    with pytest.raises(NexusError):
        move(both.cells, ACME, "two", note=lose_the_lock)
    assert both.cells.moves() == []
    there = both.of("two" if target == "one" else "one")
    assert (everything(both.of(target)), everything(there)) == (before, {})
    assert residence(both.of(target), ACME) == "here"
    assert residence(there, ACME) in (None, "left")
    assert both.nexus.remember(ACME, "Written after.", author="ann").stored == 1


def test_a_move_whose_lock_was_lost_ends_well_when_no_other_process_moves(both: TwoCells) -> None:
    def lose_the_lock(done: Step) -> None:
        if done == "copy":
            both.one.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database d ON d.oid = database"
                " WHERE locktype = 'advisory' AND datname = current_database()"
            )

    assert move(both.cells, ACME, "two", note=lose_the_lock).cell == "two"
    assert both.cells.moves() == []


@pytest.mark.parametrize("away", ["_reside", "_erase_copy"])
def test_a_giving_up_that_was_cut_off_is_done_by_the_same_command(
    both: TwoCells, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """The old cell is away, or the new one, just after the directory has forgotten the move."""

    def refuse(*_: object) -> None:
        raise StorageUnavailable("Postgres is away.")

    before = everything(both.one)
    os.waitpid(move_in_child(both.cells, ACME, "two", die_after="copy"), 0)
    with monkeypatch.context() as patched:
        patched.setattr(moving, away, refuse)
        with suppress(StorageUnavailable):
            eventually(lambda: attempt(lambda: move(both.cells, ACME, "one")), within=30)
    assert both.cells.moves() == []
    move(both.cells, ACME, "one")
    assert residence(both.one, ACME) == "here"
    assert (everything(both.one), everything(both.two)) == (before, {})
    assert both.nexus.remember(ACME, "Written after.", author="ann").stored == 1


def test_a_copy_that_a_move_left_in_a_cell_that_was_away_can_be_erased(
    both: TwoCells, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> None:
        raise StorageUnavailable("Postgres is away.")

    before = everything(both.one)
    with monkeypatch.context() as patched:
        patched.setattr(moving, "_erase_copy", away)
        given_up(both)
    assert f"Run `nexus cells erase {ACME} two`" in caplog.text
    assert moving.erase_copy(both.cells, ACME, "two")["memories"] == len(before["memories"])
    assert (everything(both.one), everything(both.two)) == (before, {})


def test_a_second_namespace_in_the_other_cell_is_named_before_anything_is_closed_and_can_be_erased(
    both: TwoCells,
) -> None:
    Nexus(both.two.deployment).remember(ACME, "Seen by no client of the cells.")  # which knows of no cells
    before = everything(both.one)
    with pytest.raises(InvalidInput, match=f"`nexus cells erase {ACME} two`"):
        move(both.cells, ACME, "two")
    assert residence(both.one, ACME) == "here"
    with pytest.raises(InvalidInput, match="has not left this cell"):
        moving.erase_copy(both.cells, ACME, "one")
    assert moving.erase_copy(both.cells, ACME, "two")["memories"] == 1
    assert (everything(both.one), everything(both.two)) == (before, {})
    move(both.cells, ACME, "two")
    assert (residence(both.one, ACME), residence(both.two, ACME)) == ("left", "here")


def test_what_a_move_goes_on_with_is_not_erased(both: TwoCells) -> None:
    steps: tuple[Step, ...] = ("copy", "switch", "leave")
    for last in steps:
        os.waitpid(move_in_child(both.cells, ACME, "two", die_after=last), 0)
        for cell in ("one", "two"):
            refused = eventually(partial(_refused, both, cell), within=30)
            assert "has not left this cell" in refused
    eventually(lambda: attempt(lambda: move(both.cells, ACME, "two")), within=30)


def _refused(both: TwoCells, cell: str) -> str:
    """Why a copy is not erased; empty until Postgres has seen that the killed process is gone."""
    with pytest.raises((InvalidInput, Transient)) as raised:
        moving.erase_copy(both.cells, ACME, cell)
    return "" if isinstance(raised.value, Transient) else str(raised.value)


# --- questions and jobs meanwhile ------------------------------------------------------------------------------------
@pytest.fixture
def asking(
    deploy: Callable[..., Sandbox], standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TwoCells]:
    """Two cells that ask the stand-in for Claude. ``acme`` lives in ``one``."""
    monkeypatch.setattr(moving, "NAMESPACE_REMEMBERED_SECONDS", 0.0)
    with two_cells(partial(deploy, **standin.environment()), tmp_path) as made:
        Nexus(made.cells.deployments["one"]).create_namespace(ACME, observers=["ann"])
        made.cells.prepare()
        made.nexus.ingest(ACME, "chat", [Message(content=text, author="ann") for text in TALK])
        yield made


WHERE = "Where does my sister Eva live?"


@pytest.mark.parametrize("after", ["begin", "drain"])
@pytest.mark.parametrize("budget", [None, 5.0])
def test_a_move_waits_for_the_questions_that_began_before_and_their_costs_come_along(
    asking: TwoCells, standin: StandIn, budget: float | None, after: Step
) -> None:
    if budget is not None:
        asking.nexus.set_namespace(ACME, budget_usd_per_day=budget)
    begun, go, found = threading.Event(), threading.Event(), list[str]()

    def slow(call: Call) -> Any:
        begun.set()
        assert go.wait(60)
        return answers.answer(call)

    standin.answer("answer", slow)
    question = threading.Thread(target=lambda: found.append(asking.nexus.ask(ACME, WHERE).question), daemon=True)
    done = threading.Event()

    def ask(step: Step) -> None:
        if step == after:
            question.start()
            assert begun.wait(30)

    mover = threading.Thread(target=lambda: (move(asking.cells, ACME, "two", note=ask), done.set()), daemon=True)
    mover.start()
    eventually(lambda: residence(asking.one, ACME) == {"begin": "draining", "drain": "leaving"}[after])
    assert not done.wait(1), "the move has not waited"
    go.set()
    question.join(30)
    mover.join(30)
    assert (found, done.is_set()) == ([WHERE], True)
    assert asking.nexus.spend(ACME).cost_usd > 0
    assert asking.two.sql("SELECT count(*) FROM budget_holds") == [(0,)]
    asking.nexus.ask(ACME, WHERE)
    assert standin.counters.purposes["answer"] == 1, "the answer came along, and is not paid for again"


@pytest.mark.parametrize("step", ["close", "copy", "switch", "leave"])
def test_no_question_is_paid_in_a_cell_that_the_namespace_leaves(
    asking: TwoCells, standin: StandIn, step: Step
) -> None:
    def ask(done: Step) -> None:
        if done == step:
            with pytest.raises(NamespaceMoving):
                asking.nexus.ask(ACME, WHERE)

    move(asking.cells, ACME, "two", note=ask)
    assert standin.counters.purposes["answer"] == 0
    asking.nexus.ask(ACME, WHERE)
    assert asking.nexus.spend(ACME).cost_usd > 0


def test_a_copy_that_differs_is_refused(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    real = copying._copy_table

    def lossy(source: object, target: object, table: object, old: int, new: int) -> None:
        real(source, target, table, old, new)  # type: ignore[arg-type]
        if getattr(table, "name", "") == "evidence":
            target.execute(text("UPDATE evidence SET role = 'reinforces' WHERE namespace_id = :n"), {"n": new})  # type: ignore[attr-defined]

    monkeypatch.setattr(copying, "_copy_table", lossy)
    with pytest.raises(NexusError, match="The copy of evidence differs"):
        move(both.cells, ACME, "two")
    assert residence(both.two, ACME) is None
    monkeypatch.setattr(copying, "_copy_table", real)
    move(both.cells, ACME, "two")


def test_the_timeouts_of_the_databases_user_do_not_end_a_copy(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    real = copying._figures

    def slowly(tx: Transaction, table: Table, owner: int) -> tuple[int, int]:
        tx.execute(text("SELECT pg_sleep(1.7)" if table.name == "sessions" else "SELECT 1"))
        return real(tx, table, owner)

    monkeypatch.setattr(copying, "_figures", slowly)
    monkeypatch.setattr(engine, "_SETTINGS", (*engine._SETTINGS, "SET statement_timeout = 1500"))
    for deployment in both.cells.deployments.values():
        deployment.database.dispose()
    assert move(both.cells, ACME, "two").moved_from == "one"


def _give_up_a_job(here: Sandbox) -> None:
    here.sql(
        "INSERT INTO dead_letters"
        " (job_id, namespace_id, kind, scope, args, error_type, message, traceback, errors, crashes)"
        " SELECT 'gave-up', id, 'reflect_perspective', '{}',"
        " jsonb_build_object('namespace', name, 'observer', 'ann', 'subject', 'ann'), 'ValueError', 'x', 'x', 1, 0"
        " FROM namespaces WHERE name = 'acme'"
    )


@pytest.mark.parametrize("step", ["close", "copy"])
def test_no_dead_letter_is_retried_or_dropped_in_a_cell_that_the_namespace_leaves(both: TwoCells, step: Step) -> None:
    """The copy would have the letter open again."""
    _give_up_a_job(both.one)

    def settle(done: Step) -> None:
        if done == step:
            for call in (both.nexus.retry_job, both.nexus.drop_job):
                with pytest.raises(NamespaceMoving):
                    call("gave-up")
            with pytest.raises(StorageUnavailable, match="acme is moving"):
                both.nexus.drop_jobs(status="dead")
            refused = both.nexus.retry_jobs().refused
            assert refused == {"gave-up": "The namespace acme is moving to another cell."}

    move(both.cells, ACME, "two", note=settle)
    assert both.nexus.drop_job("gave-up").kind == "reflect_perspective"


def test_a_copy_that_is_kept_counts_once(both: TwoCells) -> None:
    _give_up_a_job(both.one)
    both.one.sql(
        "INSERT INTO model_calls (namespace_id, job_id, purpose, model, input_tokens, output_tokens,"
        " cache_write_tokens, cache_read_tokens, cost_usd, seconds)"
        " SELECT id, 'one', 'derive', 'm', 1, 1, 0, 0, 2.5, 1 FROM namespaces WHERE name = 'acme'"
    )
    letters, finished = both.nexus.jobs(status="dead"), both.nexus.finished_jobs().counts
    move(both.cells, ACME, "two", keep=True)
    assert both.nexus.jobs(status="dead") == letters != []
    assert both.nexus.finished_jobs().counts == finished
    assert both.nexus.spend().cost_usd == 2.5
    assert both.nexus.retry_job("gave-up").id
    resolved = "SELECT resolution FROM dead_letters"
    assert (both.one.sql(resolved), both.two.sql(resolved)) == ([(None,)], [("retried",)])


def test_ids_that_both_cells_have_are_refused(both: TwoCells) -> None:
    [(taken,)] = both.one.sql("SELECT max(id) FROM memories")
    Nexus(both.cells.deployments["two"]).remember("other", "Something.")
    both.two.sql("UPDATE derivations SET memory_id = memory_id WHERE false")
    [(mine,)] = both.two.sql("SELECT max(id) FROM memories")
    both.two.sql("ALTER TABLE derivations DISABLE TRIGGER ALL")
    both.two.sql("DELETE FROM derivations")
    both.two.sql("ALTER TABLE derivations ENABLE TRIGGER ALL")
    both.two.sql("UPDATE memories SET id = :taken WHERE id = :mine", taken=taken, mine=mine)
    with pytest.raises(NexusError, match=re.escape("a row of memories with an id of this namespace")):
        move(both.cells, ACME, "two")
    assert move(both.cells, ACME, "one").moved_from is None
    assert both.nexus.remember(ACME, "As before.").stored == 1


@pytest.mark.long
def test_under_load_with_workers_nothing_is_lost_or_doubled(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients write while the namespace moves there and back, killed on the way; two workers derive."""
    monkeypatch.setattr(moving, "NAMESPACE_REMEMBERED_SECONDS", 10.0)
    for here in (both.one, both.two):  # reflecting on 1,000 facts would take the offline model minutes
        here.worker(concurrency=4, NEXUS_REFLECT_MIN_NEW="100000")
    stop, said, problems = threading.Event(), dict[str, int](), list[str]()

    def write(name: str) -> None:
        client = Nexus(cells=Cells(str(both.file)))
        number = 0
        while not stop.is_set():
            message = Message(content=f"I visited the town {name}-{number}.", author="ann", id=f"{name}-{number}")
            try:
                client.ingest(ACME, f"{name}-{number // 20}", [message])
            except NexusError as error:  # nothing was stored: the next turn repeats it
                problems.append(f"{type(error).__name__}: {error.message}")
                time.sleep(0.2)
                continue
            number += 1
            said[name] = number
            time.sleep(0.1)
        buffers.store_all(client.cells, wait=True)  # type: ignore[arg-type]
        client.cells.close()  # type: ignore[union-attr]

    writers = [threading.Thread(target=write, args=(f"w{n}",), daemon=True) for n in range(4)]
    for one in writers:
        one.start()
    try:
        time.sleep(2)
        for target, seconds in (("two", 10.3), ("one", 5.0)):  # killed about the copy, and in the drain
            pid = move_in_child(both.cells, ACME, target)
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            both.cells.forget(ACME)
            eventually(lambda target=target: attempt(lambda: move(both.cells, ACME, target)), within=60)  # type: ignore[misc]
        time.sleep(1)
    finally:
        stop.set()
        for one in writers:
            one.join(60)
    total = sum(said.values())
    assert total > 100
    assert problems == []
    assert residence(both.one, ACME) == "here"
    stored = both.one.sql("SELECT external_id FROM memories WHERE level = 'raw' AND external_id LIKE 'w%'")
    assert sorted(i for (i,) in stored) == sorted(f"{name}-{n}" for name, most in said.items() for n in range(most))
    undone = "SELECT count(*) FROM derivations WHERE state <> 'done'"
    eventually(lambda: both.one.sql(undone) == [(0,)], within=120)
    facts = both.one.sql(
        "SELECT p.observer, m.content FROM memories m JOIN perspectives p ON p.id = m.perspective_id"
        " WHERE m.level = 'explicit' AND m.valid_to IS NULL"
    )
    assert len(facts) == len(set(facts)) > total
    assert both.two.sql("SELECT count(*) FROM memories") == [(0,)]
