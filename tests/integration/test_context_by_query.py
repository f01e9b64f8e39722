"""A context with a query: what fits is told before what does not, once, and what holds before what held."""

from __future__ import annotations

import re
import string
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cognition.context import by_query
from nexus_tasks.cognition.context.assemble import LINE_TOKENS
from nexus_tasks.cognition.retrieval.fusion import Ranked
from nexus_tasks.cognition.retrieval.search import FEW, Ranking
from nexus_tasks.deployment import default_deployment
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.errors import InvalidInput
from nexus_tasks.storage import namespaces, perspectives
from nexus_tasks.storage.searching import query_stats, upkeep
from nexus_tasks.storage.searching.context_rows import ContextRow
from nexus_tasks.types import ContextBlock
from tests.integration.inline import NAMESPACE, facts, say, work
from tests.integration.reflecting import judge, know, relation, run
from tests.integration.test_context import conclude
from tests.sandbox import Sandbox
from tests.standin import StandIn

search_module: Any = sys.modules["nexus_tasks.cognition.retrieval.search"]  # the package has a function of this name
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
FOODS = ["peanuts", "shrimp", "sesame", "celery", "mustard", "lupin", "soya", "eggs", "milk", "wheat", "squid", "kiwi"]


def context(query: str, **options: Any) -> ContextBlock:
    """A context for a query."""
    return Nexus().context(NAMESPACE, query=query, **options)


def section(block: ContextBlock, name: str) -> list[str]:
    """The lines of a section, without their citations."""
    parts = re.split(r"^## (.*)$", block.text, flags=re.M)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [line.partition("] ")[2] for line in found.get(name, "").strip().splitlines()]


def insights(*contents: str) -> None:
    """Insights from the first three facts about ann."""
    with default_deployment().database.transaction() as tx:
        known = namespaces.get(tx, NAMESPACE)
        ann = perspectives.lock(tx, known.id, "assistant", ["ann"])["ann"]
        for content in contents:
            conclude(tx, ann, "derived", content, [fact.id for fact in facts(subject="ann")][:3])


@pytest.mark.usefixtures("here")
def test_all_that_fits_the_question_is_told_before_reflections_that_do_not() -> None:
    """Before, four of the twelve were told: reflections took 75 % of the room whatever was asked."""
    say(*({"content": f"I am allergic to {food}.", "author": "ann", "occurred_at": NOON} for food in FOODS))
    work("derive_memory")
    insights(
        *(f"Number {n} of what ann does on long walks by the river, with her dog and a camera." for n in range(20))
    )
    block = context("What is ann allergic to?", max_tokens=400)
    assert [food for food in FOODS if food not in block.text] == []
    assert section(block, "Reflections") == []


@pytest.mark.usefixtures("here")
def test_reflections_and_contradictions_that_touch_the_question_are_told_within_their_shares() -> None:
    say("I walk by the river.", "I cook on Sundays.", "I like tea.", "I play the cello.")
    work("derive_memory")
    insights(
        *(f"Ann relaxes by the river, as number {n} of many walks shows." for n in range(30)), "Ann likes Sundays."
    )
    block = context("Where is the river?", max_tokens=800)
    told = {one.name: one.tokens for one in block.sections}
    assert 0 < told["reflections"] <= 200
    assert all("river" in line for line in section(block, "Reflections"))
    assert any("I walk by the river." in line for line in block.text.splitlines())


@pytest.mark.usefixtures("here")
def test_a_context_tells_of_other_sessions_before_it_tells_all_of_the_best_one() -> None:
    """Before, the lines of the best session left no room for the other ones."""
    flowers = [f"flower-{letter}" for letter in string.ascii_lowercase]
    say(*(f"The club ordered seeds of {one}." for one in flowers), session="club")
    say("The club ordered seeds of trees.", session="forest")
    block = context("Which seeds has the club ordered?", max_tokens=350)
    assert "trees" in block.text
    assert 1 < sum(one in block.text for one in flowers) < len(flowers)


def test_the_fifth_row_of_a_session_loses_a_part_of_its_score() -> None:
    def row(number: int, score: float) -> ContextRow:
        known = (number, None, "raw", "", "ann", NOON, 1.0, 0, number, None, None, None, "user", None, False)
        return ContextRow(*known, score=score)

    rows = [row(number, score) for number, score in enumerate((3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4), 1)]
    # The sixth row is a fact with sources in two sessions.
    sessions = {**dict.fromkeys((1, 2, 3, 4, 5), (7,)), 6: (7, 8), 7: ()}
    assert [one.id for one in by_query.spread(rows, sessions)] == [1, 2, 3, 4, 6, 7, 5]
    assert [one.id for one in by_query.spread(rows, {one.id: (one.id,) for one in rows})] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.usefixtures("here")
