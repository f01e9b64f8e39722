"""What becomes of a job when Claude does not answer, or answers badly: the table "Errors" of ``docs/jobs.md``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from nexus_tasks import Nexus, reflect_perspective
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import JobFailed, NotFound
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from tests.integration.inline import NAMESPACE, due_at_once, facts, say, time_passes, waiting, work
from tests.sandbox import Sandbox, engine, eventually
from tests.standin import Call, Fault, StandIn, faults

Claude = Callable[..., Sandbox]
SAID = (
    "I moved to Lisbon.",
    "I drink green tea.",
    "My sister is called Rosa.",
    "I work as a nurse.",
    "I run on Sundays.",
)


def ask_for(kind: str) -> JobResult | None:
    """Ask for a job of ``kind`` after everything that it needs has been done without a fault."""
    say(*SAID)
    if kind == "derive_memory":
        return None
    work("derive_memory")
    assert len(facts()) == 5
    if kind == "digest_session":
        return Nexus().digest(NAMESPACE, "chat")
    return reflect_perspective.delay(namespace=NAMESPACE, observer="assistant", subject="ann")


def calls(here: Sandbox, kind: str) -> list[tuple[str, int]]:
    """The ledger's calls of a job kind, in order: each one's fault, and whether it says what was used."""
    purpose = kind.partition("_")[0]
    rows = here.sql("SELECT fault, output_tokens FROM model_calls WHERE purpose = :p ORDER BY id", p=purpose)
    return [(fault, output > 0) for fault, output in rows]


def letters(here: Sandbox) -> list[tuple[Any, ...]]:
    """Open dead letters: kind, type of the error, its count of errors."""
    return here.sql("SELECT kind, error_type, errors FROM dead_letters WHERE resolution IS NULL ORDER BY id")


def effects(here: Sandbox) -> list[tuple[Any, ...]]:
    """What jobs have made, and what is wanted still."""
    return [
        *here.sql(
            "SELECT id, level, content, times_reinforced, valid_to FROM memories WHERE level <> 'raw' ORDER BY id"
        ),
        *here.sql("SELECT state, memory_id FROM derivations ORDER BY memory_id"),
        *here.sql("SELECT reflected_through FROM perspectives ORDER BY id"),
        *here.sql("SELECT memory_id, source_id, role FROM evidence ORDER BY 1, 2, 3"),
    ]


def test_facts_digest_and_reflection_come_from_claude(claude: Claude, standin: StandIn) -> None:
    here = claude()
    say(*SAID, end=True)
    work()
    assert len(facts()) == 5
    assert {memory.made_by for memory in Nexus().memories(NAMESPACE) if memory.made_by} == {"claude-haiku-5-5"}
    assert standin.counters.purposes == {"derive": 1, "digest": 1, "reflect": 1}
    ledger = here.sql("SELECT purpose, model, fault, cost_usd > 0, seconds > 0 FROM model_calls ORDER BY purpose")
    assert ledger == [
        ("derive", "claude-haiku-5-5", "", True, True),
        ("digest", "claude-haiku-5-5", "", True, True),
        ("reflect", "claude-sonnet-5-5", "", True, True),
    ]
    # A batch is paid for once: with its first job.
    assert sorted(here.sql("SELECT kind, model_calls FROM job_runs")) == [
        *[("derive_memory", 0)] * 4,
        ("derive_memory", 1),
        ("digest_session", 1),
        ("reflect_perspective", 1),
    ]
    assert here.sql("SELECT * FROM saved_answers") == []


def test_no_transaction_is_open_while_a_model_or_an_embedder_works(
    claude: Claude, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may be slow and far away: meanwhile no lock is held, and no connection of the pool."""
    here = claude(NEXUS_REFLECT_MIN_NEW="5")
    engine = create_engine(here.database_url, isolation_level="AUTOCOMMIT")
    embedder = default_deployment().resources.embedder
    seen: list[int] = []

    def look() -> None:
        query = text("SELECT count(*) FROM pg_stat_activity WHERE datname = :d AND state LIKE 'idle in transaction%'")
        with engine.connect() as connection:
            seen.append(connection.execute(query, {"d": here.database_name}).scalar_one())

    class Watched:
        name = embedder.name

        def embed(self, texts: Sequence[str]) -> Any:
            look()
            return embedder.embed(texts)

    def judged(_: Call) -> Any:
        look()
        pairs = [("reinforces", "both"), ("contradicts", "new"), ("contradicts", "both"), ("duplicate", "both")]
        ids = [fact.id for fact in facts()]
        relations = [
            {"kind": kind, "new_id": ids[i + 1], "old_id": ids[i], "holds": holds, "rationale": "because"}
            for i, (kind, holds) in enumerate(pairs)
        ]
        return {
            "relations": relations,
            "insights": [{"content": "So.", "support": [ids[0], *ids[2:]], "rationale": "because"}],
        }

    monkeypatch.setitem(
        default_deployment().__dict__, "resources", replace(default_deployment().resources, embedder=Watched())
    )
    standin.answer("reflect", judged)
    say(*SAID, end=True)
    done = {one["kind"]: one for one in work()}
    reflected = done["reflect_perspective"]
    counted = ("contradictions", "reinforced", "merged", "insights")
    assert [reflected[name] for name in counted] == [2, 1, 1, 1]
    # The embedder is asked by each of the three jobs, and twice or, for near facts that are not new, three times by the
    # reflection. The model is watched once.
    assert len(seen) in (5, 6)
    assert not any(seen)
    assert here.sql("SELECT count(*) FROM embeddings")[0] == here.sql("SELECT count(*) FROM memories")[0]
    engine.dispose()


