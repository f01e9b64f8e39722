"""One fact with many sources: duplicates are merged, and an undo takes them apart again exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nexus_tasks import Nexus
from tests.integration.inline import NAMESPACE, answers, dump, facts, say, work
from tests.integration.reflecting import again, day, insight, judge, know, made, read, relation, run, too_much
from tests.sandbox import Sandbox
from tests.standin import StandIn

Claude = Callable[..., Sandbox]
PASSING = ("job_runs", "model_calls", "reflections", "reflection_changes", "saved_answers", "perspectives")


@pytest.fixture
def here(claude: Claude) -> Sandbox:
    """A deployment where nothing is reflected on unless a test asks for it."""
    return claude(NEXUS_REFLECT_MIN_NEW="1000")


def sources(memory_id: int) -> set[int]:
    """The messages that a fact was derived from."""
    edges = Nexus().memory(NAMESPACE, memory_id).evidence
    return {edge.id for edge in edges if edge.role == "derived_from"}


def test_three_messages_on_one_matter_are_one_fact(here: Sandbox, standin: StandIn) -> None:
    tea, drink, always, dog = know("I like tea.", "Tea is my drink.", "My drink was always tea.", "I have a dog.")
    said = {fact.id: sources(fact.id) for fact in facts()}
    before = dump(here, *PASSING)
    judge(
        standin,
        relation("duplicate", drink, tea),
        relation("duplicate", always, tea),
        relation("duplicate", always, drink),  # of a fact that is merged already
    )
    assert run()["merged"] == 2
    assert [fact.id for fact in facts()] == [tea, dog]
    assert sources(tea) == said[tea] | said[drink] | said[always]
    assert read(here, tea)["times_reinforced"] == 2
    for other in (drink, always):
        ended = Nexus().memory(NAMESPACE, other)
        assert (ended.superseded_by, ended.valid_to) == (tea, ended.valid_from)
        assert [(edge.id, edge.role) for edge in ended.evidence if edge.role == "duplicate_of"] == [
            (tea, "duplicate_of")
        ]
    hits = Nexus().search(NAMESPACE, "what does ann drink, tea?", levels=["explicit", "derived"])
    assert [hit.id for hit in hits if "tea" in hit.content.lower()] == [tea]
    [(reflection,)] = here.sql("SELECT id FROM reflections")
    undone = Nexus().undo(NAMESPACE, reflection)
    assert set(undone.revived) == {drink, always}
    assert dump(here, *PASSING) == before


@pytest.mark.usefixtures("here")
def test_the_words_of_the_person_stay(standin: StandIn) -> None:
    ids = say({"content": "Ann adores tea.", "author": "bob"}, "I like tea.")
    made_up = ({"content": "Ann adores tea.", "sources": ids[:1]}, {"content": "Ann likes tea.", "sources": ids[1:]})
    standin.answer("derive", answers(*made_up))
    work("derive_memory")
    other, own = (fact.id for fact in facts())
    judge(standin, relation("duplicate", own, other))
    run()
    assert [(fact.id, fact.standing) for fact in facts()] == [(own, "self")]
    assert sources(own) == set(ids)


def test_an_insight_counts_merged_facts_once(here: Sandbox, standin: StandIn) -> None:
    a, b, c, d = know("I swim.", "Swimming is my favourite sport.", "I run.", "I row.")
    both = [insight([a, b, c], "Too little."), insight([b, c, d], "Ann does sports.")]
    judge(standin, relation("duplicate", b, a), insights=both)
    assert run()["insights"] == 1
    assert made(here, "derived") == [("Ann does sports.", 0.72, [a, c, d])]


def test_a_source_that_is_erased_is_not_taken_away_twice(here: Sandbox, standin: StandIn) -> None:
    tea, drink = know("I like tea.", "Tea is my drink.")
    [source] = sources(drink)
    judge(standin, relation("duplicate", drink, tea))
    run()
    Nexus().forget(NAMESPACE, memory_id=source)
    assert read(here, tea)["times_reinforced"] == 0
    [(reflection,)] = here.sql("SELECT id FROM reflections")
    Nexus().undo(NAMESPACE, reflection)
    assert read(here, tea)["times_reinforced"] == 0
    assert [fact.id for fact in facts()] == [tea]


def test_when_the_fact_that_stays_is_erased_the_other_holds_again(here: Sandbox, standin: StandIn) -> None:
    tea, drink = know("I like tea.", "Tea is my drink.")
    [source] = sources(tea)
    judge(standin, relation("duplicate", drink, tea))
    run()
    assert [fact.id for fact in facts()] == [tea]
    Nexus().forget(NAMESPACE, memory_id=source)
    work("derive_memory")
    assert [fact.content for fact in facts()] == ["ann said: Tea is my drink."]
    assert here.sql("SELECT count(*) FROM memories WHERE content LIKE '%I like tea%'") == [(0,)]


def test_a_run_that_would_merge_too_much_is_held(here: Sandbox, standin: StandIn) -> None:
    ids = know(*(f"I did thing {number}." for number in range(12)))
    judge(standin, *({**pair, "kind": "duplicate", "holds": "both"} for pair in too_much(here, ids, 11)))
    assert run("needs_review")["relations"] >= 6
    assert len(facts()) == 12


def test_a_merge_undone_after_an_erasure_leaves_a_fact_where_its_own_messages_are(
    here: Sandbox, standin: StandIn
) -> None:
    """Its time and session were those of the other fact's message, with whose session the fact was deleted."""
    (heard, _) = say(
        {"content": "Ann adores tea.", "author": "bob", "occurred_at": day(0)},
        {"content": "Hm.", "author": "ann", "occurred_at": day(0)},
        session="hearsay",
    )
    standin.answer("derive", answers(("Ann adores tea.", [heard])))
    work("derive_memory")
    own, repeated = say(
        {"content": "I like tea.", "author": "ann", "occurred_at": day(1)},
        {"content": "I like tea!", "author": "ann", "occurred_at": day(2)},
        session="own words",
    )
    standin.answer("derive", answers(("I like tea.", [own]), ("I like tea.", [repeated])))
    work("derive_memory")
    other, tea = (fact.id for fact in facts())
    judge(standin, relation("duplicate", tea, other))
    run()
    assert [fact.id for fact in facts()] == [tea]
    Nexus().forget(NAMESPACE, memory_id=repeated)
    [(reflection,)] = here.sql("SELECT id FROM reflections")
    Nexus().undo(NAMESPACE, reflection)
    assert Nexus().memory(NAMESPACE, tea).valid_from == day(1)
    assert Nexus().memory(NAMESPACE, tea).standing == "self"
    Nexus().forget(NAMESPACE, session_key="hearsay")
    assert [fact.id for fact in facts()] == [tea]


