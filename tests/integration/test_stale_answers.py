"""An answer that comes late is compared with what has been said since; what has changed is judged again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks import reflect_perspective as reflections
from tests.integration.inline import NAMESPACE, facts, pending, time_passes, work, work_as_asked
from tests.integration.reflecting import day, insight, judge, know, made, read, relation, run, too_much
from tests.sandbox import Sandbox, engine
from tests.standin import Call, StandIn

Claude = Callable[..., Sandbox]


@pytest.fixture
def here(claude: Claude, standin: StandIn) -> Sandbox:
    """A deployment whose reflections of urgency ``dream`` wait in a batch, until a test ends the batch."""
    standin.batch_delay = None
    return claude(NEXUS_REFLECT_MIN_NEW="1000", NEXUS_BATCH_THRESHOLD="1")


def dream() -> None:
    """Ask for a reflection as a dream does, and put its question into a batch."""
    follow_ups.ask(default_deployment(), [reflections.request(NAMESPACE, "assistant", "ann", urgency="dream")])
    work_as_asked()


def comes_back(here: Sandbox, standin: StandIn) -> None:
    """The answer of the batch comes, and its job goes on; what it asks for again goes into the next batch."""
    standin.end_batches()
    here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
    time_passes(here)
    work_as_asked()


def homes(standin: StandIn, a: int, b: int) -> list[str]:
    """Claude's judgement about two homes: the one that was said last holds. Returns what it was shown, as it comes."""
    shown = []

    def answer(call: Call) -> dict[str, Any]:
        shown.append(call.text)
        return {
            "relations": [relation("contradicts", b, a, "old" if "(again " in call.text else "new")],
            "insights": [],
        }

    standin.answer("reflect", answer)
    return shown


def test_a_fact_that_is_said_again_while_its_reflection_is_in_a_batch_is_judged_again(
    here: Sandbox, standin: StandIn
) -> None:
    a, b = know("I live in Porto.", "I live in Lisbon.")
    shown = homes(standin, a, b)
    dream()
    assert standin.counters.batches == 1
    know("I live in Porto!", first_day=9)
    assert read(here, a)["times_reinforced"] == 1
    comes_back(here, standin)
    assert (read(here, a)["valid_to"], made(here, "contradiction")) == (None, []), "nothing was decided over its head"
    comes_back(here, standin)
    assert len(shown) == 2
    assert read(here, b)["superseded_by"] == a
    assert read(here, b)["valid_to"].startswith(day(9).date().isoformat())
    assert read(here, a)["valid_to"] is None
    comes_back(here, standin)
    assert len(shown) == 2, "once"
    assert here.sql("SELECT again FROM perspectives WHERE subject = 'ann'") == [([],)]
    assert run("unchanged") == {}


def test_what_has_not_changed_is_done_at_once(here: Sandbox, standin: StandIn) -> None:
    a, b, c, d, e = know("I live in Porto.", "I live in Lisbon.", "I like tea.", "I like coffee.", "I like tea a lot.")
    judge(
        standin,
        relation("contradicts", b, a, "new"),
        relation("contradicts", d, c, "new"),
        insights=[insight([b, d, e])],
    )
    dream()
    know("I live in Porto!", first_day=9)
    comes_back(here, standin)
    assert [read(here, i)["superseded_by"] for i in (a, c)] == [None, d]
    assert len(made(here, "derived")) == 1
    assert here.sql("SELECT again FROM perspectives WHERE subject = 'ann'") == [([b],)]


def test_what_is_to_be_judged_again_survives_a_flush_and_an_erasure(here: Sandbox, standin: StandIn) -> None:
    a, b = know("I live in Porto.", "I live in Lisbon.")
    shown = homes(standin, a, b)
    dream()
    know("I live in Porto!", first_day=9)
    comes_back(here, standin)
    here.flush()
    Reconciler(engine).round()
    assert "reflect_perspective" in {claim.kind for claim in pending()}
    work()
    assert read(here, b)["superseded_by"] == a
    here.sql("UPDATE perspectives SET again = ARRAY[:i]", i=b)
    Nexus().forget(NAMESPACE, memory_id=b)
    work()
    assert run("unchanged") == {}
    assert len(shown) == 2
    Reconciler(engine).round()
    assert "reflect_perspective" not in {claim.kind for claim in pending()}


def test_a_released_plan_supersedes_nothing_that_was_said_again_while_it_waited(
    here: Sandbox, standin: StandIn
) -> None:
    ids = know(*(f"{word} is what I like number {i}." for i, word in enumerate("abcdefghijkl")))
    pairs = too_much(here, ids)
    judge(standin, *pairs)
    run("needs_review")
    [shown] = Nexus().status(NAMESPACE).namespaces[0].reviews
    spared = pairs[0]["new_id"]  # the earlier one holds in these relations
    know("a is what I like number 0!", first_day=30)
    assert read(here, spared)["times_reinforced"] == 1
    plan = Nexus().dream_plans(NAMESPACE).reflections[0]
    assert spared not in plan.supersedes
    assert len(plan.supersedes) >= 1
    job = Nexus().retry_job(shown.job_id)
    judge(standin)
    calls = standin.counters.calls
    work("reflect_perspective")
    touched = [pair for pair in pairs if spared in (pair["new_id"], pair["old_id"])]
    assert job.wait(60).details["again"] == len({pair["new_id"] for pair in touched})
    assert read(here, spared)["valid_to"] is None
    assert len(facts(subject="ann")) == 12 - (6 - len([p for p in touched if p["new_id"] == spared]))
    assert standin.counters.calls == calls + 1, "what had changed was judged again, and only that"


def test_what_changes_before_a_plan_is_held_is_judged_again_although_it_was_to_be_judged_again(
    here: Sandbox, standin: StandIn
) -> None:
    """Before, it counted as judged when the plan was carried out."""
    ids = know(*(f"{word} is what I like number {i}." for i, word in enumerate("abcdefghijkl")))
    pairs = too_much(here, ids, count=8)
    changed = pairs[0]["new_id"]
    here.sql("UPDATE perspectives SET again = ARRAY[CAST(:i AS bigint)]", i=changed)

    def answer(_call: Call) -> dict[str, Any]:  # meanwhile another message says the fact
        here.sql(
            "INSERT INTO evidence (memory_id, source_id, role, namespace_id) SELECT :i, max(source_id), 'derived_from',"
            " min(namespace_id) FROM evidence",
            i=changed,
        )
        return {"relations": pairs, "insights": []}

    standin.answer("reflect", answer)
    run("needs_review")
    [shown] = Nexus().status(NAMESPACE).namespaces[0].reviews
    judge(standin)
    Nexus().retry_job(shown.job_id)
    calls = standin.counters.calls
    work("reflect_perspective")
    assert standin.counters.calls == calls + 1, "what had changed was judged again"
    assert here.sql("SELECT again FROM perspectives WHERE subject = 'ann'") == [([],)]
