"""A mind that changes back and forth: what was said last holds, and a fact that was said again is no older for it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cognition.reflect.new_facts import choose_new_facts, save_question
from nexus_tasks.deployment import default_deployment
from nexus_tasks.storage import perspectives
from tests.integration.inline import NAMESPACE, dump, facts, job_context, say, work
from tests.integration.reflecting import day, insight, judge, know, read, relation, run
from tests.sandbox import Sandbox
from tests.standin import StandIn

PASSING = ("job_runs", "model_calls", "perspectives", "reflections", "reflection_changes")
TUESDAY, THURSDAY = "Deploys happen on Tuesdays.", "Deploys happen on Thursdays."


@pytest.fixture
def offline(deploy: Callable[..., Sandbox]) -> Sandbox:
    """A deployment where nothing is reflected on unless a test asks for it."""
    return deploy(NEXUS_REFLECT_MIN_NEW="1000")


def held(number: int | None = None) -> set[str]:
    """What is held to be so, on a day."""
    return {fact.content for fact in facts(subject="ann", as_of=None if number is None else day(number))}


def test_what_was_said_last_holds_though_the_same_was_said_before(offline: Sandbox) -> None:
    tuesday, thursday = know(TUESDAY, THURSDAY, TUESDAY)
    before = dump(offline, *PASSING)
    run()
    assert held() == held(2) == {TUESDAY}
    assert THURSDAY in held(1)
    assert [read(offline, i)["valid_to"] for i in (tuesday, thursday)] == [None, "2026-01-03T00:00:00+00:00"]
    [change] = Nexus().memories(NAMESPACE, levels=["contradiction"], as_of=day(2))
    assert change.content == f"Earlier: {THURSDAY} Now: {TUESDAY}"
    assert Nexus().memories(NAMESPACE, levels=["contradiction"], as_of=day(1)) == []
    Nexus().undo(NAMESPACE, change.reflection)
    assert dump(offline, *PASSING) == before


def test_of_one_moment_the_last_message_tells(offline: Sandbox) -> None:
    say(TUESDAY, THURSDAY, TUESDAY)  # without times: all of them were said as they were stored
    work("derive_memory")
    tuesday, thursday = (fact.id for fact in facts())
    run()
    assert held() == {TUESDAY}
    assert read(offline, thursday)["superseded_by"] == tuesday


def test_what_was_concluded_ends_with_the_facts_it_rests_on(claude: Callable[..., Sandbox], standin: StandIn) -> None:
    here = claude(NEXUS_REFLECT_MIN_NEW="1000")
    one, two, three = know("I swim on Mondays.", "I swim early on Mondays.", "I swim with Bob on Mondays.")
    judge(standin, relation("reinforces", two, one), insights=[insight([one, two, three])])
    run()
    concluded = dump(here, *PASSING, "embeddings", "postings", "search_totals")

    def stand() -> set[str]:
        return {m.content for m in Nexus().memories(NAMESPACE, levels=["derived", "contradiction"])}

    shown = "Ann is like that."
    assert stand() == {shown}
    [*_, never] = know("I never swim.", first_day=9)
    judge(standin, relation("contradicts", never, one, "new"))
    run()
    change = "Earlier: ann said: I swim on Mondays. Now: ann said: I never swim."
    assert stand() == {change}  # of the insight's facts only two are left
    ended = Nexus().memories(NAMESPACE, levels=["derived"], as_of=day(8))
    assert {memory.content for memory in ended} == {shown}
    assert Nexus().memories(NAMESPACE, levels=["derived"], as_of=day(9)) == []

    [*_, again] = know("I swim again.", first_day=10)
    judge(standin, relation("contradicts", again, never, "new"))
    run()
    assert stand() == {"Earlier: ann said: I never swim. Now: ann said: I swim again."}
    for (reflection,) in here.sql("SELECT id FROM reflections ORDER BY id DESC LIMIT 2"):
        Nexus().undo(NAMESPACE, reflection)
    assert stand() == {shown}
    now = dump(here, *PASSING, "embeddings", "postings", "search_totals")
    assert set(concluded["memories"]) <= set(now["memories"])
    assert set(concluded["evidence"]) <= set(now["evidence"])


@pytest.mark.usefixtures("offline")
def test_what_was_decided_by_an_erased_message_is_decided_anew() -> None:
    know(TUESDAY, THURSDAY, TUESDAY)
    run()
    last = Nexus().session(NAMESPACE, "chat").said[-1].id
    Nexus().forget(NAMESPACE, memory_id=last)
    work("derive_memory")
    run()
    assert held() == {THURSDAY}
    assert held(0) == {TUESDAY}
    [change] = Nexus().memories(NAMESPACE, levels=["contradiction"])
    assert change.content == f"Earlier: {TUESDAY} Now: {THURSDAY}"


def test_a_mind_that_changes_after_every_reflection_is_followed(offline: Sandbox) -> None:
    said = [TUESDAY, THURSDAY, TUESDAY, THURSDAY]
    for number, text in enumerate(said):
        know(text, first_day=number)
        run()
        assert held() == {text}
    assert [held(number) for number in range(len(said))] == [{text} for text in said]
    rows = [read(offline, i) for (i,) in offline.sql("SELECT id FROM memories WHERE level = 'explicit' ORDER BY id")]
    assert all(one["valid_to"] == next_one["valid_from"] for one, next_one in pairwise(rows))


def test_the_model_hears_when_a_fact_was_last_said(claude: Callable[..., Sandbox], standin: StandIn) -> None:
    claude(NEXUS_REFLECT_MIN_NEW="1000")
    know(TUESDAY, THURSDAY, TUESDAY)
    standin.answer("reflect", lambda _: {"relations": [], "insights": []})
    run()
    [call] = [call for call in standin.counters.requests if "resemble it" in call.text]
    assert "2026-01-01T00:00:00Z (again 2026-01-03T00:00:00Z) ann said: Deploys happen on Tuesdays." in call.text
    assert "2026-01-02T00:00:00Z ann said: Deploys happen on Thursdays." in call.text


@pytest.mark.usefixtures("offline")
def test_a_question_that_was_asked_is_asked_the_same_though_more_was_said() -> None:
    know(TUESDAY, THURSDAY, TUESDAY)
    first = _asked()
    know(TUESDAY, first_day=5)
    assert _asked() == first
    assert max(fact.said_again for fact in first.facts if fact.said_again) == day(2)


def _asked() -> Any:
    """The material of the question about ann that is asked next, noted as a run notes it."""
    here = default_deployment()
    with here.database.transaction() as tx:
        ann = perspectives.find(tx, job_context().namespace_id, "assistant", "ann")
    assert ann is not None
    chosen = choose_new_facts(here.resources, ann)
    assert chosen is not None
    save_question(here.resources, job_context(), ann, chosen)
    return chosen.material
