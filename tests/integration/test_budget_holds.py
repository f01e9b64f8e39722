"""Money that is held for a model call comes free when the call ends, and wakes the jobs that wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nexus_tasks import Nexus, digest_session
from nexus_tasks.cognition import budget
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.worker.orphans import give_back
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.outbox import PostgresJobStorage
from nexus_tasks.storage import ledger
from nexus_tasks.tasks import follow_ups
from tests.integration.inline import (
    NAMESPACE,
    facts,
    job_context,
    pending,
    say,
    time_passes,
    waiting,
    work,
    work_as_asked,
)
from tests.sandbox import Sandbox, engine, eventually
from tests.standin import StandIn

Claude = Callable[..., Sandbox]
DEAD = "dead-1"  # the token of a run whose process dies
ASKED: Any = None  # a request that nothing reads
SESSIONS = 8
# The highest cost of a derivation is about 0.002 USD here, so three calls fit beside each other.
SMALL = {"NEXUS_BUDGET_USD_PER_DAY": "0.007", "NEXUS_MAX_TOKENS_DERIVE": "4000"}


def reasons() -> list[str]:
    return sorted(claim.wait_reason for claim in waiting() if claim.kind == "derive_memory")


def holds(here: Sandbox) -> int:
    return int(here.sql("SELECT count(*) FROM budget_holds")[0][0])


def remembers(many: int) -> bool:
    return len(facts()) == many


@pytest.mark.long
def test_jobs_that_other_calls_keep_from_the_budget_go_on_as_soon_as_these_end(
    claude: Claude, standin: StandIn
) -> None:
    here = claude(**SMALL)
    standin.latency = 1.0
    for number in range(SESSIONS):
        say(f"I moved to house {number}.", session=f"chat {number}", end=True)
    here.worker(concurrency=8)
    eventually(lambda: remembers(SESSIONS), within=40, why="jobs sleep although no money is held")
    eventually(lambda: holds(here) == 0, within=20)
    assert here.sql("SELECT sum(cost_usd) < 0.007 FROM model_calls") == [(True,)]


@pytest.mark.long
def test_a_worker_that_is_killed_in_mid_call_takes_no_money_with_it(claude: Claude, standin: StandIn) -> None:
    # Only one call fits into the budget at a time.
    here = claude(**SMALL | {"NEXUS_BUDGET_USD_PER_DAY": "0.003"}, NEXUS_LEASE_SECONDS="3")
    standin.latency = 60.0
    say("I moved to Lisbon.", end=True)
    say("I drink green tea.", session="other", end=True)
    worker = here.worker()
    eventually(lambda: standin.counters.calls > 0 and holds(here) == 1, within=30)
    worker.kill()
    standin.latency = 0.0
    killed = time.monotonic()
    here.worker()
    eventually(lambda: remembers(2), within=40, why="the dead call's money is held still")
    assert time.monotonic() - killed < 40
    eventually(lambda: holds(here) == 0, within=20)
    assert here.sql("SELECT 1 FROM dead_letters") == []


# --- without a worker -------------------------------------------------------------------------------------------------
def hold(here: Sandbox, usd: str, *, claim_key: str = "", token: str = "") -> int:
    """Hold money, as another call does."""
    [(acme,)] = here.sql("SELECT id FROM namespaces")
    with default_deployment().database.transaction() as tx:
        held = ledger.hold_budget(tx, acme, budget_usd=1.0, cost=Decimal(usd), seconds=60, run=(claim_key, token))
    assert held.id is not None
    return held.id


def spend(here: Sandbox, usd: str) -> None:
    """Spend money of today's budget, as a model call does."""
    here.sql(
        "INSERT INTO model_calls (namespace_id, job_id, purpose, model, input_tokens, output_tokens,"
        " cache_write_tokens, cache_read_tokens, cost_usd, seconds)"
        f" SELECT id, 'x', 'derive', 'm', 1, 1, 0, 0, {usd}, 1 FROM namespaces"
    )


