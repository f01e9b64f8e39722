"""No answer is paid for twice, and text that several calls share is cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from nexus_tasks import Nexus, reflect_perspective
from nexus_tasks.cognition import derive
from nexus_tasks.cognition.digest import digest_session as digesting
from nexus_tasks.cognition.reflect import perspective as reflecting
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import StorageUnavailable, Transient
from nexus_tasks.storage import ledger, pruning
from nexus_tasks.storage.engine import Transaction
from tests.integration.inline import NAMESPACE, answers, facts, say, time_passes, waiting, work
from tests.sandbox import Sandbox, eventually
from tests.standin import Call, StandIn, faults

Claude = Callable[..., Sandbox]
SAID = ("I moved to Lisbon.", "I drink tea.", "My sister is called Rosa.", "I work as a nurse.", "I run on Sundays.")


# --- answers outlive the run that asked -------------------------------------------------------------------------------
@contextmanager
def perspective_locked(here: Sandbox) -> Iterator[None]:
    """Hold the row that a derivation locks last before it stores facts: its answer is there, its commit is not."""
    here.sql("INSERT INTO perspectives (namespace_id, observer, subject) SELECT id, 'assistant', 'ann' FROM namespaces")
    engine = create_engine(here.database_url)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1 FROM perspectives FOR UPDATE"))
        yield
    engine.dispose()


@pytest.mark.long  # that a rerun uses what was answered, kind by kind and without processes: the next test
def test_an_answer_that_came_before_the_worker_was_killed_is_used_by_the_rerun(
    claude: Claude, standin: StandIn
) -> None:
    here = claude(NEXUS_LEASE_SECONDS="1", NEXUS_DERIVE_MAX_WAIT="0")
    say(*SAID)
    with perspective_locked(here):
        killed = here.worker()
        eventually(lambda: here.sql("SELECT 1 FROM saved_answers"))
        eventually(lambda: here.sql("SELECT 1 FROM pg_locks WHERE NOT granted"), why="the commit waits for the lock")
        killed.kill()
        assert here.sql("SELECT DISTINCT state, count(DISTINCT batch) FROM derivations GROUP BY 1") == [("wanted", 1)]
    assert facts() == []

    say("And I have a cat.")  # what comes meanwhile joins no batch that has been asked about
    here.worker()
    eventually(lambda: here.sql("SELECT 1 FROM derivations GROUP BY batch HAVING count(*) = 6 AND min(state) = 'done'"))
    asked = [call for call in standin.counters.requests if call.purpose == "derive"]
    assert len(asked) == 2
    assert "cat" not in asked[0].text
    assert "(context)" in asked[1].text
    assert sorted(fact.content for fact in facts()) == sorted(f"ann said: {t}" for t in (*SAID, "And I have a cat."))
    assert {fact.times_reinforced for fact in facts()} == {0}
    # A reflection may have an answer by now. No derivation has one.
    assert here.sql("SELECT * FROM saved_answers WHERE NOT jsonb_exists(answer, 'insights')") == []
    eventually(lambda: len(here.sql("SELECT 1 FROM job_runs WHERE kind = 'derive_memory'")) == 6)
    totals = "SELECT count(*), sum(model_calls), sum(cost_usd) FROM job_runs WHERE kind = 'derive_memory'"
    [(rows, calls, usd)] = here.sql(totals)
    assert (rows, calls) == (6, 2)
    assert [(usd,)] == here.sql("SELECT sum(cost_usd) FROM model_calls WHERE purpose = 'derive'")
    assert here.sql("SELECT 1 FROM dead_letters") == []


@pytest.mark.parametrize(
    ("kind", "module", "late_step"),
    [
        ("derive_memory", derive, "_embed"),
        ("digest_session", digesting, "_store"),
        ("reflect_perspective", reflecting, "_apply"),
    ],
)
def test_a_run_that_fails_after_its_answer_asks_for_nothing_again(
    claude: Claude, standin: StandIn, monkeypatch: pytest.MonkeyPatch, kind: str, module: Any, late_step: str
) -> None:
    here = claude()
    say(*SAID)
    if kind != "derive_memory":
        work("derive_memory")
        Nexus().digest(NAMESPACE, "chat")
        reflect_perspective.delay(namespace=NAMESPACE, observer="assistant", subject="ann")

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(module, late_step, broken)
        work(kind)
    assert {claim.errors for claim in waiting()} == {1}
    assert len(here.sql("SELECT 1 FROM saved_answers")) == 1
    time_passes(here)
    work(kind)
    assert standin.counters.purposes[kind.partition("_")[0]] == 1
    eventually(lambda: here.sql("SELECT * FROM saved_answers") == [], within=30, why="a saved answer is left")
    assert here.sql("SELECT sum(model_calls) FROM job_runs WHERE kind = :kind", kind=kind) == [(1,)]
    assert len(facts()) == 5


@pytest.mark.parametrize("committed", [False, True])
def test_an_answer_that_comes_while_postgres_is_away_for_a_moment_is_not_paid_for_again(
    claude: Claude, standin: StandIn, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    here = claude()
    say("I moved to Lisbon.")
    record, away = ledger.record_call_and_answer, [Transient("a deadlock"), StorageUnavailable()]

    def fails_at_first(tx: Transaction, *args: Any, **named: Any) -> bool:
        if not away:
            return record(tx, *args, **named)
        if committed:
            with here.deployment.database.transaction() as of_its_own:
                record(of_its_own, *args, **named)
        raise away.pop()

    monkeypatch.setattr(ledger, "record_call_and_answer", fails_at_first)
    work("derive_memory")
    assert (standin.counters.calls, len(facts())) == (1, 1)
    assert here.sql("SELECT count(*) FROM model_calls") == [(1,)]
    assert here.sql("SELECT 1 FROM budget_holds") == []


def test_what_comes_after_the_model_was_asked_waits_for_the_next_question(
    claude: Claude, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run dies between its answer and its commit; its rerun would otherwise ask about more, and pay again."""
    here = claude()
    say(*SAID)
    work("derive_memory")
    reflect_perspective.delay(namespace=NAMESPACE, observer="assistant", subject="ann")
    with monkeypatch.context() as patch:
        patch.setattr(reflecting, "_apply", lambda *_: 1 / 0)
        work("reflect_perspective")
    say("I sold my old piano.")
    work("derive_memory")
    time_passes(here)
    work("reflect_perspective")
    first, second = [call for call in standin.counters.requests if call.purpose == "reflect"]
    assert ("piano" in first.text, "piano" in second.text) == (False, True)
    assert here.sql("SELECT 1 FROM saved_answers UNION ALL SELECT 1 FROM open_questions") == []
    assert second.text.count("\nnew [") == 1, "only what is new"
    assert here.sql("SELECT reflected_through FROM perspectives") == [(max(fact.id for fact in facts()),)]