def test_a_message_that_a_fact_tells_is_not_told_again_and_one_that_no_fact_tells_is() -> None:
    say({"content": "I have two goats, and I like them.", "author": "ann", "occurred_at": NOON})
    work("derive_memory")
    say({"content": "The goats are named Ada and Bob.", "author": "ann", "occurred_at": NOON}, observers=[])
    block = context("What about the goats?")
    assert block.text.count("I have two goats, and I like them.") == 1
    assert section(block, "Messages") == ["2026-06-01 ann: The goats are named Ada and Bob."]


def test_what_holds_now_comes_before_the_message_of_which_it_holds_no_longer(claude: Any, standin: StandIn) -> None:
    claude()
    old, new = know("I fire the kiln on Tuesday evenings.", "I fire the kiln on Thursday evenings now.")
    judge(standin, relation("contradicts", new, old, "new"))
    assert run()["superseded"] == 1
    text = context("When does ann fire the kiln?").text
    [earlier] = [
        line for line in text.splitlines() if "Tuesday" in line and line.startswith("- ") and "Now:" not in line
    ]
    later = earlier.rpartition("(later: ")[2].removesuffix(")")
    assert "Thursday" in next(line for line in text.splitlines() if line.startswith(f"- {later} "))
    assert text.index(f"- {later} ") < text.index(earlier)
    # Another observer has not heard of the change, so for that observer the message says what holds.
    assert "later:" not in context("When does ann fire the kiln?", observer="coach").text


def test_a_message_of_the_past_is_left_out_where_only_one_fits(claude: Any, standin: StandIn) -> None:
    claude()
    old, new = know("I fire the kiln on Tuesday evenings.", "I fire the kiln on Thursday evenings now.")
    judge(standin, relation("contradicts", new, old, "new"))
    run()
    for most in range(10, 120):
        text = context("When does ann fire the kiln? Tuesday?", max_tokens=most).text
        assert "Tuesday" not in text.replace("Earlier:", "") or "Thursday" in text, (most, text)


@pytest.mark.usefixtures("here")
def test_the_same_call_gives_the_same_bytes_with_messages_too() -> None:
    say(*(f"Goat {n} is named after a king." for n in range(40)), observers=[])
    first = context("Which goat?", max_tokens=300)
    default_deployment().database.dispose()
    assert context("Which goat?", max_tokens=300) == first


@pytest.mark.usefixtures("here")
def test_a_nonsense_question_fills_nothing_but_the_sessions_own_digest() -> None:
    """Before, it filled the context with twenty lines."""
    say(*(f"I live in house number {n} by the river, and I like it." for n in range(20)))
    work("derive_memory")
    Nexus().end_session(NAMESPACE, "chat")
    work()
    assert context("quantum chromodynamics lattice gauge").text == ""
    of_session = context("quantum chromodynamics lattice gauge", session_key="chat")
    assert [one.name for one in of_session.sections] == ["digest"]
    assert context("Who lives by the river?").text


@pytest.mark.usefixtures("here")
def test_one_word_of_five_by_chance_is_no_answer() -> None:
    """Before, one memory with one of the words brought a context full of lines that have none."""
    say(
        "My coffee cup had an overflow.",
        *(f"I live in house number {n} by the river." for n in range(20)),
        observers=[],
    )
    nonsense = "Haskell monad transformer stack overflow"
    assert "overflow" in context(nonsense).text  # among few memories one word is enough
    say(*(f"I painted wall number {n} in green." for n in range(FEW)), observers=[])
    assert context(nonsense).text == ""
    assert "overflow" in context("What about the overflow?").text


@pytest.mark.parametrize(
    ("embedder", "memories", "fits"),
    [
        ("minilm-int8-384", 500, True),
        ("minilm-int8-384", 8_000, False),  # the best of so many memories is as near by chance
        ("hashing-256", 500, False),
        ("another model", 8_000, True),
    ],
)
def test_what_a_model_finds_near_fits_unless_it_may_be_chance(embedder: str, memories: int, fits: bool) -> None:
    best = [Ranked(id=1, score=1.0, words=0.0, vector=0.36, neighbours=0.0)]
    found = Ranking(best=best, memories=memories, missing_embeddings=0, covered=0.1)
    assert by_query._above_floor(found, cast(Embedder, SimpleNamespace(name=embedder))) == (best if fits else [])


@pytest.mark.usefixtures("here")
def test_a_long_message_with_the_word_is_above_the_floor() -> None:
    """A word counts little in a long message. That it has all words of the question counts."""
    log = " ".join(f"Line {n} of the log says that part {n} of the service is ready." for n in range(2_000))
    say(f"Here is my log. The walrus is down. {log}", *(f"House number {n} is mine." for n in range(FEW)), observers=[])
    assert "walrus" in context("walrus", max_tokens=100_000).text


