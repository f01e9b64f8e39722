"""What search knows of its words: right with writers at once, after a rewording and after erasure; and its upkeep."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.storage.searching import candidates, few_memories, near_memories, query_stats, upkeep
from nexus_tasks.storage.searching.candidates import K1, B
from nexus_tasks.storage.searching.query_stats import QueryStats, read_query_stats
from nexus_tasks.storage.searching.scope import Filter, build_scope
from nexus_tasks.storage.searching.vectors import distance, namespace_vectors
from tests.integration.inline import NAMESPACE, say, work
from tests.sandbox import Sandbox

# Words that are their own stems, so that a test may count them.
DRINKS = ("tea", "milk", "rum", "mead", "gin")


def known(question: str) -> QueryStats:
    """What a search for ``question`` would know beforehand."""
    here = default_deployment()
    with here.database.reading() as tx:
        namespace_id = tx.execute(text("SELECT id FROM namespaces WHERE name = :n"), {"n": NAMESPACE}).scalar_one()
        return read_query_stats(tx, build_scope(Filter(namespace_id=namespace_id)), question, here.embedder.name)


def counted(*words: str) -> dict[str, int]:
    """In how many memories search believes each word to be; words in none are left out."""
    found = {word: known(word).words[0].memories for word in words}
    return {word: n for word, n in found.items() if n}


def recount(here: Sandbox, *words: str) -> dict[str, int]:
    """In how many memories each word is, by looking at all of them."""
    found = {
        word: here.sql("SELECT count(*) FROM memories WHERE tsv @@ CAST(:w AS tsquery)", w=word)[0][0] for word in words
    }
    return {word: n for word, n in found.items() if n}


def totals(here: Sandbox) -> tuple[int, float]:
    """Memories and their mean length, by looking at all of them."""
    [(n, length)] = here.sql(
        "SELECT count(*), sum((SELECT sum(cardinality(positions)) FROM unnest(tsv))) FROM memories"
    )
    return int(n), float(length or 0) / max(int(n), 1)


def is_right(here: Sandbox) -> None:
    """Everything that search knows equals a recount."""
    assert counted(*DRINKS) == recount(here, *DRINKS)
    assert (known("tea").memories, known("tea").mean_length) == pytest.approx(totals(here))
    assert here.sql("SELECT count(*) FROM postings") == here.sql("SELECT sum(length(tsv)) FROM memories")
    lost = "SELECT count(*) FROM postings WHERE memory_id NOT IN (SELECT id FROM memories)"
    assert here.sql(lost) == [(0,)]


def drinks(writer: int, n: int) -> list[str]:
    """Messages of one writer: the n-th word is in every n-th one."""
    return [" ".join(w for i, w in enumerate(DRINKS, 1) if m % i == 0) + f" {writer}x{m}" for m in range(n)]


def test_frequencies_are_right_after_writers_at_once_and_after_each_kind_of_change(here: Sandbox) -> None:
    say("first")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda i: say(*drinks(i, 20), session=f"s{i}", observers=[]), range(6)))
    is_right(here)
    assert counted("tea") == {"tea": 120}
    here.sql("UPDATE memories SET content = 'rum rum rum' WHERE content LIKE '%0x1%'")
    is_right(here)
    here.sql("UPDATE memories SET times_reinforced = 3, archived_at = now()")  # changes no word
    is_right(here)
    here.sql("DELETE FROM memories WHERE id % 3 = 0")
    is_right(here)
    here.sql("DELETE FROM sessions WHERE session_key = 's1'")
    is_right(here)
    before = known("tea milk")
    upkeep.run(default_deployment().database)
    assert known("tea milk") == before
    assert here.sql("SELECT count(*) FROM search_totals WHERE model = ''") == [(1,)]
    is_right(here)


def test_nothing_is_left_of_an_erased_namespace(here: Sandbox) -> None:
    say(*drinks(0, 10))
    work()
    here.sql("DELETE FROM namespaces")
    for table in ("postings", "search_totals", "common_words", "embeddings", "memories"):
        assert here.sql(f"SELECT count(*) FROM {table}") == [(0,)]


def test_the_same_word_in_two_namespaces_is_counted_apart(here: Sandbox) -> None:
    say("tea", "tea milk")
    say("tea rum", namespace="other")
    assert counted(*DRINKS) == {"tea": 2, "milk": 1}
    per_word = here.sql("SELECT count(*) FROM postings GROUP BY key ORDER BY 1")
    assert per_word == [(1,), (1,), (1,), (2,)]  # in the other tea, rum; here milk, tea


def test_common_words_are_counted_by_upkeep_and_again_after_erasure(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (query_stats, upkeep):
        monkeypatch.setattr(module, "MOST_COUNTED", 10)
    query_stats._statement.cache_clear()
    try:
        say(*(f"tea {i}" for i in range(30)), observers=[])
        assert counted("tea") == {"tea": 11}  # at least so many
        assert upkeep.run(default_deployment().database).counted == 1
        assert counted("tea") == {"tea": 30}
        assert upkeep.run(default_deployment().database).counted == 0  # nothing has changed
        here.sql("DELETE FROM memories WHERE id > 20")
        assert upkeep.run(default_deployment().database).counted == 1
        assert counted("tea") == recount(here, "tea") == {"tea": 20}
        here.sql("DELETE FROM memories WHERE id > 5")
        upkeep.run(default_deployment().database)
        assert here.sql("SELECT count(*) FROM common_words") == [(0,)]
        assert counted("tea") == {"tea": 5}
    finally:
        query_stats._statement.cache_clear()


# Words with one key, because the key is a hash whose seed is the id of a namespace. They were computed for the ids.
SAME_KEY = ("zanzibar", "hsdpdvr8тbr")  # both in the namespace 1
SAME_KEY_IN_TWO = ("marathon", "6atht70iikw3")  # the first in the namespace 1, the second in the namespace 2


@pytest.fixture
def most_counted_10(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A word in more than 10 memories is common."""
    for module in (query_stats, upkeep, candidates, few_memories, near_memories):
        monkeypatch.setattr(module, "MOST_COUNTED", 10)
    caches = (query_stats._statement, candidates._statement)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def two_namespaces(here: Sandbox) -> None:
    """The namespaces 1 and 2, for which the words above have the same keys."""
    say("I ran a marathon.", *(f"{number} cups of tea" for number in range(20)), observers=[])
    say(*(f"{SAME_KEY_IN_TWO[1]} {number}" for number in range(20)), namespace="other", observers=[])
    assert here.sql("SELECT id, name FROM namespaces ORDER BY id") == [(1, NAMESPACE), (2, "other")]
    keys = "SELECT hashtextextended(:a, 1) = hashtextextended(:b, :seed)"
    for (first, second), seed in ((SAME_KEY, 1), (SAME_KEY_IN_TWO, 2)):
        assert here.sql(keys, a=first, b=second, seed=seed) == [(True,)]