# --- errors that pass -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "fault", "reason", "soonest", "latest"),
    [
        pytest.param("derive_memory", faults.throttled("7"), "throttle", 7, 7, id="derive: 429"),
        pytest.param("derive_memory", faults.throttled(None, milliseconds="20500"), "throttle", 20.5, 20.5, id="in ms"),
        pytest.param("derive_memory", faults.overloaded(), "retry", 0, 2, id="derive: 529"),
        pytest.param("derive_memory", faults.server_error(500), "retry", 0, 2, id="derive: 500"),
        pytest.param("derive_memory", faults.slow(3), "retry", 0, 2, id="derive: timeout"),
        pytest.param("derive_memory", faults.cut(), "retry", 0, 2, id="derive: cut"),
        pytest.param("digest_session", faults.throttled("7"), "throttle", 7, 7, id="digest: 429"),
        pytest.param("digest_session", faults.overloaded(), "retry", 0, 2, id="digest: 529"),
        pytest.param("reflect_perspective", faults.throttled("7"), "throttle", 7, 7, id="reflect: 429"),
        pytest.param("reflect_perspective", faults.cut(), "retry", 0, 2, id="reflect: cut"),
    ],
)
def test_a_passing_error_waits_and_is_not_counted(
    claude: Claude, standin: StandIn, kind: str, fault: Fault, reason: str, soonest: float, latest: float
) -> None:
    here = claude(NEXUS_MODEL_TIMEOUT="0.4")
    ask_for(kind)
    before, ledger = effects(here), calls(here, kind)
    standin.faults.append(fault)

    work(kind)
    claims = waiting()
    assert len(claims) == (5 if kind == "derive_memory" else 1)  # a batch waits as one
    for claim in claims:
        assert (claim.kind, claim.wait_reason) == (kind, reason)
        assert (claim.errors, claim.crashes) == (0, 0)
        assert claim.due_at is not None
        assert soonest - 2 <= claim.due_at - time.time() <= latest + 0.5  # less what the test has taken since
    assert effects(here) == before
    assert calls(here, kind) == ledger  # nothing returned, so nothing is in the ledger
    assert letters(here) == []
    assert Nexus().status().paused == ()
    [seen] = {(wait.kind, wait.reason) for wait in Nexus().status(NAMESPACE).namespaces[0].waits}
    assert seen == (kind, reason)

    assert time_passes(here) == len(claims)
    work(kind)
    assert waiting() == []
    assert len(facts()) == 5
    assert calls(here, kind) == [*ledger, ("", True)]
    assert here.sql("SELECT DISTINCT status FROM job_runs") == [("completed",)]


