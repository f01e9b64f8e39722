"""The words by which a message is found: identifiers and their parts, languages, scripts without spaces, authors."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from benchmarks import quality_identifiers as identifiers
from nexus_tasks import Message, Nexus
from nexus_tasks.storage import schema
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.storage.searching.identifiers import MOST_HAVING, having, identifiers_of
from tests.integration.inline import say, work
from tests.sandbox import Sandbox

IDENTIFIERS = [
    "The leak is in src/db/session_pool.py, line 88.",
    "PROJ-4821 is the ticket for the login page.",
    "maxRetryCount was 3 and should be 5.",
    "Set billing.tax.default_rate to 0.19.",
    "The regression came with commit 9f3c1ab47de2.",
    "We pinned libxml to v2.11.4.",
    "Start it with --max-old-space-size=4096.",
]
OTHERS = ["The session went well.", "Our pool is warm.", "There were 48 of us.", "I count on you.", "The tax is due."]


def first(question: str, namespace: str = "acme") -> str:
    """The content of the first hit."""
    return Nexus().search(namespace, question, levels=["raw"], limit=1)[0].content


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("question", "place"),
    [
        ("src/db/session_pool.py", 0),
        ("session_pool", 0),
        ("session pools", 0),
        ("session_pool.py", 0),
        ("PROJ-4821", 1),
        ("4821", 1),
        ("#4821", 1),
        ("proj 4821", 1),
        ("maxRetryCount", 2),
        ("max_retry_count", 2),
        ("retry counts", 2),
        ("default_rate", 3),
        ("billing.tax", 3),
        ("9f3c1ab", 4),
        ("9f3c1ab47", 4),
        ("9F3C1AB47DE2", 4),
        ("2.11.4", 5),
        ("v2.11.4", 5),
        ("max-old-space-size", 6),
    ],
)
def test_an_identifier_is_found_whole_by_parts_by_stem_and_by_prefix(question: str, place: int) -> None:
    say(*(line for pair in zip(IDENTIFIERS, [*OTHERS, *OTHERS], strict=False) for line in pair))
    assert first(question) == IDENTIFIERS[place]
    assert Nexus().search("acme", question, levels=["raw"], limit=1)[0].why["words"] > 0


@pytest.mark.usefixtures("here")
def test_an_identifier_as_it_is_written_is_found_before_its_parts_in_talk() -> None:
    """Most messages are everyday sentences that have the parts of the identifiers, such as a session and a pool."""
    Nexus().ingest("acme", "work", [Message(content=said, author=by, id=i) for i, by, said in identifiers.MESSAGES])
    work()
    places = {
        question: [hit.external_id for hit in Nexus().search("acme", question, levels=["raw"], limit=10)].index(wanted)
        for _, question, wanted in identifiers.QUESTIONS
    }
    later = {question: place for question, place in places.items() if place}
    assert len(later) <= 0.1 * len(places), later
    assert not {"session_pool", "session-pool", "default_rate", "CheckoutButton"} & later.keys()


def test_an_identifier_is_looked_for_in_the_beginning_of_a_long_message(here: Sandbox) -> None:
    say("word " * 4_000 + "session_pool", "word " * 3_000 + "session_pool")
    ids = [one for (one,) in here.sql("SELECT id FROM memories WHERE level = 'raw' ORDER BY id")]
    with here.deployment.database.reading() as tx:
        assert having(tx, ids, identifiers_of("session-pool")) == {ids[1]}


def test_an_identifier_that_many_memories_have_is_a_common_word(here: Sandbox) -> None:
    say(*[f"We met {n} friends on WhatsApp." for n in range(MOST_HAVING + 1)])
    ids = [one for (one,) in here.sql("SELECT id FROM memories WHERE level = 'raw' ORDER BY id")]
    with here.deployment.database.reading() as tx:
        assert having(tx, ids, ["whatsapp"]) == frozenset()
        assert having(tx, ids[1:], ["whatsapp"]) == set(ids[1:])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("said", "question", "other"),
    [
        (
            "Ich habe zwei neue Wohnungen in Berlin besichtigt.",
            "Welche Wohnung hat sie besichtigt?",
            "Ich esse gern Brot.",
        ),
        ("J'ai acheté des chaussures rouges hier.", "Quelle chaussure est rouge ?", "Nous sommes dans le jardin."),
        ("Я купила красные ботинки вчера.", "красный ботинок", "Мы живём в Москве."),
        ("我对花生过敏。", "花生", "我们住在北京。"),
        ("ฉันแพ้ถั่วลิสงมาก", "ถั่วลิสง", "เราอยู่ที่กรุงเทพ"),
        ("ピーナッツにアレルギーがあります", "ピーナッツ", "東京に住んでいます"),
    ],
    ids=["german", "french", "russian", "chinese", "thai", "japanese"],
)
def test_words_of_other_languages_are_found_by_their_stems_or_pairs(said: str, question: str, other: str) -> None:
    say(other, said, "Nothing of this kind was said in English.")
    hit = Nexus().search("acme", question, levels=["raw"], limit=1)[0]
    assert hit.content == said
    assert hit.why["words"] > 0


def test_english_stays_english(here: Sandbox) -> None:
    lines = [
        "I am in.",
        "No, come on!",
        "Hey, so a man at a den was in it.",
        "La La Land was on TV, do you like it?",
        "Que sera sera is what they sang at the end of the evening.",
    ]
    found = here.sql("SELECT text_language(line)::text FROM unnest(CAST(:lines AS text[])) AS line", lines=lines)
    assert {name for (name,) in found} == {"english"}


@pytest.mark.parametrize(
    "piece",
    ["我对花生过敏", "src/db/x_y.py maxCount 9f3c1ab47 ", "a.b_c/", "ถั่ว ", "'\\\":1 ", "a_", "1a@", "~/", "<!-- "],
)
def test_a_message_of_a_million_characters_is_indexed_within_seconds(here: Sandbox, piece: str) -> None:
    start = time.monotonic()
    here.sql("SELECT length(search_terms(:said))", said=(piece * 10**6)[: 10**6])
    assert time.monotonic() - start < 20  # 0.5 s on an idle machine


@pytest.mark.usefixtures("here")
def test_words_without_a_space_between_them_are_found_whole() -> None:
    names = [f"kiln{number}fired" for number in range(1_000)]
    say("_".join(names), "<!-- The glaze is cobalt. --> Nothing is said here.")
    for word in (*names[::25], names[-1], "cobalt"):
        assert Nexus().search("acme", word, levels=["raw"], limit=1)[0].why["words"] > 0


@pytest.mark.usefixtures("here")
def test_values_of_json_and_csv_without_a_space_are_found_whole() -> None:
    others = ",".join(f'"kiln{number}":"fired"' for number in range(40))
    values = ["10.0.0.12", "2.11.4", "48.1371", "kiln@example.com"]
    for kind, said in [
        ("json", '{"ip":"10.0.0.12","version":"2.11.4","lat":48.1371,"email":"kiln@example.com",' + others + "}"),
        ("csv", "kiln," * 100 + ",".join(values)),
        ("html", "<table><tr>" + "<td>kiln</td>" * 40 + "".join(f"<td>{value}</td>" for value in values)),
    ]:
        say(said, "Nothing is said here.", namespace=kind)
        for value in values:
            assert Nexus().search(kind, value, levels=["raw"], limit=1)[0].why["words"] > 0, (kind, value)


@pytest.mark.usefixtures("here")
def test_a_message_of_a_hundred_thousand_different_words_is_stored_and_found_by_the_first() -> None:
    say(" ".join(f"kiln{number}" for number in range(100_000)))
    assert Nexus().search("acme", "kiln17", levels=["raw"], limit=1)[0].why["words"] > 0


@pytest.mark.usefixtures("here")
def test_a_message_that_the_parts_of_its_identifiers_make_too_large_is_stored() -> None:
    bits = Random(7).getrandbits
    urls = [f"https://h{bits(20):x}.example.com/p{bits(30):x}/f{bits(30):x}.html" for _ in range(20_000)]
    say("\n".join(urls)[: 10**6])
    assert Nexus().search("acme", urls[0], levels=["raw"], limit=1)[0].why["words"] > 0


@pytest.mark.usefixtures("here")
def test_a_name_is_no_answer_but_its_bearer_is() -> None:
    say(
        {"content": "Yeah, Caroline, that sounds good.", "author": "Melanie"},
        {"content": "Thanks, Caroline, you too.", "author": "Melanie"},
        {"content": "I joined a pottery class.", "author": "Melanie"},
        {"content": "I joined a choir this spring.", "author": "Caroline"},
    )
    assert first("What did Caroline join?") == "I joined a choir this spring."
    assert first("what did melanie join?") == "I joined a pottery class."
    assert "Caroline" in first("Caroline")  # nothing else is asked


def test_after_an_upgrade_upkeep_makes_all_words_anew(here: Sandbox) -> None:
    said: list[Any] = [{"content": "Look at src/db/session_pool.py.", "author": "Caroline"}, "Nothing else."]
    schema.downgrade(here.database_url, "0022")
    assert here.sql("SELECT tsv::text LIKE '%carolin%' FROM memories") == []
    here.sql("INSERT INTO namespaces (name) VALUES ('old')")
    here.sql(
        "INSERT INTO memories (namespace_id, level, content, author, tokens, occurred_at)"
        " SELECT id, 'raw', 'Look at src/db/session_pool.py.', 'Caroline', 9, now() FROM namespaces"
    )
    before = {key for (key,) in here.sql("SELECT key FROM postings")}
    schema.upgrade(here.database_url)
    assert {key for (key,) in here.sql("SELECT key FROM postings")} == before
    assert "session_pool" in first("Where to look", "old")  # old words are found until then
    assert upkeep.run(here.deployment.database).reworded == 1
    after = {key for (key,) in here.sql("SELECT key FROM postings")}
    now = {key for (key,) in here.sql("SELECT hashtextextended(lexeme, namespace_id) FROM memories, unnest(tsv)")}
    assert after == now != before
    totals = here.sql("SELECT sum(count), sum(length) FROM search_totals WHERE model = ''")
    assert totals == here.sql(
        "SELECT count(*), sum((SELECT sum(cardinality(positions)) FROM unnest(tsv))) FROM memories"
    )
    say(*said, namespace="old")
    assert "session_pool" in first("session pools", "old")