@pytest.mark.usefixtures("here")
def test_a_word_said_often_is_still_one_word_of_five() -> None:
    """Before, a memory that says one word ten times brought lines that have none of the words."""
    say(" ".join(["The lattice was painted, and then the lattice fell."] * 5), observers=[])
    say(*(f"House number {n} is mine." for n in range(FEW)), observers=[])
    assert context("quantum chromodynamics lattice gauge").text == ""
    assert "lattice" in context("Who painted the lattice?").text


@pytest.mark.usefixtures("here")
def test_a_long_question_is_measured_by_its_heaviest_words() -> None:
    """No memory has all words of a long question."""
    say("The walrus sleeps on the jetty.", *(f"House number {n} is mine." for n in range(FEW)), observers=[])
    long = (
        "Yesterday my cousin phoned about tickets, trains, luggage, breakfast and parking near Bergen harbour."
        " Where does the walrus sleep, on which jetty?"
    )
    assert "walrus" in context(long).text


# --- only what an observer heard --------------------------------------------------------------------------------------
@pytest.fixture
def two_rooms(here: Sandbox) -> Sandbox:
    """A session of which the coach heard only a part, with a digest."""
    say("I train for the marathon in May.", observers=["assistant", "coach"])
    say("My boss may not know that I train.", observers=["assistant"])
    work("derive_memory")
    Nexus().end_session(NAMESPACE, "chat")
    work()
    return here


@pytest.mark.usefixtures("two_rooms")
def test_a_search_can_be_limited_to_what_an_observer_heard() -> None:
    """Before, a search of the coach returned the message that only the assistant had heard."""
    for levels in (None, ["raw"], ["raw", "explicit", "summary_short", "summary_long"]):
        said = [
            hit.content for hit in Nexus().search(NAMESPACE, "boss train marathon", observer="coach", levels=levels)
        ]
        heard = Nexus().search(NAMESPACE, "boss train marathon", observer="coach", levels=levels, heard_only=True)
        assert any("boss" in text for text in said)
        assert heard
        assert not [hit for hit in heard if "boss" in hit.content]
    assert Nexus().search(NAMESPACE, "boss", observer="coach", session_key="chat", heard_only=True, subject="ann")


@pytest.mark.usefixtures("two_rooms")
def test_a_context_can_be_limited_to_what_an_observer_heard() -> None:
    for query in (None, "boss train marathon"):
        everything = Nexus().context(NAMESPACE, session_key="chat", observer="coach", query=query)
        heard = Nexus().context(NAMESPACE, session_key="chat", observer="coach", query=query, heard_only=True)
        assert "boss" in everything.text  # at least in the digest
        assert "boss" not in heard.text
        assert "marathon" in heard.text


@pytest.mark.usefixtures("two_rooms")
def test_who_heard_must_be_named() -> None:
    with pytest.raises(InvalidInput, match="observer"):
        Nexus().search(NAMESPACE, "boss", heard_only=True)
    with pytest.raises(InvalidInput, match="observer"):
        Nexus().context(NAMESPACE, heard_only=True)


# --- forms ------------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("here")
def test_the_openai_form_is_a_message_of_the_user() -> None:
    say("I like tea.")
    block = Nexus().context(NAMESPACE, session_key="chat", format="openai")
    assert block.messages == ({"role": "user", "content": block.text},)
    assert Nexus().context(NAMESPACE, session_key="chat", format="openai", max_tokens=1).messages == ()
    observed = Nexus().context(NAMESPACE, session_key="chat", observe=True, format="openai")
    assert observed.messages == ({"role": "user", "content": observed.text},)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("unindexed", "share"), [(0, 2), (5_000, 1)])
def test_a_namespace_with_a_vector_index_gives_half_as_many_candidates(
    monkeypatch: pytest.MonkeyPatch, unindexed: int, share: int
) -> None:
    pools = []
    found = search_module.find_candidates

    def noted(*given: Any, pool: int, **options: Any) -> Any:
        pools.append(pool)
        return found(*given, pool=pool, **options)

    monkeypatch.setattr(search_module, "find_candidates", noted)
    for module in (query_stats, upkeep):
        monkeypatch.setattr(module, "MOST_UNINDEXED", unindexed)
    say({"content": "I am allergic to kiwi.", "author": "ann", "occurred_at": NOON})
    work("derive_memory")
    upkeep.run(default_deployment().database)
    block = context("What is ann allergic to?", max_tokens=2_000)
    assert "kiwi" in block.text
    assert pools == [2 * (2_000 // LINE_TOKENS) // share + 20 // share]
    Nexus().search(NAMESPACE, "allergic", limit=400)
    assert pools[1:] == [400]  # a search has as many hits as it was asked for