def test_of_a_digest_in_chunks_only_those_without_an_answer_are_asked_again(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_DIGEST_CHUNK_TOKENS="500")
    say(*(f"Chunk {i}: " + "word " * 350 for i in range(4)), observers=[])
    standin.when("Chunk 2", faults.overloaded())
    Nexus().digest(NAMESPACE, "chat")
    work()
    time_passes(here)
    work()
    assert [call.outcome for call in standin.counters.requests] == ["ok", "ok", "529", "529"]
    standin.heal()
    time_passes(here)
    work()
    # The two chunks that had none, and what merges all four.
    assert [call.outcome for call in standin.counters.requests] == ["ok", "ok", "529", "529", "ok", "ok", "ok"]
    eventually(lambda: here.sql("SELECT * FROM saved_answers") == [], within=30, why="a saved answer is left")
    assert here.sql("SELECT sum(model_calls) FROM job_runs") == [(5,)]


def test_an_answer_that_nobody_came_back_for_is_pruned(claude: Claude) -> None:
    here = claude()
    Nexus().create_namespace(NAMESPACE)
    for days in (29, 31):
        here.sql(
            "INSERT INTO saved_answers (namespace_id, request_hash, answer, created_at)"
            " SELECT id, :hash, '{}', now() - make_interval(days => :days) FROM namespaces",
            hash=f"after {days} days",
            days=days,
        )
    with default_deployment().database.transaction() as tx:
        assert pruning.prune(tx)["saved_answers"] == 1
    assert here.sql("SELECT request_hash FROM saved_answers") == [("after 29 days",)]


# --- the prompt cache -------------------------------------------------------------------------------------------------
def markers(call: Call) -> list[bool]:
    """Which blocks of a prompt close a prefix to cache: instructions, transcript, question."""
    return ["cache_control" in block for block in call.blocks]


def long_talk() -> list[str]:
    """Enough text that any model would cache it."""
    return [f"Story number {i}: " + "once upon a time " * 15 for i in range(70)]


LONG = {"NEXUS_DERIVE_BATCH_TOKENS": "20000", "NEXUS_DIGEST_CHUNK_TOKENS": "20000", "NEXUS_REFLECT_MIN_NEW": "9999"}


@pytest.mark.parametrize("model", ["claude-haiku-5-5", "claude-sonnet-5-5"])
def test_a_second_observer_reads_the_transcript_from_the_cache(claude: Claude, standin: StandIn, model: str) -> None:
    here = claude(NEXUS_MODEL_DERIVE=model, **LONG)
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"])
    standin.answer("derive", answers())
    say(*long_talk())
    work("derive_memory")
    first, second = standin.counters.requests
    assert [block["text"] for block in first.blocks[:2]] == [block["text"] for block in second.blocks[:2]]
    assert first.parts[-1] != second.parts[-1]
    assert markers(first) == markers(second) == [False, True, False]
    assert first.usage["cache_read_input_tokens"] == 0
    assert second.usage["cache_read_input_tokens"] == first.usage["cache_creation_input_tokens"] > 4_000
    assert second.usage["cache_creation_input_tokens"] == 0
    ledger = here.sql("SELECT cache_write_tokens > 0, cache_read_tokens > 0, cost_usd FROM model_calls ORDER BY id")
    assert [row[:2] for row in ledger] == [(True, False), (False, True)]
    assert ledger[1][2] < ledger[0][2] / 5


def test_what_nobody_else_reads_is_not_written_to_the_cache(claude: Claude, standin: StandIn) -> None:
    """A cache write costs a quarter more than plain input."""
    here = claude(**LONG | {"NEXUS_REFLECT_MIN_NEW": "5"})
    say(*long_talk())
    work("derive_memory", "reflect_perspective")
    say(*long_talk(), session="raw", observers=[])
    Nexus().digest(NAMESPACE, "raw")
    work()
    assert {call.purpose for call in standin.counters.requests} == {"derive", "reflect", "digest"}
    for call in standin.counters.requests:
        assert not any(markers(call)), call.purpose
    assert here.sql("SELECT sum(cache_write_tokens) FROM model_calls") == [(0,)]