@pytest.mark.usefixtures("most_counted_10")
def test_a_word_of_another_namespace_with_the_same_key_hides_nothing(here: Sandbox) -> None:
    two_namespaces(here)
    assert counted("marathon") == {"marathon": 1}
    [best, *_] = Nexus().search(NAMESPACE, "marathon")
    assert best.content == "I ran a marathon."
    assert best.why["words"] > 0


@pytest.mark.usefixtures("most_counted_10")
def test_words_with_the_same_key_do_not_end_the_upkeep(here: Sandbox) -> None:
    two_namespaces(here)
    say(*(f"marathon {' '.join(SAME_KEY)} {number}" for number in range(20)), observers=[], session="s2")
    assert upkeep.run(default_deployment().database).counted == 2
    assert counted("marathon", *SAME_KEY) == {"marathon": 21, "zanzibar": 20, SAME_KEY[1]: 20}


def test_each_look_up_of_a_word_names_the_namespace_or_the_memories() -> None:
    """Else words of another namespace with the same key would count."""
    folder = Path(query_stats.__file__).parent
    looked_up = [
        found[0]
        for path in folder.glob("*.py")
        for found in re.finditer(r"(?:FROM|JOIN) (?:postings|common_words)\b(?:(?!FROM|JOIN)[^;])*", path.read_text())
        if "key =" in found[0]
    ]
    assert len(looked_up) >= 9
    assert [one for one in looked_up if not re.search(r"namespace_id = |memory_id = |_AMONG", one)] == []


def test_words_are_scored_by_bm25(here: Sandbox) -> None:
    said = ["tea tea tea milk", "tea", "milk rum", "rum " * 30 + "tea", "gin", "mead mead"]
    say(*({"content": one, "author": "the"} for one in said), observers=[])  # a stop word: no word of the memory
    question = ["tea", "milk"]
    hits = Nexus().search(NAMESPACE, " ".join(question), limit=10)
    got = {hit.content: hit.why.get("words", 0.0) for hit in hits}
    assert set(got) >= set(said[:4])  # and their neighbours
    assert got == pytest.approx({one: bm25(question, one, said) for one in got}, abs=1e-4)
    assert here.sql("SELECT max(frequency), max(length) FROM postings") == [(30, 31)]


def bm25(question: Sequence[str], one: str, every: Sequence[str]) -> float:
    """The textbook's formula, in Lucene's form."""
    mean = sum(len(other.split()) for other in every) / len(every)
    counts, score = Counter(one.split()), 0.0
    for word in question:
        having = sum(word in other.split() for other in every)
        rarity = math.log(1 + (len(every) - having + 0.5) / (having + 0.5))
        length = 1 - B + B * len(one.split()) / mean
        score += rarity * counts[word] * (K1 + 1) / (counts[word] + K1 * length)
    return score