def test_an_outage_of_an_hour_loses_no_job_and_one_of_a_day_ends_in_dead_letters(
    claude: Claude, standin: StandIn
) -> None:
    """The hour is written into the claims (``failing_since``) instead of waited for; see ``time_passes``."""
    here = claude()
    say(*SAID)
    standin.always(faults.overloaded())
    work()
    for minutes in range(5, 61, 5):
        assert time_passes(here, failing=60 * minutes) == 5
        work()
        assert [(claim.wait_reason, claim.errors) for claim in waiting()] == [("retry", 0)] * 5
        assert all((claim.due_at or 0) - time.time() <= 300 for claim in waiting())  # however often it failed
    assert letters(here) == []

    assert time_passes(here, failing=24 * 3600 - 60) == 5
    work()
    assert letters(here) == []
    assert time_passes(here, failing=24 * 3600 + 60) == 5
    work()
    assert letters(here) == [("derive_memory", "Transient", 1)] * 5
    assert waiting() == []
    assert facts() == []
    assert here.sql("SELECT DISTINCT state FROM derivations") == [("dead",)]

    standin.heal()
    for (job_id,) in here.sql("SELECT job_id FROM dead_letters"):
        Nexus().retry_job(job_id)
    work()
    assert len(facts()) == 5
    assert letters(here) == []


# --- answers that are worth nothing -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "fault", "entered"),
    [
        pytest.param("derive_memory", faults.truncated(), "truncated", id="derive: truncated"),
        pytest.param("derive_memory", faults.invalid_json(), "invalid", id="derive: no JSON"),
        pytest.param("derive_memory", faults.schema_violation(), "invalid", id="derive: another schema"),
        pytest.param("digest_session", faults.truncated(), "truncated", id="digest: truncated"),
        pytest.param("reflect_perspective", faults.schema_violation(), "invalid", id="reflect: another schema"),
    ],
)
def test_an_invalid_answer_is_counted_and_a_dead_letter_after_max_attempts(
    claude: Claude, standin: StandIn, kind: str, fault: Fault, entered: str
) -> None:
    here = claude()
    if kind == "derive_memory":
        say("I moved to Lisbon.")
    else:
        ask_for(kind)
    before, ledger = effects(here), calls(here, kind)
    standin.always(fault)
    for attempt in range(1, 5):
        work(kind)
        [claim] = waiting()
        assert (claim.wait_reason, claim.errors, claim.wait_detail) == ("retry", attempt, "InvalidAnswer")
        assert calls(here, kind) == [*ledger, *[(entered, True)] * attempt]  # paid for, whatever it was worth
        time_passes(here)
    work(kind)
    assert letters(here) == [(kind, "InvalidAnswer", 5)]
    assert waiting() == []
    if kind != "derive_memory":
        assert effects(here) == before
    assert len(facts()) == (0 if kind == "derive_memory" else 5)
    assert here.sql("SELECT * FROM saved_answers") == []  # an invalid answer is never used again

    assert Reconciler(engine).round() == 0  # it stays dead
    standin.heal()
    [(job_id,)] = here.sql("SELECT job_id FROM dead_letters")
    again = Nexus().retry_job(job_id)
    with pytest.raises(NotFound):
        Nexus().retry_job(job_id)  # twice enqueues once
    work(kind)
    assert again.wait(60).status == "completed"
    assert letters(here) == []
    assert calls(here, kind) == [*ledger, *[(entered, True)] * 5, ("", True)]