def test_held_and_spent_are_two_reasons(claude: Claude) -> None:
    here = claude(NEXUS_BUDGET_USD_PER_DAY="1")
    say("I moved to Lisbon.")
    held = hold(here, "1")
    work("derive_memory")
    [claim] = [claim for claim in waiting() if claim.kind == "derive_memory"]
    assert claim.wait_reason == "held"
    assert claim.wait_detail.startswith("0.0000 of 1.0000 USD spent, 1.0000 held")
    assert claim.due_at is not None
    assert 50 < claim.due_at - default_deployment().claims.now() < 65, "when the hold expires"
    spend(here, "1")
    follow_ups.wake_held(default_deployment(), NAMESPACE)
    work("derive_memory")
    assert reasons() == ["budget"]
    with default_deployment().database.transaction() as tx:
        ledger.release_hold(tx, held)


def test_a_raised_budget_wakes_what_waits_for_held_money(claude: Claude) -> None:
    here = claude(NEXUS_BUDGET_USD_PER_DAY="1")
    say("I moved to Lisbon.")
    hold(here, "1")
    work("derive_memory")
    Nexus().set_namespace(NAMESPACE, budget_usd_per_day=2)
    work("derive_memory")
    assert remembers(1)


def dies_in_its_call(here: Sandbox, usd: str) -> None:
    """A run of a derivation holds money for its call, and its process dies."""
    say("I moved to Lisbon.", session="dead", end=True)
    [claim] = [claim for claim in pending() if claim.kind == "derive_memory"]
    kind = engine.kind(claim.kind)
    request = kind.request_for(kind.load(claim.args), job_id=claim.job_id)
    _, run, _ = engine.claims.begin(request, DEAD, lease=10.0, cap=16, gathers=False, published_at="")
    assert run is not None
    hold(here, usd, claim_key=run.key, token=DEAD)


def waits_for_it(*, of: int = 1) -> None:
    """Another job waits for the money."""
    say("I drink green tea.", session="alive", end=True)
    work("derive_memory")
    assert reasons() == ["held"] * of


def test_a_dead_run_s_money_is_given_back_with_its_claim(claude: Claude) -> None:
    here = claude(NEXUS_BUDGET_USD_PER_DAY="1")
    dies_in_its_call(here, "1")
    waits_for_it()
    Reconciler(engine).round()
    assert (holds(here), reasons()) == (1, ["held"]), "it may live"
    give_back(engine, DEAD)
    assert (holds(here), reasons()) == (0, [])
    work("derive_memory")
    assert remembers(2)