def test_a_text_with_too_many_words_in_a_new_language_stops_no_other_upkeep(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for word in ("tea", "rum"):
        say(word, session=word)
    here.sql("UPDATE namespaces SET reworded_through = 0")
    too_long = "SELECT CAST(string_agg(md5(CAST(n AS text)), ' ') AS tsvector) FROM generate_series(1, 60000) AS n"
    monkeypatch.setattr(upkeep, "_MAKE_BATCH_ANEW", text(f"{too_long} WHERE n > :id - :id - :most"))
    upkeep.run(default_deployment().database)
    assert "keep their old words" in caplog.text
    assert here.sql("SELECT count(*) FROM search_totals WHERE model = ''") == [(1,)]


def test_large_namespaces_get_a_vector_index_of_their_own_and_lose_it_again(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (query_stats, upkeep):
        monkeypatch.setattr(module, "MOST_UNINDEXED", 20)
    say(*(f"tea number {i}" for i in range(30)), end=True)
    say("milk", namespace="small")
    work("derive_memory")
    before = answers()
    assert not known("tea").indexed  # there are many vectors, and no index yet
    done = upkeep.run(default_deployment().database)
    assert len(done.indexed) == 1
    assert done.dropped == ()
    assert upkeep.run(default_deployment().database) == upkeep.Upkeep()
    assert done.indexed[0] in plan_of_the_nearest()
    assert known("tea").indexed
    assert answers() == before
    here.sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass(:name)", name=done.indexed[0])
    assert not known("tea").indexed  # it is being built, or its building was interrupted
    here.sql("UPDATE pg_index SET indisvalid = true WHERE indexrelid = to_regclass(:name)", name=done.indexed[0])
    here.sql("DELETE FROM memories WHERE level = 'raw' OR id > 25")
    assert upkeep.run(default_deployment().database).dropped == done.indexed
    here.sql(f"CREATE INDEX {done.indexed[0]} ON embeddings (model)")
    assert upkeep.run(default_deployment().database).dropped == done.indexed  # it is of no use any more


def plan_of_the_nearest() -> str:
    """How Postgres finds the nearest vectors when it may not sort them: the small size alone must not decide."""
    vector = f"[{','.join(['1'] * 384)}]"
    within = namespace_vectors(1, "hashing-384")
    statement = f"SELECT e.memory_id FROM embeddings AS e WHERE {within} ORDER BY {distance(384, indexed=True)} LIMIT 5"
    with default_deployment().database.transaction() as tx:
        tx.execute(text("SET LOCAL enable_sort = off"))
        return "\n".join(tx.scalars(text(f"EXPLAIN {statement}"), {"vector": vector}))


def answers() -> list[int]:
    """What a search finds now."""
    return [hit.id for hit in Nexus().search(NAMESPACE, "tea number 7", limit=5)]


@pytest.mark.usefixtures("here")
def test_upkeep_leaves_it_to_the_one_that_is_at_it() -> None:
    say("tea")
    say("milk")
    with default_deployment().database.dedicated_connection() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": upkeep._LOCK})
        assert upkeep.run(default_deployment().database) == upkeep.Upkeep()
    assert upkeep.run(default_deployment().database).folded > 0


def test_the_missing_vectors_are_counted_and_stop_nothing(here: Sandbox) -> None:
    say("tea in the morning", "milk at night", end=True)
    work("derive_memory")
    assert Nexus().search(NAMESPACE, "tea").missing_embeddings == 0
    here.sql("DELETE FROM embeddings WHERE memory_id = 1")
    found: Any = Nexus().search(NAMESPACE, "tea", levels=["raw"])
    assert found.missing_embeddings == 1
    assert found[0].content == "tea in the morning"
    assert set(found[0].why) == {"words"}
    here.sql("DELETE FROM embeddings")
    total = here.sql("SELECT count(*) FROM memories")[0][0]
    found = Nexus().search(NAMESPACE, "tea", levels=["raw"])
    assert found.missing_embeddings == total
    assert found[0].content == "tea in the morning"


def test_a_search_reads_no_whole_table(here: Sandbox) -> None:
    """Among 4,000 memories a plan that reads whole tables looks cheap to the planner, and takes twice as long."""
    say("I read a book about rivers.")
    work("derive_memory")
    here.sql(
        "INSERT INTO memories (namespace_id, session_id, level, seq, author, content, tokens, occurred_at)"
        " SELECT namespace_id, id, 'raw', n, 'ann', 'I read book ' || n || ' about boats.', 7, now()"
        " FROM sessions, generate_series(2, 4000) AS n"
    )
    here.sql(
        "INSERT INTO embeddings (namespace_id, memory_id, model, vector)"
        " SELECT m.namespace_id, m.id, e.model, e.vector FROM memories AS m, (SELECT * FROM embeddings LIMIT 1) AS e"
        " WHERE m.id NOT IN (SELECT memory_id FROM embeddings)"
    )
    here.sql("ANALYZE")
    plans = list[str]()

    def explain(connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, _many: bool) -> None:
        if "every AS" in statement:
            plan = connection.connection.cursor().execute("EXPLAIN " + statement, values).fetchall()
            plans.append("\n".join(line for (line,) in plan))

    event.listen(here.deployment.database.engine, "before_cursor_execute", explain)
    try:
        assert Nexus().search(NAMESPACE, "which book is about boats?")
    finally:
        event.remove(here.deployment.database.engine, "before_cursor_execute", explain)
    [plan] = plans
    for table in ("memories", "postings"):  # below 5,000 vectors all of them are compared
        assert f"Seq Scan on {table}" not in plan, plan
