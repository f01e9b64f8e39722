"""A context reads no text that is much too long for it, and shows what it would show if it read them all."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from nexus_tasks import Message, Nexus, limits
from nexus_tasks.cognition.answering import looking
from nexus_tasks.cognition.context.assemble import POOL
from nexus_tasks.services import session_context
from nexus_tasks.storage import sessions
from nexus_tasks.storage.searching import context_rows
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.types import ContextBlock
from tests.sandbox import Sandbox

NAMESPACE, SESSION = "large", "log"
NUMBER, LENGTH, TOKENS = 60, 100_000, 500
READ: dict[str, Callable[[Nexus], ContextBlock]] = {
    "newest facts": lambda nexus: nexus.context(NAMESPACE, max_tokens=TOKENS),
    "profile": lambda nexus: nexus.profile(NAMESPACE, "ann", max_tokens=TOKENS),
    "session": lambda nexus: nexus.context(NAMESPACE, session_key=SESSION, max_tokens=TOKENS),
    "query": lambda nexus: nexus.context(NAMESPACE, query="harbour", max_tokens=TOKENS),
}


def write(here: Sandbox, lengths: list[int]) -> None:
    """A session with a message of each length, and a fact of each about ann. The last message is the newest."""
    client = Nexus(here.deployment)
    client.create_namespace(NAMESPACE, scrub=False)
    # Repeated, so that Postgres compresses the text, and indexes one word of it. Its size counts uncompressed.
    said = [{"content": f"harbour {n:04} {'x' * length}", "author": "ann"} for n, length in enumerate(lengths)]
    client.ingest(NAMESPACE, SESSION, said)
    here.sql("INSERT INTO perspectives (namespace_id, observer, subject) SELECT id, 'assistant', 'ann' FROM namespaces")
    here.sql(
        "INSERT INTO memories (namespace_id, session_id, perspective_id, level, content, content_key, tokens, author,"
        " occurred_at, category) SELECT namespace_id, session_id, (SELECT id FROM perspectives), 'explicit',"
        " 'fact of the ' || content, id, 1, author, occurred_at, 'fact' FROM memories"
    )


@pytest.mark.parametrize("kind", READ)
def test_a_context_reads_no_text_that_it_cannot_show(here: Sandbox, kind: str) -> None:
    write(here, [LENGTH] * NUMBER + [20])
    client = Nexus(here.deployment)
    READ[kind](client)  # what is imported and cached once is not measured
    tracemalloc.start()
    try:
        block = READ[kind](client)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"harbour {NUMBER:04}" in block.text
    assert "harbour 0001" not in block.text
    assert peak < 1_000_000


@pytest.mark.parametrize("kind", READ)
def test_a_context_is_as_if_it_had_read_every_text(here: Sandbox, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    write(here, [20, 300, 5_000, 15_000, 1_990, 16_500, 40_000, 900, 60])
    client = Nexus(here.deployment)
    bounded = READ[kind](client)
    monkeypatch.setattr(context_rows, "BYTES_PER_TOKEN", 1_000_000)
    assert READ[kind](client) == bounded
    assert bounded.citations


def test_the_texts_of_a_large_context_have_a_bound_together(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ANSWER_BYTES", 250_000)
    write(here, [LENGTH, LENGTH, LENGTH, 20])
    client = Nexus(here.deployment)
    wanted = Filter(namespace_id=here.sql("SELECT id FROM namespaces")[0][0])
    longest = context_rows.longest_text(limits.CONTEXT_TOKENS)
    with here.deployment.database.reading() as tx:
        found = context_rows.newest(tx, wanted, [("explicit", 0.0)], POOL, longest=longest)["explicit"]
    assert [row.unread for row in found] == [False, False, False, True]
    assert [bool(row.content) for row in found] == [True, True, True, False]
    shown = client.context(NAMESPACE, max_tokens=limits.CONTEXT_TOKENS).text
    assert "harbour 0001" in shown
    assert "harbour 0000" not in shown


def test_a_digest_is_cut_as_before(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, [20])
    here.sql(
        "INSERT INTO memories (namespace_id, session_id, level, content, tokens, occurred_at)"
        " SELECT namespace_id, id, 'summary_short', repeat('The harbour is full. ', 5000), 1, now() FROM sessions"
    )
    here.sql(
        "INSERT INTO session_digests (namespace_id, session_id, memory_id, kind, end_seq, generation)"
        " SELECT namespace_id, session_id, id, 'short', 1, 1 FROM memories WHERE level = 'summary_short'"
    )
    client = Nexus(here.deployment)
    bounded = READ["session"](client)
    assert "The harbour is full." in bounded.text
    monkeypatch.setattr(context_rows, "BYTES_PER_TOKEN", 1_000_000)
    assert READ["session"](client) == bounded


def test_a_look_at_messages_reads_the_beginning_of_each(here: Sandbox) -> None:
    write(here, [LENGTH] * 3)
    [first, *_] = [row[0] for row in here.sql("SELECT id FROM memories WHERE level = 'raw' ORDER BY id")]
    wanted = Filter(namespace_id=here.sql("SELECT id FROM namespaces")[0][0])
    with here.deployment.database.reading() as tx:
        rows = context_rows.around(tx, wanted, first, 5, characters=looking.LONGEST_LINE + 1)
    assert [len(row.content) for row in rows] == [looking.LONGEST_LINE + 1] * 3
    assert looking._line(rows[0]).content.endswith("…")


def test_the_context_of_a_compacted_session_reads_the_beginning_of_each_message(here: Sandbox) -> None:
    hidden = f"<thinking>{'x' * LENGTH}"
    client = Nexus(here.deployment)
    client.create_namespace(NAMESPACE, scrub=False)
    said = [Message(content=f"harbour {n:04} {'x' * LENGTH}", author="ann") for n in range(NUMBER)]
    said += [
        Message(content=f"The pier. {hidden}</thinking> Not read.", author="ann"),
        Message(content="<thinking>Secret.</thinking>The quay.", author="ann"),
        Message(content="Done.", role="assistant", tool_calls=[{"name": "run", "input": "x"}]),
        Message(content="From a tool.", role="tool"),
        Message(content="The end.", author="ann"),
    ]
    client.ingest(NAMESPACE, SESSION, said)
    with here.deployment.database.reading() as tx:
        session = sessions.get(tx, here.sql("SELECT id FROM namespaces")[0][0], SESSION)
        session_context.text_of(tx, session, 8_000)
        tracemalloc.start()
        try:
            text = session_context.text_of(tx, session, 8_000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert f"harbour {NUMBER - 1:04}" in text
    assert [line.split(": ", 1)[1] for line in text.splitlines()[-3:]] == ["The pier.", "The quay.", "The end."]
    assert "Done." not in text
    assert "From a tool." not in text
    assert peak < 2_000_000