def test_a_run_is_not_kept_waiting_by_the_money_of_its_own_dead_run(
    claude: Claude, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = claude(NEXUS_BUDGET_USD_PER_DAY="1")
    dies_in_its_call(here, "1")
    monkeypatch.setattr(PostgresJobStorage, "release_ended_runs", lambda _: iter(()))
    give_back(engine, DEAD)
    assert holds(here) == 1
    work("derive_memory")
    assert (remembers(1), holds(here)) == (True, 0)


def test_reconcile_gives_back_what_a_dead_sweep_has_not(claude: Claude, monkeypatch: pytest.MonkeyPatch) -> None:
    here = claude(NEXUS_BUDGET_USD_PER_DAY="1")
    dies_in_its_call(here, "1")
    waits_for_it()
    with monkeypatch.context() as patch:
        patch.setattr(PostgresJobStorage, "release_ended_runs", lambda _: iter(()))
        give_back(engine, DEAD)
    assert (holds(here), reasons()) == (1, ["held"])
    Reconciler(engine).round()
    assert (holds(here), reasons()) == (0, [])


@pytest.mark.parametrize("step", ["wake_held", "release_hold"])
def test_a_run_that_dies_before_it_wakes_the_others_leaves_no_sleeper(
    claude: Claude, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    here = claude(NEXUS_BUDGET_USD_PER_DAY="1")
    dies_in_its_call(here, "1")
    waits_for_it()
    [(held,)] = here.sql("SELECT id FROM budget_holds")
    context = replace(job_context(), budget=lambda: 1.0)
    if step == "wake_held":
        context = replace(context, freed=lambda: 1 / 0)
    else:
        monkeypatch.setattr(ledger, "release_hold", lambda *_: 1 / 0)
    monkeypatch.setattr(budget, "highest_cost", lambda *_: Decimal(1))
    monkeypatch.setattr(budget, "_refuse_without_price", lambda *_: None)
    monkeypatch.setattr(budget, "_hold", lambda *_, **__: held)
    with pytest.raises(ZeroDivisionError), budget.hold_for_call(default_deployment().resources, context, ASKED):
        pass
    monkeypatch.undo()
    assert (holds(here), reasons()) == (1, ["held"])
    Reconciler(engine).round()
    assert (holds(here), reasons()) == (0, []), "the claim of the run itself is still running"


def test_a_flushed_redis_gives_no_money_back(claude: Claude) -> None:
    """The run may go on: its next heartbeat writes its claim again."""
    here = claude(NEXUS_BUDGET_USD_PER_DAY="1")
    dies_in_its_call(here, "1")
    here.flush()
    Reconciler(engine).round()
    assert holds(here) == 1


def test_a_job_that_is_over_the_budget_wakes_the_cheaper_job_behind_it(claude: Claude) -> None:
    # A namespace runs one job at a time, so the end of a call wakes only the first job that waits.
    here = claude(NEXUS_BUDGET_USD_PER_DAY="1", NEXUS_NAMESPACE_CONCURRENCY="1", NEXUS_MAX_TOKENS_DERIVE="1000")
    say("I moved to Lisbon. " * 800, session="dear")  # its call may cost 0.0009 USD
    held = hold(here, "1")
    work("derive_memory")
    say("I drink green tea.", session="cheap")  # its call may cost 0.0006 USD
    work("derive_memory")
    assert reasons() == ["held", "held"]
    spend(here, "0.9992")
    with default_deployment().database.transaction() as tx:
        ledger.release_hold(tx, held)
    follow_ups.wake_held(default_deployment(), NAMESPACE)
    work("derive_memory")
    assert reasons() == ["budget"]
    assert remembers(1), "the cheaper job sleeps although its call fits the budget"


def test_a_call_that_does_not_fit_beside_a_batch_leaves_the_wake_ups_to_cheaper_ones(
    claude: Claude, standin: StandIn
) -> None:
    """Before, the oldest jobs got every wake-up, and cheap ones behind them slept although there was money."""
    standin.batch_delay = None
    here = claude(
        NEXUS_BUDGET_USD_PER_DAY="0.01",
        NEXUS_BATCH_THRESHOLD="2",
        NEXUS_MAX_TOKENS_DERIVE="4000",
        NEXUS_MAX_TOKENS_DIGEST="10000",
        NEXUS_NAMESPACE_CONCURRENCY="1",
    )

    def waits() -> dict[str, str]:
        told = {claim.args.get("session_key", claim.kind): claim.wait_reason for claim in waiting()}
        return {name: reason for name, reason in told.items() if reason != "batch"}

    for session in ("dear", "one", "two"):
        say("I moved to Lisbon.", session=session, observers=[])
    live = hold(here, "0.009")
    Nexus().digest(NAMESPACE, "dear")
    work("digest_session")
    say("I drink tea.", session="cheap")
    work("derive_memory")
    assert waits() == {"dear": "held", "derive_memory": "held"}
    here.sql("DELETE FROM budget_holds WHERE id = :id", id=live)
    for session in ("one", "two"):
        digest_session.delay(namespace=NAMESPACE, session_key=session, reason="dream_digest")
    work_as_asked()
    assert holds(here) == 2
    follow_ups.wake_held(default_deployment(), NAMESPACE)
    assert [claim.kind for claim in pending()] == ["digest_session"]
    work("digest_session", "derive_memory")
    assert len(facts()) == 1, "the cheap job sleeps although there is money"
    assert waits() == {"dear": "reserved"}
    standin.end_batches()
    here.sql("UPDATE message_batches SET due_at = now()")
    time_passes(here)
    work_as_asked()
    assert waits() == {}
    assert here.sql("SELECT count(*) FROM sessions WHERE digest_end_seq = last_seq") == [(3,)]
