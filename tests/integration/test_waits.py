"""Nothing waits without a reason that `nexus status` shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.worker.run import Run, Wait
from nexus_tasks.storage import pruning
from nexus_tasks.types import JobOutcome
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, say, time_passes, work
from tests.integration.jobkinds import BODIES, Play, play
from tests.sandbox import Sandbox
from tests.standin import Fault, StandIn, faults

Claude = Callable[..., Sandbox]


@pytest.fixture(autouse=True)
def bodies() -> Iterator[None]:
    """What a test's job kinds do is forgotten after it."""
    yield
    BODIES.clear()


def waits(kind: str) -> list[dict[str, Any]]:
    """What ``nexus status --json`` says of the waits of one kind, through JSON and back."""
    [found] = json.loads(json.dumps(Nexus().status(NAMESPACE).to_dict()))["namespaces"]
    return [one for one in found["waits"] if one["kind"] == kind]


@pytest.mark.parametrize(
    ("fault", "reason", "detail", "between"),
    [
        pytest.param(faults.throttled("7"), "throttle", "Throttled", (1, 7), id="throttle"),
        pytest.param(faults.overloaded(), "retry", "Transient", (0, 2), id="retry, the server is busy"),
        pytest.param(faults.invalid_json(), "retry", "InvalidAnswer", (0, 2), id="retry, an invalid answer"),
        pytest.param(faults.unauthorized(), "pause", "Misconfigured", None, id="pause"),
        pytest.param(faults.payment_required(), "budget", "OverBudget", (1, 3_600), id="budget, the account's"),
    ],
)
def test_what_the_model_says_is_the_reason(
    claude: Claude, standin: StandIn, fault: Fault, reason: str, detail: str, between: tuple[float, float] | None
) -> None:
    assert claude()
    standin.always(fault)
    say("I moved to Lisbon in March.")
    work("derive_memory")
    [wait] = waits("derive_memory")
    assert (wait["reason"], wait["detail"]) == (reason, detail)
    due = wait["due_in_seconds"]
    assert between[0] - 1 <= due <= between[1] if between else due is None
    assert json.loads(wait["scope"])["namespace"] == NAMESPACE


def test_a_pause_is_shown_and_lifted_by_resume(claude: Claude, standin: StandIn) -> None:
    claude()
    standin.always(faults.unauthorized())
    say("I moved to Lisbon in March.")
    work("derive_memory")
    [paused] = Nexus().status().paused
    assert paused.kind == "derive_memory"
    assert "credentials" in paused.reason
    assert paused.since
    ran = nexus("jobs", "resume", "derive_memory", "--json")
    assert json.loads(ran.stdout) == {"resumed": ["derive_memory"]}, ran.stderr
    assert Nexus().status().paused == ()
    assert waits("derive_memory") == []
    standin.heal()
    assert [one["status"] for one in work("derive_memory")] == ["completed"]


def test_a_spent_budget_is_the_reason_until_it_is_raised(claude: Claude, standin: StandIn) -> None:
    assert claude()
    Nexus().create_namespace(NAMESPACE, budget_usd_per_day=0.0)
    say("I moved to Lisbon in March.")
    work("derive_memory")
    [wait] = waits("derive_memory")
    assert wait["reason"] == "budget"
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    day_ends_in = (midnight - datetime.now(UTC)).total_seconds()
    assert abs(wait["due_in_seconds"] - min(day_ends_in, 3_600.0)) < 60
    assert wait["detail"].startswith("0.0000 of 0.0000 USD spent, the next call may cost 0.")
    assert standin.counters.calls == 0
    Nexus().set_namespace(NAMESPACE, budget_usd_per_day=5.0)
    assert waits("derive_memory") == []
    assert [one["status"] for one in work("derive_memory")] == ["completed"]


@pytest.mark.usefixtures("here")
def test_a_namespace_at_its_cap_says_concurrency() -> None:
    Nexus().create_namespace(NAMESPACE, concurrency=1)
    seen: list[dict[str, Any]] = []

    def body(_run: Run, _arguments: Play) -> Any:
        play.apply(kwargs={"name": "second"}, throw=True)
        seen.extend(waits("play"))
        return JobOutcome(status="completed")

    BODIES["first"] = body
    play.delay(name="first")
    play.delay(name="second")
    claims = default_deployment().claims
    [first] = [claim for claim in claims.pending("maintenance") if claim.args["name"] == "first"]
    play.apply(kwargs=dict(first.args), task_id=first.job_id, throw=True)
    assert [one["reason"] for one in seen] == ["concurrency"]
    assert waits("play") == [], "the run that ended has published the one that waited longest"


def test_an_open_session_waits_until_it_is_ripe(here: Sandbox) -> None:
    say(*(f"I like tea number {n}." for n in range(3)))
    found = waits("derive_memory")
    assert {one["reason"] for one in found} == {"ripeness"}
    assert all(0 < one["due_in_seconds"] <= 10 for one in found)
    assert time_passes(here)
    assert waits("derive_memory") == []


@pytest.mark.usefixtures("here")
def test_a_job_that_waits_for_a_batch_says_so() -> None:
    Nexus().create_namespace(NAMESPACE)

    def body(_run: Run, _arguments: Play) -> Any:
        raise Wait("batch", 600.0, "in a batch of 20")

    BODIES["a"] = body
    job = play.delay()
    play.apply(kwargs={}, task_id=job.id, throw=False)
    [wait] = waits("play")
    assert (wait["reason"], wait["detail"]) == ("batch", "in a batch of 20")
    assert 0 < wait["due_in_seconds"] <= 600


def test_open_dead_letters_are_never_pruned_and_runs_after_thirty_days(here: Sandbox) -> None:
    Nexus().create_namespace(NAMESPACE)
    for days in (29, 31):
        here.sql(
            "INSERT INTO job_runs (job_id, namespace_id, kind, scope, status, reasons, details, finished_at)"
            " SELECT :job, id, 'play', '{}', 'completed', '{}', '{}', now() - make_interval(days => :days)"
            " FROM namespaces",
            job=f"run-{days}",
            days=days,
        )
        for resolution in (None, "retried", "dropped"):
            here.sql(
                "INSERT INTO dead_letters (job_id, namespace_id, kind, scope, args, error_type, message, traceback,"
                " errors, crashes, last_at, resolution, resolved_at)"
                " SELECT :job, id, 'play', '{}', '{}', 'Bug', '', '', 5, 0, now() - make_interval(days => 90),"
                " :resolution, CASE WHEN CAST(:resolution AS text) IS NOT NULL"
                " THEN now() - make_interval(days => :days) END FROM namespaces",
                job=f"letter-{days}-{resolution}",
                days=days,
                resolution=resolution,
            )
    with default_deployment().database.transaction() as tx:
        pruned = pruning.prune(tx)
    assert (pruned["job_runs"], pruned["dead_letters"]) == (1, 2)
    assert here.sql("SELECT job_id FROM job_runs") == [("run-29",)]
    left = [job for (job,) in here.sql("SELECT job_id FROM dead_letters ORDER BY 1")]
    assert left == ["letter-29-None", "letter-29-dropped", "letter-29-retried", "letter-31-None"]
