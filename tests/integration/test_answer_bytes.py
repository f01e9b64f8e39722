"""No answer has more text than the limit: a page of messages ends earlier, another list is refused unread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.server.mcpserver.exceptions import ToolError
from sqlalchemy import text

from nexus_tasks import Nexus, limits
from nexus_tasks.errors import InvalidInput
from nexus_tasks.idempotency import quarantine
from nexus_tasks.integrations.mcp.server import server
from nexus_tasks.storage import answer_bytes
from nexus_tasks.storage.searching import hits
from nexus_tasks.types import SessionDetails
from tests.commandline import nexus
from tests.integration.http_client import api
from tests.integration.inline import say, work
from tests.sandbox import Sandbox

MOST = limits.ANSWER_BYTES // 100  # the limit of these tests: Postgres indexes 20 of the largest messages in 30 s
NAMESPACE, SESSION, NUMBER, LENGTH = "large", "log", 20, 9_000
FITTING = MOST // (LENGTH + 40)
BEYOND: dict[str, Callable[[Nexus, int], Any]] = {
    "search": lambda nexus, limit: nexus.search(NAMESPACE, "harbour", limit=limit),
    "memories": lambda nexus, limit: nexus.memories(NAMESPACE, limit=limit),
    "session_facts": lambda nexus, limit: nexus.session_facts(NAMESPACE, SESSION, limit=limit),
}


@pytest.fixture(autouse=True)
def a_hundredth_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_bytes, "ANSWER_BYTES", MOST)
    monkeypatch.setattr(hits, "_READ", text(answer_bytes.all_or_first(hits._HITS, answer_bytes.CONTENT)))


@pytest.fixture
def large(here: Sandbox) -> Nexus:
    """A namespace with a session of 20 large messages, and a large fact of each."""
    client = Nexus()
    client.create_namespace(NAMESPACE, scrub=False)
    said = [{"content": f"harbour {n:04} {'x' * LENGTH}", "id": f"m{n}"} for n in range(NUMBER)]
    client.ingest(NAMESPACE, SESSION, said, observers=[])
    here.sql(
        "INSERT INTO perspectives (namespace_id, observer, subject) SELECT id, 'o', 's' FROM namespaces RETURNING id"
    )
    here.sql(
        "INSERT INTO memories (namespace_id, session_id, perspective_id, level, content, content_key, tokens,"
        " occurred_at) SELECT namespace_id, session_id, (SELECT id FROM perspectives), 'explicit', content, id, 1,"
        " occurred_at FROM memories RETURNING id"
    )
    here.sql(
        "INSERT INTO evidence (namespace_id, memory_id, source_id, role) SELECT f.namespace_id, f.id, m.id,"
        " 'derived_from' FROM memories f JOIN memories m ON f.content_key = m.id::text RETURNING memory_id"
    )
    return client


def test_a_page_ends_earlier_and_the_next_goes_on(large: Nexus) -> None:
    first = large.session(NAMESPACE, SESSION)
    assert (len(first.said), first.next_after) == (FITTING, FITTING)
    assert 0 < sum(len(one.content) for one in first.said) <= MOST
    second = large.session(NAMESPACE, SESSION, after=FITTING)
    assert second.next_after is None
    assert [one.seq for one in (*first.said, *second.said)] == list(range(1, NUMBER + 1))
    last = large.session(NAMESPACE, SESSION, newest=True)
    assert (last.said[0].seq, last.said[-1].seq, last.next_before) == (NUMBER - FITTING + 1, NUMBER, last.said[0].seq)
    named = large.session(NAMESPACE, SESSION, ids=[f"m{n}" for n in range(NUMBER)])
    assert named.said == first.said
    assert large.session(NAMESPACE, SESSION, limit=3).next_after == 3
    told = json.loads(nexus("sessions", "show", SESSION, "--namespace", NAMESPACE, "--json").stdout)
    assert told["next_after"] == FITTING


@pytest.mark.parametrize("excess", ["tool_calls", "data"])
def test_tool_calls_and_data_count(here: Sandbox, excess: str) -> None:
    client = Nexus(here.deployment)
    client.create_namespace(NAMESPACE, scrub=False)
    value: dict[str, Any] = {"name": "w", "input": {"text": "x" * LENGTH}}
    said = [{"content": "x", excess: [value] if excess == "tool_calls" else value} for _ in range(NUMBER)]
    client.ingest(NAMESPACE, SESSION, said, observers=[])
    pages: list[SessionDetails] = [client.session(NAMESPACE, SESSION)]
    while (after := pages[-1].next_after) is not None:
        pages.append(client.session(NAMESPACE, SESSION, after=after))
    assert [len(page.said) for page in pages] == [FITTING, NUMBER - FITTING]


def test_a_message_of_any_size_is_a_page(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_bytes, "ANSWER_BYTES", 10)
    client = Nexus(here.deployment)
    client.ingest(NAMESPACE, SESSION, [{"content": "longer than ten"}, {"content": "short"}], observers=[])
    page = client.session(NAMESPACE, SESSION)
    assert ([one.seq for one in page.said], page.next_after) == ([1], 1)


@pytest.mark.parametrize("call", BEYOND)
def test_a_list_beyond_the_limit_is_refused(large: Nexus, call: str) -> None:
    with pytest.raises(InvalidInput, match=r"have 18\d,\d{3} bytes.* 160,000.* smaller `limit`"):
        BEYOND[call](large, NUMBER)
    assert len(BEYOND[call](large, FITTING)) == FITTING


def test_what_is_refused_is_not_read(large: Nexus) -> None:
    rows = answer_bytes.all_or_first("SELECT id, content, data FROM memories ORDER BY id", answer_bytes.MEMORY)
    with large.deployment.database.transaction() as tx:
        found = tx.execute(text(rows)).all()
        assert (len(found), found[0].asked, found[0].place) == (1, 2 * NUMBER, 1)
        assert int(found[0].bytes) == tx.scalar(text("SELECT sum(octet_length(content)) FROM memories"))


def test_every_entry_gives_the_same_error(large: Nexus, here: Sandbox) -> None:
    with pytest.raises(InvalidInput) as raised:
        large.memories(NAMESPACE, limit=30)
    listed = nexus("memories", "list", "--namespace", NAMESPACE, "--limit", "30")
    assert listed.returncode == 1
    assert str(raised.value) in " ".join(listed.stderr.split())
    with api(here) as client:
        answer = client.get("/v1/memories", params={"namespace": NAMESPACE, "limit": 30})
    assert (answer.status_code, answer.json()["detail"]) == (422, raised.value.message)
    memory = server(NAMESPACE).memory
    with pytest.raises(ToolError, match="smaller `limit`"):
        asyncio.run(memory.recall("harbour", limit=30))


def test_messages_in_quarantine_beyond_the_limit_are_refused(here: Sandbox) -> None:
    client = Nexus(here.deployment)
    broken = SimpleNamespace(delivery_info={}, headers={}, body="x" * quarantine.LONGEST)
    for _ in range(250):
        quarantine.set_aside(here.deployment.claims, broken, "fault")
    with pytest.raises(InvalidInput, match=r"bytes.* 16,000,000.* smaller `limit`"):
        client.quarantined(limit=250)
    assert len(client.quarantined(limit=100)) == 100


def test_a_list_of_topics_and_of_earlier_logs_reads_no_text(here: Sandbox) -> None:
    client = Nexus(here.deployment)
    client.write_topic(NAMESPACE, "deploys.md", "We deploy on Mondays.")
    assert [(one.filename, one.characters) for one in client.topics(NAMESPACE)] == [("deploys.md", 21)]


def test_ordinary_answers_are_as_before(here: Sandbox) -> None:
    say("I live in Lisbon.", "I drink green tea.", end=True)
    work()
    found = Nexus(here.deployment).search("acme", "Where does she live?")
    assert found
    assert all(one.content for one in found)
