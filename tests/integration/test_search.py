"""Search: what its filters mean, what comes with a hit, and that no query breaks it."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DataError
from typer.testing import CliRunner

from nexus_tasks import Nexus
from nexus_tasks.cli.main import app
from nexus_tasks.cognition import retrieval
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput, NotFound
from nexus_tasks.storage import namespaces
from nexus_tasks.storage.searching.scope import Filter
from tests.integration.inline import NAMESPACE, facts, observations, say, work
from tests.sandbox import Sandbox
from tests.standin import StandIn

DAY = timedelta(days=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


def found(query: str, **wanted: Any) -> list[str]:
    """The contents of the hits, best first."""
    return [hit.content for hit in Nexus().search(NAMESPACE, query, **wanted)]


def talk(*said: str, session: str = "chat", author: str = "ann", **options: Any) -> None:
    """Messages of one author, a day apart."""
    messages = [
        {"content": turn, "author": author, "id": f"{session}-{n}", "occurred_at": START + n * DAY}
        for n, turn in enumerate(said)
    ]
    say(*messages, session=session, **options)


# --- filters ----------------------------------------------------------------------------------------------------------
def test_each_filter_narrows_and_all_of_them_together(claude: Any, standin: StandIn) -> None:
    claude()
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"])
    standin.answer(
        "derive",
        lambda call: observations(
            {"content": f"Tea of {call.parts[-1]}", "sources": [3], "subject": "bob"}
            if "[3]" in call.parts[0]
            else {"content": f"Tea of {call.parts[-1]}", "sources": [1]}
        ),
    )
    talk("I like tea.", "I like tea a lot.")
    talk("Tea for me.", session="bob's", author="bob")
    work("derive_memory")
    raw = {"I like tea.", "I like tea a lot.", "Tea for me."}
    assert set(found("tea", levels=["raw"])) == raw
    assert {hit.level for hit in Nexus().search(NAMESPACE, "tea", collapse=False)} == {"raw", "explicit"}
    assert len(found("tea", levels=["explicit"])) == 4
    by_observer = Nexus().search(NAMESPACE, "tea", observer="coach", collapse=False)
    assert {hit.observer for hit in by_observer} == {"coach", None}  # a message is heard by every observer
    assert {hit.subject for hit in Nexus().search(NAMESPACE, "tea", subject="bob")} == {"bob"}
    assert set(found("tea", session_key="bob's", levels=["raw"])) == {"Tea for me."}
    [one] = Nexus().search(NAMESPACE, "tea", observer="coach", subject="bob", session_key="bob's", levels=["explicit"])
    assert (one.observer, one.subject, one.session_key) == ("coach", "bob", "bob's")
    assert found("tea", session_key="nowhere") == found("tea", observer="x", levels=["explicit"]) == []


# Of each fact: its category, the day it was said, and the day on which it was superseded.
TEAS = (("preference", 0, 2), ("event", 1, None), ("preference", 2, None), ("plan", 3, None))
CATEGORIES = (None, ["preference"], ["event", "plan"])
SINCE, UNTIL, AS_OF = (None, START, START + DAY), (None, START + 2 * DAY, START + 3 * DAY), (None, START + 1.5 * DAY)
HELD = """
SELECT m.content FROM memories m LEFT JOIN perspectives p ON p.id = m.perspective_id
WHERE (CAST(:categories AS text[]) IS NULL OR m.category = ANY(:categories))
  AND (CAST(:since AS timestamptz) IS NULL OR m.occurred_at >= :since)
  AND (CAST(:until AS timestamptz) IS NULL OR m.occurred_at < :until)
  AND (CAST(:observer AS text) IS NULL OR p.id IS NULL OR p.observer = :observer)
  AND CASE WHEN CAST(:as_of AS timestamptz) IS NULL THEN m.valid_to IS NULL
      ELSE m.occurred_at <= :as_of AND (m.valid_to IS NULL OR m.valid_to > :as_of) END
