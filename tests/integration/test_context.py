"""Context: its bound, its bytes, its citations, its forms, and what has precedence."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.storage import conclusions, digests, facts, namespaces, perspectives, sessions
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import ContextBlock
from tests.integration.inline import NAMESPACE, say, work
from tests.sandbox import Sandbox
from tests.standin import StandIn

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ODD = 'A “quoted” fact\u2028with\r\nbreaks, \\backslashes\\ and "quotes", emoji 🍵 and हिन्दी. '
SECTIONS = ["profile", "digest", "contradictions", "reflections", "facts", "messages", "not yet derived"]


@pytest.fixture
def full(here: Sandbox) -> Sandbox:
    """A namespace with more of everything than fits into a small context."""
    say(*(f"Turn {i}. {ODD * (i % 4)}" for i in range(30)))
    with default_deployment().database.transaction() as tx:
        known = namespaces.get(tx, NAMESPACE)
        session = sessions.get(tx, known.id, "chat", lock=True)
        ann = perspectives.lock(tx, known.id, "assistant", ["ann"])
        stored = facts.store(tx, ann, [draft(i, source=1 + i % 30, session_id=session.id) for i in range(120)])
        ids = [fact.id for fact in stored]
        for i in range(12):
            conclude(tx, ann["ann"], "derived", f"Insight {i}. {ODD}", ids[i : i + 3])
            conclude(tx, ann["ann"], "contradiction", f"Contradiction {i}. {ODD}", ids[i : i + 2])
        texts = {"short": f"The short digest.\n\n{ODD}", "long": "The long digest.\n\n" + ODD * 40}
        new = digests.NewDigest(texts=texts, end_seq=20, generation=0, sources=ids[:5], made_by="test")
        digests.store(tx, session, new)
    return here


def draft(number: int, *, source: int, session_id: int, **fields: Any) -> facts.FactDraft:
    """A fact about ann."""
    defaults = {
        "subject": "ann",
        "content": f"Fact number {number}. {ODD * (number % 5)}",
        "category": "fact",
        "confidence": 0.9,
        "labels": (),
        "sources": (source,),
        "valid_from": NOON - timedelta(hours=number),
        "session_id": session_id,
        "made_by": "test",
        "standing": 5,
    }
    return facts.FactDraft(**(defaults | fields))  # type: ignore[arg-type]


def conclude(tx: Any, owner: Any, level: str, content: str, sources: Sequence[int]) -> None:
    """A conclusion, as reflections store them."""
    role = "insight_support" if level == "derived" else "contradicts"
    conclusion = conclusions.Conclusion(
        level=level,
        content=content,
        confidence=0.75,
        sources=tuple(sources),
        role=role,
        made_by="test",
        valid_from=datetime(2026, 3, 1, tzinfo=UTC),
    )
    conclusions.conclude(tx, owner, conclusions.begin(tx, owner, "job", {}), conclusion)


def context(**options: Any) -> ContextBlock:
    """The context of the test's session."""
    return Nexus().context(NAMESPACE, **({"session_key": "chat"} | options))


def cited(text: str) -> list[int]:
    """The citation ids of a text's lines, in order; fails on a line that is neither cited nor a heading."""
    lines = [line for line in text.split("\n") if line and not line.startswith("## ")]
    ids = [re.match(r"- \[m(\d+)\] ", line) for line in lines]
    assert all(ids), lines
    return [int(found[1]) for found in ids if found]


# --- the bound --------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("form", ["text", "anthropic", "json"])
def test_the_bound_holds_at_every_size_and_nothing_is_half_said(form: Any) -> None:
    @settings(max_examples=40, deadline=None)
    @given(
        most=st.one_of(st.integers(1, 60), st.integers(1, 3_000), st.integers(1, 100_000)),
        query=st.sampled_from([None, "fact", "emoji 🍵", "number 7"]),
    )
    @example(most=1, query=None)
    @example(most=50, query="fact")
    @example(most=100_000, query=None)
    def holds(most: int, query: str | None) -> None:
        block = context(max_tokens=most, format=form, query=query)
        assert block.tokens == estimate_tokens(block.text) <= block.max_tokens == most
        lines = "\n".join(json.loads(block.text).get("lines", [])) if form == "json" else block.text
        ids = cited(lines)
        assert ids == [i for section in block.sections for i in section.ids]
        assert len(set(ids)) == len(ids)
        assert set(block.citations) == {f"m{i}" for i in ids}
        assert [section.name for section in block.sections] == [s for s in SECTIONS if f"## {s.capitalize()}" in lines]
        assert sum(section.tokens for section in block.sections) <= most

    holds()


