"""How the offline model relates facts, and what it concludes from several."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_tasks.llm.answers import PromptFact, Reflection, ReflectMaterial
from nexus_tasks.llm.offline.compare import compare
from nexus_tasks.llm.offline.reflect import reflect
from nexus_tasks.llm.offline.slots import take_slots

START = datetime(2026, 9, 14, 8, 30, tzinfo=UTC)


def material(*contents: str, new: int = 1, days: list[int] | None = None) -> ReflectMaterial:
    """Facts 1, 2, … said a day apart; the last ``new`` of them are new, all the others are their candidates."""
    when = days or list(range(len(contents)))
    facts = tuple(
        PromptFact(id=i, content=content, valid_from=START + timedelta(days=day))
        for i, (content, day) in enumerate(zip(contents, when, strict=True), start=1)
    )
    ids = [fact.id for fact in facts]
    clusters = tuple((id, tuple(other for other in ids if other != id)) for id in ids[-new:])
    return ReflectMaterial(observer="assistant", subject="ann", facts=facts, clusters=clusters)


def found(answer: Reflection) -> list[tuple[str, int, int, str]]:
    return [(r.kind, r.new_id, r.old_id, r.holds) for r in answer.relations]


def kind(left: str, right: str) -> str | None:
    verdict, mirrored = compare(left, right), compare(right, left)
    assert (verdict and verdict.kind) == (mirrored and mirrored.kind)
    return verdict.kind if verdict else None


# --- pairs ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("left", "right"),
    [
        # denied
        ("I eat meat.", "I don't eat meat."),
        ("I like mushrooms on my pizza.", "I don't like mushrooms on my pizza."),
        ("I drink coffee every morning.", "I no longer drink coffee."),
        ("I drink coffee every morning.", "I don't drink coffee any more."),
        ("I used to play tennis.", "I play tennis on Sundays."),
        ("I play tennis on Sundays.", "I stopped playing tennis."),
        # another value of a closed class
        ("Deploys happen on Tuesday", "deploys now happen on Thursdays"),
        ("Deploys happen on Tuesdays.", "We moved the deploys to Thursdays."),
        ("Deploys happen on Tuesdays.", "Deploys moved to Thursdays"),
        ("The daily standup is at 9:15.", "The standup moved to 10:30."),
        ("The daily standup is at 9:15.", "The daily standup is at 10:30 am now."),
        ("The launch is planned for 25 November.", "We pushed the launch to 9 December."),
        ("The release is in March.", "The release is in April."),
        ("Our budget is 4,000 euros.", "Our budget is 6000 euros."),
        ("We have three servers in Frankfurt.", "We have five servers in Frankfurt."),
        ("We use Postgres 17 in production.", "We use Postgres 18 in production."),
        # replaced
        ("We deploy on Tuesdays.", "We deploy on Thursdays instead of Tuesdays."),
        ("I drink coffee every morning.", "I've switched from coffee to tea."),
        # attributes with one value at a time
        ("I live in Berlin with my partner.", "I moved to Lisbon last week."),
        ("I'm based in Berlin.", "I just moved from Berlin to Lisbon."),
        ("I work at Acme.", "I work for Initech now."),
        ("I'm 34 years old.", "I turned 35."),
        ("My favourite editor is Vim.", "My favourite editor is Emacs now."),
        ("I prefer coffee over tea.", "I prefer tea to coffee now."),
    ],
)
def test_contradictions(left: str, right: str) -> None:
    assert kind(left, right) == "contradicts"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("I went running on Tuesday.", "I went running on Thursday."),  # two events
        ("I ran 5 miles yesterday.", "I ran 6 miles yesterday."),
        ("I drink tea, not coffee.", "I drink tea in the evening."),
        ("I can't wait to see the mountains.", "I love to see the mountains."),
        ("I like coffee.", "I prefer tea over coffee."),
        ("I live in Lisbon.", "I live in Lisbon, Portugal."),
        ("My sister lives in Berlin.", "I live in Lisbon."),
        ("We moved to Kubernetes last year.", "I live in Lisbon."),
        ("I have two cats.", "I have two dogs."),
        ("I have two cats.", "I have three dogs."),
        ("Deploys happen on Tuesdays.", "The retro happens on Thursdays."),
        ("We meet on Monday at 10:00.", "We meet on Tuesday at 11:00."),  # two values differ: another meeting
        ("Thing 1 is on shelf 1.", "Thing 2 is on shelf 2."),  # two numbers differ: another thing
        ("Server 3 has 16 GB of memory.", "Server 4 has 32 GB of memory."),
        ("I love hiking.", "I haven't been hiking in the Alps."),
        ("I didn't go to the gym yesterday.", "I go to the gym on Mondays."),
        ("I work on the parser.", "I don't work on Fridays."),  # denies less than was said
        ("I don't play the guitar.", "I played the guitar at school."),  # what was once may well not be so now
        ("I never eat breakfast.", "I don't eat breakfast."),
        ("I turned 35.", "I'm 5 minutes late."),
        ("I changed the tyres from summer to winter.", "I love summer."),
        ("My favourite book is Dune.", "My favourite film is Arrival."),
        ("I live in Orléans.", "And I live in Orle\u0301ans."),  # the accent as a letter of its own
    ],
)
def test_no_contradictions(left: str, right: str) -> None:
    assert kind(left, right) != "contradicts"


def test_like_wordings() -> None:
    assert kind("We deploy on Tuesdays.", "we are deploying on tuesday") == "duplicate"
    assert kind("I write the release notes every Friday.", "Every Friday I write the release notes.") == "duplicate"
    assert kind("On Fridays Ann calls Bob.", "On Fridays Bob calls Ann.") == "reinforces"
    assert kind("I eat before I swim.", "Before I swim I eat.") == "duplicate"
    assert kind("I eat before I swim.", "I swim before I eat.") != "duplicate"
    assert kind("I flew from Porto to Rome.", "From Rome I flew to Porto.") != "duplicate"
    assert (
        kind("I write the release notes every Friday.", "I write the release notes every Friday evening")
        == "reinforces"
    )
    assert kind("I write the release notes every Friday.", "I write the notes at home every Friday") is None
    assert kind("I ran 5 miles in the park with Bob and Eve.", "I ran 6 miles in the park with Bob and Eve.") is None
    assert kind("I live in Lisbon.", "My cat sleeps all day.") is None


def test_values_have_one_spelling() -> None:
    text = "At 5 pm, 17:30, 4,000 or 4k, on 8 May or May 9th, Tue or Tuesdays, in March 2026, two or 2, may march"
    rest, slots = take_slots(text)
    assert {kind: set(values) for kind, values in slots.items()} == {
        "time": {"17:00", "17:30"},
        "date": {"may 8", "may 9"},
        "weekday": {"tue"},
        "month": {"march"},
        "year": {"2026"},
        "number": {"4000", "2"},
    }
    assert "may march" in rest


# --- whole reflections ------------------------------------------------------------------------------------------------
def test_the_later_one_holds() -> None:
    tuesday, thursday = "Deploys happen on Tuesdays.", "Deploys now happen on Thursdays."
    assert found(reflect(material(tuesday, thursday))) == [("contradicts", 2, 1, "new")]
    assert found(reflect(material(tuesday, thursday, days=[5, 0]))) == [("contradicts", 2, 1, "old")]
    assert found(reflect(material(tuesday, thursday, days=[0, 0]))) == [("contradicts", 2, 1, "new")]  # stored later


def test_each_pair_once_with_the_later_as_the_new_one() -> None:
    both_new = material("I eat meat.", "I don't eat meat.", new=2)
    assert found(reflect(both_new)) == [("contradicts", 2, 1, "new")]
    assert found(reflect(material("I eat meat.", "I don't eat meat.", new=2, days=[1, 0]))) == [
        ("contradicts", 1, 2, "new")
    ]


def test_rationales_are_one_line() -> None:
    (relation,) = reflect(material("Deploys happen on Tuesdays.", "Deploys now happen on Thursdays.")).relations
    assert relation.rationale == "the weekday of the same matter differs: thu and tue"


def test_three_like_facts_are_an_insight() -> None:
    said = ["I prefer small pull requests.", "I live in Lisbon.", "I really prefer small pull requests to big ones."]
    last = "Small steps, please: I prefer small pull requests."
    assert reflect(material(*said)).insights == []
    (insight,) = reflect(material(*said, last)).insights
    assert insight.support == [1, 3, 4]
    assert insight.content == "Repeatedly: I prefer small pull requests."


def test_insights_need_a_new_fact_and_nothing_outdated() -> None:
    said = [
        "I prefer small pull requests.",
        "I prefer very small pull requests.",
        "I do prefer tiny small pull requests.",
    ]
    assert reflect(material(*said, "I live in Lisbon.")).insights == []
    assert reflect(material(*said[:2], "I don't prefer small pull requests.")).insights == []
    assert len(reflect(material(*said)).insights) == 1
    assert reflect(material(*said, "I no longer prefer small pull requests.", new=2)).insights == []


def test_insights_are_short() -> None:
    long = "I like the extraordinarily long and winding path along the river behind the old harbour " * 3
    (insight,) = reflect(material(f"{long} a lot", f"{long} much", f"{long} indeed")).insights
    assert len(insight.content) <= 180


# --- properties -------------------------------------------------------------------------------------------------------
WORDS = [
    "I",
    "don't",
    "never",
    "deploy",
    "deploys",
    "happen",
    "on",
    "Tuesday",
    "Thursdays",
    "5",
    "6",
    "tea",
    "from",
    "to",
]
CONTENTS = st.one_of(
    st.lists(
        st.sampled_from(WORDS),
        max_size=10,
    ).map(" ".join),
    st.text(st.characters(), max_size=40),
)


@settings(max_examples=200)
@given(st.lists(CONTENTS, min_size=1, max_size=6), st.integers(1, 6), st.data())
def test_answers_cite_what_was_shown(contents: list[str], new: int, data: st.DataObject) -> None:
    days = data.draw(st.lists(st.integers(0, 3), min_size=len(contents), max_size=len(contents)))
    shown = material(*contents, new=new, days=days)
    answer = reflect(shown)
    assert answer == reflect(shown)
    pairs = [frozenset((r.new_id, r.old_id)) for r in answer.relations]
    assert len(set(pairs)) == len(pairs)
    valid_from = {fact.id: fact.valid_from for fact in shown.facts}
    for relation in answer.relations:
        assert relation.old_id in dict(shown.clusters)[relation.new_id]
        assert (relation.holds == "both") == (relation.kind != "contradicts")
        if relation.holds == "new":
            assert valid_from[relation.new_id] >= valid_from[relation.old_id]
    for insight in answer.insights:
        assert len(insight.support) >= 3
        assert set(insight.support) <= valid_from.keys()


@given(CONTENTS, CONTENTS)
def test_comparing_works_both_ways(left: str, right: str) -> None:
    kind(left, right)


def test_candidates_that_are_not_shown_are_left_out() -> None:
    shown = material("I eat meat.", "I don't eat meat.")
    odd = ReflectMaterial(observer="a", subject="b", facts=shown.facts, clusters=((2, (1, 2, 99)), (98, (1,))))
    assert found(reflect(odd)) == [("contradicts", 2, 1, "new")]