"""


@pytest.fixture
def teas(claude: Any, standin: StandIn) -> Sandbox:
    """What was said of tea on four days, and what two observers hold of it; the first of it they hold no more."""
    here: Sandbox = claude(NEXUS_REFLECT_MIN_NEW="1000")
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"])
    standin.answer(
        "derive",
        lambda call: observations(
            *(
                {"content": f"{call.parts[-1].split()[3]} tea {n}", "category": category, "sources": [n + 1]}
                for n, (category, _, _) in enumerate(TEAS)
            )
        ),
    )
    talk(*(f"My tea of day {day}." for _, day, _ in TEAS))
    work("derive_memory")
    for n, (_, _, ended) in enumerate(TEAS):
        if ended is not None:
            when = START + ended * DAY
            here.sql("UPDATE memories SET valid_to = :when WHERE content LIKE '%tea ' || :n", when=when, n=str(n))
    return here


def test_categories_and_times_narrow_alone_and_with_all_the_others(teas: Sandbox) -> None:
    sizes = set()
    for categories, since, until, as_of, observer in itertools.product(
        CATEGORIES, SINCE, UNTIL, AS_OF, (None, "coach")
    ):
        wanted = {"categories": categories, "since": since, "until": until, "as_of": as_of, "observer": observer}
        held = {content for (content,) in teas.sql(HELD, **wanted)}
        assert set(found("tea", limit=50, collapse=False, **wanted)) == held, wanted
        sizes.add(len(held))
    assert len(sizes) > 5, "the filters leave different things"


@pytest.mark.usefixtures("teas")
def test_the_command_narrows_as_search_does() -> None:
    given = ["--category", "event", "--category", "preference", "--since", "2026-01-01T12:00:00Z"]
    given += ["--until", "2026-01-03", "--as-of", "2026-01-02T18:00:00Z", "--observer", "coach"]
    told = CliRunner().invoke(app, ["search", "tea", "--namespace", NAMESPACE, "--json", *given])
    assert told.exit_code == 0, told.output
    [hit] = json.loads(told.stdout)["results"]
    assert (hit["observer"], hit["content"][-1]) == ("coach", "1")


@pytest.mark.usefixtures("here")
def test_a_memory_is_found_behind_the_best_ones_that_a_filter_leaves_out() -> None:
    """A search sorts the best 400 by words first, and the others only when too few of these pass the filter."""
    before = [{"content": "harbor", "author": "ann", "occurred_at": START - DAY, "id": str(n)} for n in range(420)]
    say(*before, session="before")  # shorter, so each of them has a greater score
    talk("harbor of the northern fishing villages with many boats")
    assert found("harbor", since=START, levels=["raw"]) == ["harbor of the northern fishing villages with many boats"]


@pytest.mark.usefixtures("here")
def test_the_limit_is_kept_and_so_is_its_range() -> None:
    talk(*(f"Tea number {i}." for i in range(450)), observers=[])
    assert len(found("tea", limit=1_000)) == 450
    assert len(found("tea", limit=7)) == 7
    assert len(found("tea")) == 10
    for limit in (0, -1, 1_001):
        with pytest.raises(InvalidInput, match="limit"):
            found("tea", limit=limit)


def test_archived_and_superseded_memories_are_found_only_when_they_are_meant(here: Sandbox) -> None:
    talk("I live in Porto.", "I live in Lisbon.", "I live in Faro.", observers=[])
    here.sql("UPDATE memories SET archived_at = now() WHERE content LIKE '%Porto%'")
    here.sql("UPDATE memories SET valid_to = :t WHERE content LIKE '%Lisbon%'", t=START + 3 * DAY)
    assert found("I live in") == ["I live in Faro."]
    assert set(found("I live in", levels=["raw"])) == {"I live in Porto.", "I live in Faro."}
    assert set(found("I live in", as_of=START + 1.5 * DAY)) == {"I live in Porto.", "I live in Lisbon."}
    assert found("I live in", as_of=START - DAY) == []
    assert set(found("I live in", as_of=datetime.max)) == {"I live in Porto.", "I live in Faro."}
    assert found("I live in", as_of=datetime.min) == []


def test_a_hit_comes_with_its_evidence_and_why_it_was_found(claude: Any, standin: StandIn) -> None:
    claude()
    standin.answer("derive", lambda _: observations(("Ann likes tea.", [1, 2])))
    talk("I like tea.", "Tea it is.")
    work("derive_memory")
    hit = Nexus().search(NAMESPACE, "who likes tea?", levels=["explicit"])[0]
    assert [(edge.id, edge.external_id, edge.role) for edge in hit.evidence] == [
        (1, "chat-0", "derived_from"),
        (2, "chat-1", "derived_from"),
    ]
    assert set(hit.why) == {"words", "vector", "neighbours", "standing"}  # it has a share of its messages' scores
    raw = Nexus().search(NAMESPACE, "who likes tea?", levels=["raw"])
    assert {one.external_id for one in raw} == {"chat-0", "chat-1"}
    assert raw.missing_embeddings == 0
    talk("Not derived, so without a vector.", session="later", observers=[])
    assert Nexus().search(NAMESPACE, "vector").missing_embeddings == 1


# --- repeats ----------------------------------------------------------------------------------------------------------
def test_memories_that_say_the_same_are_one_hit_with_the_others_as_evidence(claude: Any, standin: StandIn) -> None:
    claude()
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"])
    standin.answer("derive", lambda _: observations(("Ann drinks green tea.", [1]), ("Ann lives in Porto.", [1, 2])))
    talk("I drink green tea in Porto.", "Porto is where I live.")
    work("derive_memory")
    every = Nexus().search(NAMESPACE, "green tea in Porto", collapse=False)
    assert sorted(hit.level for hit in every) == ["explicit"] * 4 + ["raw"] * 2
    hits = Nexus().search(NAMESPACE, "green tea in Porto")
    assert len(hits) == 3
    shown = {one.id for hit in hits for one in (hit, *hit.evidence)}
    assert shown == {hit.id for hit in every}
    first = next(hit for hit in hits if "green tea" in hit.content)
    assert {one.role for one in first.evidence} <= {"derived_from", "repeats"}
    assert len(Nexus().search(NAMESPACE, "green tea", levels=["explicit"])) == 2  # the same facts of two observers


# --- words ------------------------------------------------------------------------------------------------------------
WORDS = [
    ("We meet at 10:30 tomorrow.", "10:30"),
    ("The rent is 4,000 euros.", "4,000"),
    ("It weighs 3.5kg.", "3.5kg"),
    ("Python 3.11.2 is out.", "version 3.11.2"),
    ("मैं हिन्दी बोलता हूँ।", "हिन्दी"),
    ("Ich wohne in Köln.", "KÖLN"),
    ("I read O'Neil's book.", "o'neil"),
    ("I can't swim.", "can't swim"),
]


@pytest.mark.usefixtures("here")
def test_words_are_found_whatever_they_are_made_of() -> None:
    talk("Something else.", *(said for said, _ in WORDS), observers=[])  # without vectors: by words alone
    for said, asked in WORDS:
        best, *others = Nexus().search(NAMESPACE, asked)
        assert best.content == said
        assert all(set(other.why) == {"neighbours"} for other in others)


ODD = [
    "!!!",
    "'",
    '"',
    "''' \"\"\"",
    "& | ! ( ) <-> :*",
    "tea & | coffee",
    "tea:*",
    "!tea",
    "(tea",
    "tea <-> ",
    "\\",
    "tea\\'",
    "%_%",
    "\0",
    "tea\0tea",
    "\ud800",
    "🍵",
    "🍵 tea",
    "the a of",
    "NULL; DROP TABLE memories; --",
    ":param %(x)s {}",
    "x" * 10_000,
    "tea " * 2_500,
    " ".join(f"word{i}" for i in range(2_000)),
    "\u200b",
    "ﷺ" * 100,
    "ا" * 3_000,
    "1" * 5_000,
    "1:2:3:4",
    "....",
    "a'b''c",
]


@pytest.mark.usefixtures("here")
def test_no_query_breaks_the_search() -> None:
    talk("I like tea.", "I like coffee.", observers=[])
    for query in ODD:
        hits = Nexus().search(NAMESPACE, query)
        assert len(hits) <= 2
        Nexus().context(NAMESPACE, query=query, session_key="chat", max_tokens=200)
    for blank in ("", "   ", "\n"):
        with pytest.raises(InvalidInput, match="query"):
            Nexus().search(NAMESPACE, blank)


@pytest.mark.usefixtures("here")
def test_no_text_breaks_the_search() -> None:
    talk("I like tea.", "I like coffee.", observers=[])

    @settings(max_examples=60, deadline=None)
    @given(st.text(min_size=1, max_size=60))
    def ask(query: str) -> None:
        if query.strip():
            Nexus().search(NAMESPACE, query, limit=3)

    ask()


@pytest.mark.usefixtures("here")
def test_no_filter_breaks_the_search() -> None:
    talk("I like tea.", observers=[])
    for odd in ("\0", "a\0b", "\ud800", "'; --", "%", "🍵", "x" * 10_000):
        for name in ("observer", "subject", "session_key"):
            with suppress(InvalidInput):  # or it finds nothing; it is never an error of the database
                assert Nexus().search(NAMESPACE, "tea", **{name: odd}, levels=["explicit"]) == []
                Nexus().context(NAMESPACE, **{name: odd}, max_tokens=100)


@pytest.mark.usefixtures("here")
def test_a_text_that_cannot_be_indexed_is_the_caller_s_fault_and_not_postgres_s() -> None:
    """Its words leave no room for the pairs of its characters."""
    random, signs = Random(14), [chr(sign) for sign in range(0x4E00, 0x9FFF)]
    with pytest.raises(InvalidInput, match="larger than Postgres takes"):
        talk(" ".join("".join(random.choices(signs, k=4)) for _ in range(150_000)), observers=[])


@pytest.mark.usefixtures("here")
def test_an_error_of_the_database_does_not_tell_what_was_said() -> None:
    """Errors end in logs and dead letters."""
    with pytest.raises(DataError) as caught, default_deployment().database.transaction() as tx:
        tx.execute(text("SELECT 1 / 0 WHERE :said <> ''"), {"said": "SECRET"})
    assert "division by zero" in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_without_an_index_of_vectors_a_ranking_finds_as_many_by_vectors_as_it_may_return(here: Sandbox) -> None:
    """Before, a context found 40, and had 0.864 instead of 0.875 of LoCoMo's evidence in 2,000 tokens."""
    for number in range(90):
        say(f"Garden {number}.", session=f"session-{number}")  # alone, so that no neighbour brings it in
    work()
    with here.deployment.database.reading() as tx:
        known = Filter(namespace_id=namespaces.get(tx, NAMESPACE).id, levels=["raw"])
        found = retrieval.ranking(tx, here.deployment.embedder, known, "gardenia", 80, collapsed=False, pool=40)
    assert len(found.best) == 80
    assert not any(one.words for one in found.best)