@pytest.mark.usefixtures("full")
def test_a_large_bound_takes_in_everything_it_may() -> None:
    block = context(max_tokens=100_000)
    assert [section.name for section in block.sections] == [s for s in SECTIONS if s not in ("profile", "messages")]
    assert [len(section.ids) for section in block.sections] == [1, 2, 12, 120, 30]
    as_json = context(max_tokens=100_000, format="json")
    assert json.loads(as_json.text)["lines"] == block.text.split("\n")
    assert as_json.citations == block.citations


@pytest.mark.usefixtures("here")
def test_bounds_beyond_reason_are_refused() -> None:
    say("I like tea.")
    for wrong in (0, -1, 1_000_001, 2.5, "many"):
        with pytest.raises(InvalidInput, match="max_tokens"):
            context(max_tokens=wrong)
    with pytest.raises(InvalidInput, match="format"):
        context(format="yaml")


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("most", [100, 400, 1_000, 4_000])
def test_no_section_takes_more_than_its_share(most: int) -> None:
    tokens = {section.name: section.tokens for section in context(max_tokens=most).sections}
    assert tokens.get("digest", 0) <= 0.40 * most
    assert tokens.get("contradictions", 0) <= 0.50 * most - tokens.get("digest", 0)
    assert tokens.get("reflections", 0) <= 0.75 * most - tokens.get("digest", 0) - tokens.get("contradictions", 0)
    assert tokens["facts"] > 0


# --- the same bytes ---------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("options", [{}, {"query": "fact number"}, {"format": "json"}, {"format": "anthropic"}])
def test_the_same_call_gives_the_same_bytes(options: dict[str, Any]) -> None:
    first = context(max_tokens=700, **options)
    default_deployment().database.dispose()  # a new connection, a new plan
    assert context(max_tokens=700, **options) == first


def test_times_are_utc_whatever_zone_the_database_speaks(claude: Any, standin: StandIn) -> None:
    here = claude()
    [said] = say({"content": "I like tea.", "author": "ann", "occurred_at": datetime(2026, 1, 1, 20, tzinfo=UTC)})
    here.sql(f"ALTER DATABASE {here.database_name} SET timezone TO 'Asia/Tokyo'")
    default_deployment().database.dispose()
    assert "2026-01-01 20:00 ann: I like tea." in context().text
    work("derive_memory")
    assert "2026-01-01 ann: ann said: I like tea." in context().text
    assert f"\n2026-01-01 Thursday\n[{said}] 20:00 ann: I like tea.\n" in standin.counters.requests[0].text


# --- citations and forms ----------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("full")
def test_every_citation_resolves_to_the_memory_that_was_cited() -> None:
    block = context(max_tokens=2_000)
    lines = dict(zip(cited(block.text), [x for x in block.text.split("\n") if x.startswith("- ")], strict=True))
    for key, citation in block.citations.items():
        memory = Nexus().memory(NAMESPACE, citation.id)
        assert key == f"m{memory.id}"
        assert citation.external_id == memory.external_id
        assert " ".join(memory.content.split())[:40] in lines[memory.id]


@pytest.mark.usefixtures("full")
def test_the_anthropic_form_is_a_message_the_api_takes() -> None:
    block = context(max_tokens=300, format="anthropic")
    assert block.messages == ({"role": "user", "content": [{"type": "text", "text": block.text}]},)
    assert context(max_tokens=1, format="anthropic").messages == ()  # an empty text block would be refused


@pytest.mark.usefixtures("full")
def test_the_json_form_says_where_each_line_belongs() -> None:
    body = json.loads(context(max_tokens=500, format="json").text)
    assert body["namespace"] == NAMESPACE
    assert sum(len(section["ids"]) for section in body["sections"]) == len(cited("\n".join(body["lines"])))
    assert context(max_tokens=1, format="json").text == "{}"


