"""Reflections that are held for review: shown, released, discarded; and dry runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cognition.reflect import dry_run
from nexus_tasks.errors import NotFound
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.types import HeldReflection
from tests.integration.inline import NAMESPACE, dump, facts, pending, say, work
from tests.integration.reflecting import insight, judge, know, relation, run, too_much
from tests.sandbox import Sandbox, engine
from tests.standin import StandIn

Claude = Callable[..., Sandbox]


@pytest.fixture
def held(claude: Claude, standin: StandIn) -> tuple[Sandbox, list[int], HeldReflection]:
    """A deployment with a held reflection: it, the ids of ann's facts, and the review as status shows it."""
    here = claude(NEXUS_REFLECT_MIN_NEW="1000")
    ids = know(*(f"{word} is what I like number {i}." for i, word in enumerate("abcdefghijkl")))
    judge(standin, *too_much(here, ids), insights=[insight(ids[:3])])
    run("needs_review")
    [shown] = Nexus().status(NAMESPACE).namespaces[0].reviews
    return here, ids, shown


Held = tuple[Sandbox, list[int], HeldReflection]


def asked() -> bool:
    """Whether a reflection is asked for."""
    return any(claim.kind == "reflect_perspective" for claim in pending())


def test_status_and_jobs_show_what_is_held(held: Held) -> None:
    _, _, shown = held
    assert {name: getattr(shown, name) for name in ("observer", "subject", "facts", "supersedes", "released")} == {
        "observer": "assistant",
        "subject": "ann",
        "facts": 12,
        "supersedes": 6,
        "released": False,
    }
    [job] = Nexus().jobs(namespace=NAMESPACE, status="needs_review")
    assert job.id == shown.job_id
    assert len(Nexus().job(job.id).details["supersedes"]) == 6


def test_a_released_plan_is_carried_out_without_asking_the_model_again(held: Held, standin: StandIn) -> None:
    here, ids, shown = held
    calls = standin.counters.calls
    job = Nexus().retry_job(shown.job_id)
    assert job.created
    assert not Nexus().retry_job(shown.job_id).created  # retrying twice enqueues once
    work("reflect_perspective")
    outcome = job.wait(60)
    assert (outcome.status, outcome.details["superseded"]) == ("completed", 6)
    assert standin.counters.calls == calls
    assert len(facts(subject="ann")) == 6
    assert Nexus().status(NAMESPACE).namespaces[0].reviews == ()
    assert here.sql("SELECT held, reflected_through FROM perspectives WHERE subject = 'ann'") == [(None, ids[-1])]
    with pytest.raises(NotFound):
        Nexus().retry_job(shown.job_id)
    assert run("unchanged") == {}


def test_a_released_plan_is_found_by_reconcile(held: Held) -> None:
    here, _, shown = held
    Nexus().retry_job(shown.job_id)
    here.flush()
    Reconciler(engine).round()
    assert asked()
    work("reflect_perspective")
    assert len(facts(subject="ann")) == 6


def test_a_dropped_plan_changes_nothing_and_does_not_come_back(held: Held, standin: StandIn) -> None:
    here, ids, shown = held
    untouched = ("job_runs", "perspectives")
    before = dump(here, *untouched)
    calls = standin.counters.calls
    assert Nexus().drop_job(shown.job_id).status == "dropped"
    assert Nexus().job(shown.job_id).status == "dropped"
    assert dump(here, *untouched) == before
    assert here.sql("SELECT held, reflected_through FROM perspectives WHERE subject = 'ann'") == [(None, ids[-1])]
    Reconciler(engine).round()
    assert not asked()
    assert run("unchanged") == {}
    assert standin.counters.calls == calls
    with pytest.raises(NotFound):
        Nexus().drop_job(shown.job_id)


@pytest.mark.usefixtures("held")
def test_any_job_that_was_told_to_wait_for_the_review_names_it() -> None:
    run("needs_review")
    jobs = [job.id for job in Nexus().jobs(namespace=NAMESPACE, status="needs_review")]
    assert len(jobs) == 2
    Nexus().retry_job(jobs[0])
    work("reflect_perspective")
    assert len(facts(subject="ann")) == 6


def test_a_plan_does_not_outlive_the_facts_it_names(held: Held) -> None:
    here, ids, shown = held
    here.sql("DELETE FROM memories WHERE id = :i", i=ids[0])
    Nexus().retry_job(shown.job_id)
    work("reflect_perspective")
    [(superseded,)] = here.sql("SELECT count(*) FROM memories WHERE superseded_by IS NOT NULL")
    assert 0 < superseded <= 6
    assert here.sql("SELECT held FROM perspectives WHERE subject = 'ann'") == [(None,)]


def test_a_plan_goes_with_a_fact_that_is_erased(held: Held) -> None:
    """It quotes facts, in its rationales."""
    here, ids, _ = held
    Nexus().forget(NAMESPACE, memory_id=ids[0])
    assert here.sql("SELECT held FROM perspectives WHERE subject = 'ann'") == [(None,)]
    assert Nexus().status(NAMESPACE).namespaces[0].reviews == ()


def test_facts_that_come_while_a_plan_is_held_are_reflected_on_after_it(held: Held) -> None:
    _, _, shown = held
    know("z is new.", first_day=90)
    run("needs_review")
    Nexus().retry_job(shown.job_id)
    assert [one["facts"] for one in work("reflect_perspective")] == [12, 1]


# --- dry runs ---------------------------------------------------------------------------------------------------------
def test_a_dry_run_shows_the_plans_and_changes_nothing(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_REFLECT_MIN_NEW="1000")
    a, b, c = know("I live in Porto.", "I live in Lisbon.", "I like tea.")
    say("One more.", session="another")
    judge(standin, relation("contradicts", b, a, "new"), insights=[insight([a, b, c]), insight([a, b])])
    before = dump(here, "model_calls", "saved_answers")
    plans = Nexus().dream_plans(NAMESPACE)
    assert dump(here, "model_calls", "saved_answers") == before
    assert plans.sessions == ("chat", "another")
    [plan] = plans.reflections
    assert (plan.observer, plan.subject, plan.facts, plan.held) == ("assistant", "ann", 3, False)
    [shown] = plan.relations
    assert (shown.old, shown.new) == ("ann said: I live in Porto.", "ann said: I live in Lisbon.")
    assert plan.supersedes == (a,)
    assert [one.support for one in plan.insights] == [(a, b, c)]

    calls = standin.counters.purposes["reflect"]
    assert run()["contradictions"] == 1
    assert standin.counters.purposes["reflect"] == calls  # the dream uses the answers of the dry run
    assert Nexus().dream_plans(NAMESPACE).reflections == ()


@pytest.mark.usefixtures("held")
def test_a_dry_run_shows_what_is_held(standin: StandIn) -> None:
    calls = standin.counters.calls
    [plan] = Nexus().dream_plans(NAMESPACE).reflections
    assert (plan.held, plan.facts, len(plan.supersedes)) == (True, 12, 6)
    assert standin.counters.calls == calls


def test_a_dry_run_leaves_out_what_is_erased_meanwhile(claude: Claude, monkeypatch: pytest.MonkeyPatch) -> None:
    claude(NEXUS_REFLECT_MIN_NEW="1000")
    say("I live in Porto.")
    monkeypatch.setattr(dry_run, "_due_perspectives", lambda _tx, _namespace_id: [("assistant", "nobody")])
    assert Nexus().dream_plans(NAMESPACE).reflections == ()