# --- namespaces -------------------------------------------------------------------------------------------------------
def test_nothing_leaks_from_one_namespace_into_another(claude: Any, standin: StandIn) -> None:
    """The same session keys, message ids, authors and observers; and the ids of the one asked for in the other."""
    claude()
    nexus = Nexus()
    for name, drink in (("one", "kombucha"), ("two", "espresso")):
        message = {"content": f"I like {drink}.", "author": "ann", "id": "m1"}
        nexus.ingest(name, "chat", [message], end=True)
    work()
    for name, drink, other in (("one", "kombucha", "espresso"), ("two", "espresso", "kombucha")):
        for asked in (f"I like {other}", "ann", "like", "chat"):
            hits = nexus.search(name, asked, limit=100)
            assert hits
            assert not [hit for hit in hits if other in hit.content]
            assert {edge.external_id for hit in hits for edge in hit.evidence} <= {"m1", None}
        for options in ({}, {"query": f"I like {other}"}, {"session_key": "chat"}, {"observer": "assistant"}):
            block = nexus.context(name, **options)
            assert drink in block.text
            assert other not in block.text
        assert not [memory for memory in nexus.memories(name) if other in memory.content]
        assert [turn.content for turn in nexus.session(name, "chat").said] == [f"I like {drink}."]
        assert [session.messages for session in nexus.sessions(name)] == [1]
    theirs = {memory.id for memory in nexus.memories("two")}
    for memory_id in theirs:
        with pytest.raises(NotFound):
            nexus.memory("one", memory_id)
    assert nexus.ingest("one", "chat", [{"content": "Another.", "author": "ann", "id": "m2"}]).stored == 1
    assert not [call for call in standin.counters.requests if "kombucha" in call.text and "espresso" in call.text]
    assert len(facts("one")) == len(facts("two")) == 1


