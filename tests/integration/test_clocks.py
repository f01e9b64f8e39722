"""Machines whose clocks are days wrong, among others: what is due, lost or given up goes by the time of Redis."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Nexus, digest_session
from nexus_tasks.cognition import derive
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import Permanent
from nexus_tasks.idempotency.claim import Claimed
from nexus_tasks.idempotency.worker.executor import perform, run_of
from nexus_tasks.settings import load_settings
from nexus_tasks.storage import ledger, namespaces
from nexus_tasks.tasks import ticks
from tests.integration import inline
from tests.integration.claiming import Bench
from tests.integration.jobkinds import Play, attempts, play, work
from tests.sandbox import Sandbox, engine

DAY = 86_400.0

pytestmark = [
    pytest.mark.usefixtures("here"),
    pytest.mark.parametrize("wrong", [-2 * DAY, 2 * DAY], ids=["late", "early"]),
]


@pytest.fixture
def bench(here: Sandbox) -> Bench:  # noqa: ARG001
    Nexus().create_namespace("acme")
    return Bench(engine.claims)


def clock_is(patch: pytest.MonkeyPatch, wrong: float) -> None:
    """From now on this process is a machine whose clock is wrong by so many seconds."""
    right = time.time
    patch.setattr(time, "time", lambda: right() + wrong)

    class AnyDatetime(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

    class Wrong(datetime, metaclass=AnyDatetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=wrong)

    for name, module in list(sys.modules.items()):
        if name.startswith("nexus_tasks") and getattr(module, "datetime", None) is datetime:
            patch.setattr(module, "datetime", Wrong)


def test_producers_whose_clocks_disagree_mean_the_same_moments(bench: Bench, wrong: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock_is(patch, wrong)
        play.apply_async(kwargs={"name": "later"}, countdown=3_600)
        play.delay(name="now")
    assert play.apply_async(kwargs={"name": "later"}, countdown=7_200).outcome is Claimed.MERGED
    bench.jump(3_000)
    assert bench.sweep_due() == []
    now = bench.claims.get(bench.claims.key(play.request_for(Play(name="now"))))
    assert now is not None
    assert now.state == "pending"
    assert abs(bench.claims.now() - now.enqueued_at) < DAY / 2
    bench.jump(700)
    [due] = bench.sweep_due()
    assert due.args["name"] == "later"
    work()
    assert len(attempts("now")) == len(attempts("later")) == 1


def test_a_worker_whose_clock_is_wrong_gives_nothing_up_too_early(
    here: Sandbox, bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    play.delay(plan=("transient", "transient", "ok"))
    work()
    clock_is(monkeypatch, wrong)
    for _ in range(2):
        bench.jump(600)
        assert len(bench.sweep_due()) == 1
        work()
    assert len(attempts()) == 3
    assert here.sql("SELECT count(*) FROM dead_letters") == [(0,)]
    assert bench.claims.counts("acme") == {}


def test_whoever_waits_hears_of_runs_that_began_after_he_asked(
    here: Sandbox, bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    def ask() -> Any:
        return digest_session.delay(namespace="acme", session_key="s", reason="manual_digest")

    inline.say("I moved to Lisbon.", session="s")
    ask()
    inline.work("digest_session")
    bench.jump(1)  # two runs of one millisecond would be one to the claims' clock
    here.sql("UPDATE job_runs SET started_at = started_at - interval '1 s'")
    clock_is(monkeypatch, wrong)
    asked = ask()
    here.flush()  # the job is lost, and with it what it was asked for
    assert asked.poll() is None, "the run of before cannot know of it"
    ask()
    inline.work("digest_session")
    assert asked.wait(5).status == "unchanged"


def test_a_message_waits_for_company_as_long_as_it_says(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    [memory] = inline.say("I moved to Lisbon.")
    clock_is(monkeypatch, wrong)

    def wait() -> float:
        with default_deployment().database.transaction() as tx:
            acme = namespaces.get(tx, "acme")
            return derive.plan_derivation(tx, load_settings(), acme.id, memory, "assistant").wait

    here.sql("UPDATE memories SET created_at = now() - interval '4 s'")
    assert 0 < wait() <= 6
    here.sql("UPDATE memories SET created_at = now() - interval '11 s'")
    assert wait() == 0
    here.sql("UPDATE memories SET created_at = now() + interval '1 h'")  # and the clock of Postgres was set back
    assert wait() == 0


def test_a_digest_waits_for_derivations_five_minutes(
    here: Sandbox, bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    inline.say("I moved to Lisbon.", session="s")
    asked = digest_session.request_for(digest_session.kind.arguments(namespace="acme", session_key="s"))
    bench.claims.claim([asked])
    clock_is(monkeypatch, wrong)

    def attempt() -> str:
        claim = bench.run(asked, claim=False)
        perform(engine, digest_session.kind, run_of(engine, digest_session.kind, claim, asked))
        found = bench.claims.get(claim.key)
        return found.wait_reason if found else "ended"

    assert attempt() == "derivation"
    bench.jump(301)
    bench.sweep_due()
    assert attempt() == "ended"
    assert here.sql("SELECT count(*) FROM job_runs") == [(1,)]


def test_reconcile_leaves_a_digest_to_its_derivations_for_a_while(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    inline.say("I moved to Lisbon.", session="s", end=True)
    clock_is(monkeypatch, wrong)

    assert "digest_session" not in inline.wanted()
    here.sql("UPDATE digest_requests SET created_at = now() - interval '6 minutes'")
    assert "digest_session" in inline.wanted()


@pytest.mark.usefixtures("bench")
def test_a_budget_is_for_a_day_of_postgres(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    clock_is(monkeypatch, wrong)
    with default_deployment().database.transaction() as tx:
        acme = namespaces.get(tx, "acme").id
        call = text(
            "INSERT INTO model_calls (namespace_id, job_id, purpose, model, input_tokens, output_tokens,"
            " cache_write_tokens, cache_read_tokens, cost_usd, seconds, at)"
            " VALUES (:acme, '1', 'derive', 'm', 1, 1, 0, 0, 1, 1, now() - make_interval(hours => :ago))"
        )
        for hours in (0, 25):
            tx.execute(call, {"acme": acme, "ago": hours})
        assert ledger.spent_today(tx, namespace_id=acme)[0] == 1
        first = ledger.hold_budget(tx, acme, budget_usd=3, cost=Decimal(2), seconds=60).id
        second = ledger.hold_budget(tx, acme, budget_usd=3, cost=Decimal(2), seconds=60).id
        assert first is not None
        assert second is None


@pytest.mark.usefixtures("bench")
def test_rows_are_as_old_as_the_clock_of_postgres_says(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    clock_is(monkeypatch, wrong)
    with default_deployment().database.transaction() as tx:
        acme = namespaces.get(tx, "acme").id
        for days in (29, 31):
            row = {"acme": acme, "hash": str(days), "days": days}
            at = "now() - make_interval(days => :days)"
            answer = "INSERT INTO saved_answers (namespace_id, request_hash, answer, created_at)"
            tx.execute(text(f"{answer} VALUES (:acme, :hash, '{{}}', {at})"), row)
            hold = "INSERT INTO budget_holds (namespace_id, cost_usd, claim_key, expires_at)"
            tx.execute(text(f"{hold} VALUES (:acme, 1, :hash, {at})"), row)
    ticks.prune(default_deployment())
    with default_deployment().database.transaction() as tx:
        assert tx.scalars(text("SELECT request_hash FROM saved_answers")).all() == ["29"]
        assert tx.scalars(text("SELECT claim_key FROM budget_holds")).all() == ["29"]


def test_a_letter_is_closed_at_the_time_of_postgres(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    inline.say("I drink green tea.")
    [claim] = inline.pending()
    engine.storage.dead_letter(claim, Permanent("never"))
    clock_is(monkeypatch, wrong)
    Nexus().drop_job(claim.job_id)
    assert here.sql("SELECT abs(extract(epoch FROM now() - resolved_at)) < 60 FROM dead_letters") == [(True,)]


def test_a_slot_is_one_of_redis(bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    clock_is(monkeypatch, wrong)
    assert ticks._first_in_slot(default_deployment(), "prune")
    [slot] = [key.rpartition(":")[2] for key in bench.client.scan_iter(f"{bench.claims.prefix}:tick:prune:*")]
    assert abs(int(slot) - bench.claims.now() // 3_600) <= 1


def test_status_says_how_old_a_message_is(bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    Nexus().remember("acme", "Deploys happen on Tuesdays.")
    clock_is(monkeypatch, wrong)
    [found] = Nexus().status("acme").namespaces
    assert found.oldest_underived_seconds == pytest.approx(0, abs=120)
    assert bench.claims.counts("acme")


def test_status_says_when_a_job_is_due(bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    play.apply_async(kwargs={}, countdown=3_600)
    clock_is(monkeypatch, wrong)
    [found] = Nexus().status("acme").namespaces
    [wait] = found.waits
    assert wait.due_in_seconds == pytest.approx(3_600, abs=120)
    assert bench.claims.counts("acme") == {"waiting": 1}
