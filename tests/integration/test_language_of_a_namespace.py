"""The language of a namespace: forms of words are found in it, old memories follow, and a wrong name is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from nexus_tasks import Nexus
from nexus_tasks.errors import InvalidInput
from nexus_tasks.storage.searching import upkeep
from tests.integration.inline import NAMESPACE, say
from tests.sandbox import Sandbox

# Without a frequent word of the language, the guess is English. Then the question's form of the word is not found.
SAID = ["Wohnungen besichtigt, Altbau.", "Gestern Spaziergang, Regen.", "Kuchen gebacken."]
QUESTION = "Wohnung besichtigen"


def words_of_the_best(question: str = QUESTION, namespace: str = NAMESPACE) -> tuple[str, float]:
    """The best message and the score of its words."""
    hits = Nexus().search(namespace, question, levels=["raw"], limit=1)
    return (hits[0].content, float(hits[0].why.get("words", 0.0))) if hits else ("", 0.0)


@pytest.mark.parametrize(
    ("language", "said", "question"),
    [
        ("german", "Wohnungen besichtigt, Altbau.", "Wohnung besichtigen"),
        ("spanish", "Zapatos rojos comprados.", "comprar zapato rojo"),
        ("finnish", "Talossamme asuu koiria.", "koirat talossa"),
    ],
)
def test_forms_of_words_are_found_in_the_language_of_the_namespace(
    here: Sandbox, language: str, said: str, question: str
) -> None:
    say(said, "Nothing else.", namespace="guessed", observers=[])
    Nexus().create_namespace("named", language=language)
    say(said, "Nothing else.", namespace="named", observers=[])
    best, score = words_of_the_best(question, "named")
    assert best == said
    assert score > words_of_the_best(question, "guessed")[1]
    assert Nexus().namespace("named").language == language
    assert Nexus().namespace("guessed").language is None
    assert here.sql("SELECT reworded_through FROM namespaces WHERE name = 'guessed'") == [(None,)]


def test_memories_from_before_follow_a_change_in_batches(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "AT_ONCE", 2)
    say(*SAID, observers=[])
    say(*SAID, namespace="other", observers=[])
    before = words_of_the_best()[1]
    Nexus().set_namespace(NAMESPACE, language="german")
    assert upkeep.run(here.deployment.database).reworded == 3
    assert words_of_the_best()[0] == SAID[0]
    assert words_of_the_best()[1] > before
    assert upkeep.run(here.deployment.database).reworded == 0
    is_whole(here)
    Nexus().set_namespace(NAMESPACE, unset=["language"])
    assert upkeep.run(here.deployment.database).reworded == 3
    assert words_of_the_best()[1] == pytest.approx(before)
    is_whole(here)


def is_whole(here: Sandbox) -> None:
    """The words, the postings and the totals are those of the namespace's language."""
    wrong = (
        "SELECT content FROM memories JOIN namespaces ON namespaces.id = namespace_id"
        " WHERE tsv IS DISTINCT FROM search_terms(content, ('pg_catalog.' || language)::regconfig)"
    )
    assert here.sql(wrong) == []
    keys = "SELECT hashtextextended(lexeme, namespace_id), id FROM memories, unnest(tsv) ORDER BY 1, 2"
    assert here.sql("SELECT key, memory_id FROM postings ORDER BY 1, 2") == here.sql(keys)
    length = "SELECT sum((SELECT sum(cardinality(positions)) FROM unnest(tsv))) FROM memories"
    assert here.sql("SELECT sum(length) FROM search_totals WHERE model = ''") == here.sql(length)


def test_a_run_that_dies_goes_on_where_it_was(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "AT_ONCE", 1)
    say(*SAID, observers=[])
    Nexus().set_namespace(NAMESPACE, language="german")
    noted = list[int]()

    def execute(_connection: Any, _cursor: Any, statement: str, *_values: Any) -> None:
        if "SET reworded_through" in statement:
            noted.append(1)
            if len(noted) == 2:
                raise KeyboardInterrupt

    engine = here.deployment.database.engine
    event.listen(engine, "before_cursor_execute", execute)
    with pytest.raises(KeyboardInterrupt):
        upkeep.run(here.deployment.database)
    event.remove(engine, "before_cursor_execute", execute)
    assert here.sql("SELECT reworded_through FROM namespaces") == here.sql("SELECT min(id) FROM memories")
    assert upkeep.run(here.deployment.database).reworded == 2
    is_whole(here)


def test_a_language_set_during_a_batch_begins_anew(here: Sandbox) -> None:
    say(*SAID, observers=[])
    Nexus().set_namespace(NAMESPACE, language="german")
    with here.deployment.database.transaction() as tx:
        batch = tx.execute(upkeep._MAKE_BATCH_ANEW, {"id": 1, "most": 2}).one()
        Nexus().set_namespace(NAMESPACE, language="spanish")
        assert tx.execute(upkeep._NOTE_BATCH, {"id": 1, "most": 2, **batch._mapping}).all() == []
    assert upkeep.run(here.deployment.database).reworded == 3
    is_whole(here)


def test_a_writer_under_way_is_not_missed(here: Sandbox) -> None:
    say(SAID[1], observers=[])
    insert = text(
        "INSERT INTO memories (namespace_id, level, content, author, tokens, occurred_at)"
        " VALUES (1, 'raw', :said, 'ann', 9, now())"
    )
    with ThreadPoolExecutor(1) as pool:
        with here.deployment.database.transaction() as tx:
            tx.execute(insert, {"said": SAID[0]})  # its words are English ones
            Nexus().set_namespace(NAMESPACE, language="german")
            run = pool.submit(upkeep.run, here.deployment.database)
            with pytest.raises(TimeoutError):
                run.result(timeout=1.0)  # it waits for the writer
        assert run.result(timeout=30).reworded == 2
    is_whole(here)
    assert words_of_the_best()[0] == SAID[0]


@pytest.mark.usefixtures("here")
def test_an_unknown_language_is_refused_with_the_known_ones() -> None:
    say(*SAID, observers=[])
    with pytest.raises(InvalidInput, match=r"language must be one of .*german.*spanish.*, not 'klingon'"):
        Nexus().set_namespace(NAMESPACE, language="klingon")
    assert Nexus().namespace(NAMESPACE).language is None


@pytest.mark.usefixtures("here")
def test_the_language_goes_with_an_export(tmp_path: Path) -> None:
    say(*SAID, observers=[])
    Nexus().set_namespace(NAMESPACE, language="german")
    path = tmp_path / "memory.jsonl"
    Nexus().export(NAMESPACE, path)
    assert "tsv" not in path.read_text()
    Nexus().import_("copy", path)
    assert Nexus().namespace("copy").language == "german"
    assert words_of_the_best(namespace="copy")[0] == SAID[0]
    path.write_text(path.read_text().replace("german", "klingon"))
    with pytest.raises(InvalidInput, match="language must be one of"):
        Nexus().import_("bad", path)