@pytest.mark.parametrize("known", ["nothing", "small namespaces"])
def test_a_search_reads_few_rows_before_the_tables_have_statistics(here: Sandbox, known: str) -> None:
    """Autovacuum gives a table its statistics minutes after many messages were stored at once."""
    here.sql("TRUNCATE memories CASCADE")
    here.sql("DELETE FROM pg_statistic WHERE starelid = 'memories'::regclass")  # those of an earlier test
    if known == "small namespaces":  # any namespace then looks as if it had one message
        many = "FROM generate_series(1, 300) AS n"
        here.sql(f"INSERT INTO namespaces (name) SELECT 'n' || n {many}")
        here.sql("INSERT INTO sessions (namespace_id, session_key) SELECT id, 'chat' FROM namespaces")
        here.sql(
            "INSERT INTO memories (namespace_id, session_id, level, seq, author, content, tokens, occurred_at)"
            " SELECT namespace_id, id, 'raw', 1, 'ann', 'Hello.', 2, now() FROM sessions"
        )
        here.sql("ANALYZE memories")
    for table in ("memories", "postings", "embeddings", "evidence"):
        here.sql(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    for number in range(3):
        Nexus().ingest(
            "acme",
            f"s{number}",
            [{"content": f"Tea number {n} of the garden.", "author": f"p{n % 9}", "id": str(n)} for n in range(1_000)],
            observers=[],
        )
    read = text("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'memories'")
    with here.deployment.database.transaction() as tx:
        acme = namespaces.get(tx, "acme")
        retrieval.search(tx, here.deployment.embedder, Filter(namespace_id=acme.id), "garden of tea", 10)
        rows = tx.scalar(read) or 0
    for table in ("memories", "postings", "embeddings", "evidence"):
        here.sql(f"ALTER TABLE {table} RESET (autovacuum_enabled)")
    assert rows < 15_000, "the search has read every message again and again"