def test_no_fact_stays_without_a_message_of_its_own(here: Sandbox, standin: StandIn) -> None:
    """With the messages of a merged fact alone, it had no message after an undo, and no erasure reached it."""
    (first, second) = say(*({"content": text, "author": "ann"} for text in ("I like tea.", "Tea is what I like.")))
    standin.answer("derive", answers(("I like tea.", [first]), ("Tea is liked by me.", [second])))
    work("derive_memory")
    tea, other = (fact.id for fact in facts())
    judge(standin, relation("duplicate", other, tea))
    run()
    assert [fact.id for fact in facts()] == [tea]
    Nexus().forget(NAMESPACE, memory_id=first)
    assert [fact.id for fact in facts()] == [other]
    Nexus().forget(NAMESPACE, memory_id=second)
    assert here.sql("SELECT content FROM memories") == []


def test_a_message_names_the_fact_that_stands_for_its_successor(here: Sandbox, standin: StandIn) -> None:
    tuesday, thursday, pinned = know(
        "I fire the kiln on Tuesday.", "I fire the kiln on Thursday now.", "My kiln burns every Thursday."
    )
    judge(standin, relation("contradicts", thursday, tuesday, "new"))
    run()
    Nexus().pin(NAMESPACE, pinned)
    again(here)
    judge(standin, relation("duplicate", pinned, thursday))
    run()
    assert [fact.id for fact in facts()] == [pinned]
    shown = Nexus().context(NAMESPACE, query="Does ann fire the kiln on Tuesday?").text
    assert any("on Tuesday. (later: [m" in line for line in shown.splitlines()), shown