@pytest.mark.parametrize(
    ("kind", "fault", "type", "entered"),
    [
        pytest.param("derive_memory", faults.refused(), "Refused", ["refused"], id="derive: refused"),
        pytest.param("derive_memory", faults.too_large(), "TooLarge", [], id="derive: 413"),
        pytest.param("derive_memory", faults.prompt_too_long(), "TooLarge", [], id="derive: 400 too long"),
        pytest.param("derive_memory", faults.status(400, "x", "Blocked."), "Permanent", [], id="derive: 400"),
        pytest.param("digest_session", faults.refused(), "Refused", ["refused"], id="digest: refused"),
        pytest.param("reflect_perspective", faults.refused(), "Refused", ["refused"], id="reflect: refused"),
    ],
)
def test_what_can_never_succeed_is_a_dead_letter_at_once(
    claude: Claude, standin: StandIn, kind: str, fault: Fault, type: str, entered: list[str]
) -> None:
    here = claude()
    if kind == "derive_memory":
        say("I moved to Lisbon.")
    else:
        ask_for(kind)
    before, ledger = effects(here), calls(here, kind)
    standin.always(fault)
    work(kind)
    assert [(k, t) for k, t, _ in letters(here)] == [(kind, type)]
    assert waiting() == []
    if kind != "derive_memory":
        assert effects(here) == before
    assert [fault for fault, _ in calls(here, kind)[len(ledger) :]] == entered
    [(job_id, message)] = here.sql("SELECT job_id, message FROM dead_letters")
    assert Nexus().job(job_id).error_type == type
    assert "nexus jobs" in message  # the remedy

    standin.heal()
    again = Nexus().retry_job(job_id)
    work(kind)
    assert again.wait(60).status == "completed"


def test_whoever_waits_for_a_dead_job_is_told(claude: Claude, standin: StandIn) -> None:
    claude()
    say(*SAID)
    work()
    standin.always(faults.refused())
    job = Nexus().digest(NAMESPACE, "chat", rebuild=True)
    work()
    with pytest.raises(JobFailed, match="refused to answer"):
        job.wait(60)


# --- what an operator must put right ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fault", [faults.unauthorized(), faults.forbidden(), faults.not_found()], ids=["401", "403", "404"]
)
def test_bad_credentials_pause_the_kind_until_it_is_resumed(claude: Claude, standin: StandIn, fault: Fault) -> None:
    here = claude()
    say(*SAID)
    standin.always(fault)
    work()
    [pause] = Nexus().status().paused
    assert pause.kind == "derive_memory"
    assert "nexus jobs resume" in pause.reason
    assert [(c.wait_reason, c.errors, c.crashes) for c in waiting()] == [("pause", 0, 0)] * 5
    assert standin.counters.calls == 1

    say("And I have a cat.", session="later")  # what comes meanwhile waits without asking
    work()
    assert {claim.wait_reason for claim in waiting()} == {"pause"}
    assert time_passes(here) == 0  # only the end of the pause wakes a job that waits for it
    work()
    assert standin.counters.calls == 1
    assert letters(here) == []

    standin.heal()
    assert Nexus().resume_jobs() == ("derive_memory",)
    work()
    assert waiting() == []
    assert len(facts()) == 6
    assert calls(here, "derive_memory") == [("", True)] * 2
    assert letters(here) == []


@pytest.mark.parametrize(
    "body", ["<html>Blocked by policy.</html>", '{"statusCode": 403, "message": "Blocked by policy."}']
)
def test_a_firewall_that_refuses_one_message_stops_no_other(claude: Claude, standin: StandIn, body: str) -> None:
    """Before, a gateway's JSON paused the kind for all namespaces, again after each probe."""
    here = claude()
    say(*SAID[:2], "The firewall objects to this.", *SAID[2:])
    say("I moved to Oslo.", namespace="other")
    standin.when("firewall objects", faults.status(403, "", "", body=body))
    work()
    assert letters(here) == [("derive_memory", "Refused", 1)]
    [(message,)] = here.sql("SELECT message FROM dead_letters")
    assert "Blocked by policy" in message
    assert "nexus jobs retry --error Refused" in message
    assert Nexus().status().paused == ()
    assert (len(facts()), len(facts("other"))) == (5, 1)

    standin.heal()
    assert Nexus().retry_jobs(error="Refused").retried == 1
    work()
    assert (len(facts()), letters(here)) == (6, [])


def test_another_kind_goes_on_while_one_is_paused(claude: Claude, standin: StandIn) -> None:
    claude()
    say(*SAID)
    standin.when(lambda call: call.purpose == "derive", faults.forbidden())
    Nexus().digest(NAMESPACE, "chat")
    done = work()
    assert ("digest_session", "completed") in [(one["kind"], one["status"]) for one in done]
    assert [pause.kind for pause in Nexus().status().paused] == ["derive_memory"]