# --- what goes in -----------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("full")
def test_the_long_digest_gives_way_to_the_short_one_where_room_is_short() -> None:
    assert "The long digest." in context(max_tokens=8_000).text
    assert "The short digest." in context(max_tokens=400).text
    tight = context(max_tokens=60)
    assert tight.text.splitlines()[1].endswith("…")  # of a digest the beginning is worth something
    assert "digest" not in {section.name for section in context(session_key=None).sections}
    assert "digest" not in {section.name for section in context(session_key="nowhere").sections}


@pytest.mark.usefixtures("full")
def test_the_end_of_the_conversation_goes_in_before_its_beginning() -> None:
    before = sum(section.tokens for section in context(max_tokens=100_000).sections[:-1])
    tail = context(max_tokens=before + 100).text.partition("## Not yet derived\n")[2].split("\n")
    numbers = [int(line.partition("Turn ")[2].partition(".")[0]) for line in tail]
    assert 29 in numbers
    assert numbers == sorted(numbers)


def test_facts_that_are_unsure_or_superseded_stay_out(full: Sandbox) -> None:
    full.sql("UPDATE memories SET confidence = 0.69 WHERE content LIKE 'Fact number 5.%' OR content LIKE 'Insight 3.%'")
    full.sql("UPDATE memories SET confidence = 0.64 WHERE content LIKE 'Contradiction%'")
    full.sql("UPDATE memories SET confidence = 0.65 WHERE content LIKE 'Contradiction 7.%'")
    full.sql("UPDATE memories SET valid_to = now() WHERE content LIKE 'Fact number 6.%'")
    for query in (None, "quoted fact number"):
        text = context(max_tokens=100_000, query=query).text
        assert not [one for one in ("Fact number 5.", "Fact number 6.", "Insight 3.") if one in text]
        assert re.findall(r"Contradiction \d+\.", text) == ["Contradiction 7."]


def test_what_several_observers_hold_alike_is_said_once(here: Sandbox) -> None:
    say("I live in Lisbon.", observers=["assistant", *(f"observer {i}" for i in range(9))])
    work("derive_memory")
    assert len(facts_of(here)) == 10
    for query in (None, "Lisbon"):
        [fact] = cited(Nexus().context(NAMESPACE, query=query).text)
        assert fact in facts_of(here)


def facts_of(here: Sandbox) -> list[int]:
    """The ids of all facts."""
    return [i for (i,) in here.sql("SELECT id FROM memories WHERE level = 'explicit' ORDER BY id")]


def test_the_tail_is_what_the_observer_has_not_derived(here: Sandbox) -> None:
    say("I live in Lisbon.", observers=["assistant", "coach"])
    say("I like tea.", observers=["coach"])
    assert len(cited(context().text)) == len(cited(context(observer="coach").text)) == 2
    here.sql("UPDATE derivations SET state = 'done' WHERE observer = 'coach'")
    assert len(cited(context().text)) == len(cited(context(observer="assistant").text)) == 1
    assert context(observer="coach").text == ""


def test_recent_sure_and_confirmed_facts_come_first_and_a_query_chooses(here: Sandbox) -> None:
    say("Hello.", observers=[])
    made = [
        ("Old.", 0.9, 24 * 30),
        ("Old, but often confirmed: kites.", 0.9, 24 * 30),
        ("Of yesterday.", 0.9, 20),
        ("Recent, but less sure.", 0.75, 0.5),
        ("Recent.", 0.9, 0),
    ]
    with default_deployment().database.transaction() as tx:
        known = namespaces.get(tx, NAMESPACE)
        ann = perspectives.lock(tx, known.id, "assistant", ["ann"])
        drafts = [
            draft(i, source=1, session_id=1, content=text, confidence=sure, valid_from=NOON - timedelta(hours=hours))
            for i, (text, sure, hours) in enumerate(made)
        ]
        facts.store(tx, ann, drafts)
    here.sql("UPDATE memories SET times_reinforced = 5 WHERE content LIKE '%kites%'")
    said = [line.rpartition("ann: ")[2] for line in context().text.split("\n")[1:]]
    assert said == [made[4][0], made[3][0], made[1][0], made[2][0], made[0][0]]
    assert context(query="kites").text.split("\n")[1].endswith("kites.")
    assert context(subject="bob").text == context(observer="coach").text == ""