def test_the_probe_lifts_a_pause_once_its_cause_is_gone(claude: Claude, standin: StandIn) -> None:
    claude()
    say(*SAID)
    standin.models.remove("claude-haiku-5-5")
    work()
    sweeper = Sweeper(engine)
    sweeper.probe()
    assert [pause.kind for pause in Nexus().status().paused] == ["derive_memory"]
    standin.models.add("claude-haiku-5-5")
    sweeper.probe()
    assert Nexus().status().paused == ()
    work()
    assert len(facts()) == 5
    assert standin.counters.calls == 2  # an unknown model is refused before it is a call; derive, then reflect


def test_the_unknown_model_of_one_kind_keeps_no_other_kind_paused(claude: Claude, standin: StandIn) -> None:
    claude(NEXUS_MODEL_DIGEST="claude-nobody")
    say(*SAID)
    standin.faults.append(faults.forbidden())
    work("derive_memory")
    Nexus().digest(NAMESPACE, "chat")
    work("digest_session")
    assert {pause.kind for pause in Nexus().status().paused} == {"derive_memory", "digest_session"}
    Sweeper(engine).probe()
    assert [pause.kind for pause in Nexus().status().paused] == ["digest_session"]


@pytest.mark.usefixtures("here")
def test_a_probe_that_breaks_keeps_no_other_kind_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("derive_memory", "digest_session"):
        engine.claims.pause(kind, "a test")

    def probe(kind: str) -> None:
        if kind == "derive_memory":
            raise OSError("an application's own error")

    monkeypatch.setattr(engine.storage, "probe", probe)
    Sweeper(engine).probe()
    assert [pause.kind for pause in Nexus().status().paused] == ["derive_memory"]


def test_without_credit_jobs_look_again_within_an_hour(claude: Claude, standin: StandIn) -> None:
    """Before, jobs waited for the next day (UTC), also when the account had credit again a minute later."""
    here = claude()
    say(*SAID)
    standin.faults.append(faults.payment_required())
    work()
    now = datetime.now(UTC)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    for claim in waiting():
        assert (claim.wait_reason, claim.errors, claim.crashes) == ("budget", 0, 0)
        assert -60 <= (claim.due_at or 0) - min(midnight, now + timedelta(hours=1)).timestamp() <= 5
    assert Nexus().status().paused == ()
    assert time_passes(here) == 5
    work()
    assert len(facts()) == 5


# --- the same with a real worker --------------------------------------------------------------------------------------
@pytest.mark.long
def test_a_worker_comes_through_a_bad_minute(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_DERIVE_MAX_WAIT="0")
    standin.faults.extend([faults.throttled("0"), faults.overloaded(), faults.cut(), faults.invalid_json()])
    here.worker()
    say(*SAID, end=True)

    def digested() -> bool:
        due_at_once(here)
        return bool(here.sql("SELECT 1 FROM memories WHERE level = 'summary_long'"))

    eventually(digested)
    assert here.sql("SELECT DISTINCT state FROM derivations") == [("done",)]
    assert sorted(fact.content for fact in facts()) == sorted(f"ann said: {said}" for said in SAID)
    assert letters(here) == []
    returned = [call for call in standin.counters.requests if call.outcome in ("ok", "says")]
    assert len(here.sql("SELECT 1 FROM model_calls")) == len(returned)


@pytest.mark.long  # without a worker: the tests of pauses above, and in test_waits.py
def test_a_worker_pauses_a_kind_and_goes_on_when_it_is_resumed(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_DERIVE_MAX_WAIT="0")
    standin.always(faults.unauthorized())
    here.worker()
    say(*SAID)
    eventually(lambda: Nexus().status().paused)
    eventually(lambda: [claim.wait_reason for claim in waiting()] == ["pause"] * 5)
    standin.heal()
    assert Nexus().resume_jobs("derive_memory") == ("derive_memory",)
    eventually(lambda: len(facts()) == 5, within=60, why="resuming wakes what waited, without a sweep or a probe")
    assert letters(here) == []
