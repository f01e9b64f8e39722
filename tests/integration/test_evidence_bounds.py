"""A hit or a memory names a bounded number of sources, and says how many more there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nexus_tasks import Nexus, limits
from nexus_tasks.integrations.mcp.server import server
from tests.commandline import nexus
from tests.integration.http_client import api, ok
from tests.integration.inline import NAMESPACE, say
from tests.sandbox import Sandbox

NUMBER = limits.MEMORY_EVIDENCE + 20
HITS = ("search", "http search", "mcp")


@pytest.fixture
def fact(here: Sandbox) -> int:
    """A fact that rests on every message of a session, and is the source of as many others, which it replaced."""
    say(*(f"Word {n}." for n in range(NUMBER)))
    here.sql("INSERT INTO perspectives (namespace_id, observer, subject) SELECT id, 'o', 's' FROM namespaces")
    [(found,)] = here.sql(
        "INSERT INTO memories (namespace_id, session_id, perspective_id, level, content, content_key, tokens,"
        " occurred_at) SELECT namespace_id, id, (SELECT id FROM perspectives), 'explicit', 'The harbour is full.', 'k',"
        " 5, now() FROM sessions RETURNING id"
    )
    here.sql(
        "INSERT INTO evidence (namespace_id, memory_id, source_id, role)"
        " SELECT namespace_id, :fact, id, 'derived_from' FROM memories WHERE level = 'raw'",
        fact=found,
    )
    here.sql(
        "INSERT INTO evidence (namespace_id, memory_id, source_id, role)"
        " SELECT namespace_id, id, :fact, 'reinforces' FROM memories WHERE level = 'raw'",
        fact=found,
    )
    here.sql("UPDATE memories SET superseded_by = :fact WHERE level = 'raw'", fact=found)
    return int(found)


@pytest.mark.parametrize("way", HITS)
def test_a_hit_names_its_earliest_sources_and_counts_the_others(here: Sandbox, fact: int, way: str) -> None:
    client = Nexus(here.deployment)
    found: dict[str, Callable[[], list[tuple[int, list[int], int]]]] = {
        "search": lambda: [
            (one.id, [edge.id for edge in one.evidence], one.more_evidence)
            for one in client.search(NAMESPACE, "harbour", levels=["explicit"])
        ],
        "http search": lambda: _over_http(here),
        "mcp": _over_mcp,
    }
    [(hit, named, more)] = found[way]()
    first = [row[0] for row in here.sql("SELECT id FROM memories WHERE level = 'raw' ORDER BY id LIMIT 100")]
    assert (hit, named, more) == (fact, first, NUMBER - 100)


def _over_http(here: Sandbox) -> list[tuple[int, list[int], int]]:
    asked = {"namespace": NAMESPACE, "query": "harbour", "levels": ["explicit"]}
    with api(here) as client:
        found = ok(client.post("/v1/search", json=asked))["results"]
    return [(one["id"], [edge["id"] for edge in one["evidence"]], one["more_evidence"]) for one in found]


def _over_mcp() -> list[tuple[int, list[int], int]]:
    found = server(NAMESPACE).memory.recall("harbour").structured_content
    assert found is not None
    return [
        (one["id"], [edge["id"] for edge in one["evidence"]], one["more_evidence"])
        for one in found["results"]
        if one["level"] == "explicit"
    ]


def test_a_memory_alone_names_more(here: Sandbox, fact: int) -> None:
    shown = Nexus(here.deployment).memory(NAMESPACE, fact)
    most = limits.MEMORY_EVIDENCE
    assert (len(shown.evidence), len(shown.supports), len(shown.superseded)) == (most, most, most)
    assert shown.more_evidence == NUMBER - most


def test_a_fact_in_a_list_names_the_first_messages_of_the_range(here: Sandbox, fact: int) -> None:
    client = Nexus(here.deployment)
    [listed] = client.session_facts(NAMESPACE, "chat")
    [later] = client.session_facts(NAMESPACE, "chat", after=NUMBER - 3)
    assert listed.id == fact
    assert (len(listed.sources), len(later.sources)) == (limits.HIT_EVIDENCE, 3)


def test_the_command_counts_the_others(fact: int) -> None:
    told = nexus("memories", "show", str(fact), "--namespace", NAMESPACE).stdout
    assert f"and {NUMBER - limits.MEMORY_EVIDENCE} more" in " ".join(told.split())


def test_a_memory_with_few_sources_names_them_all(here: Sandbox, fact: int) -> None:
    here.sql(
        "DELETE FROM evidence WHERE memory_id = :fact AND source_id > (SELECT min(id) + 2 FROM memories)", fact=fact
    )
    client = Nexus(here.deployment)
    [hit] = client.search(NAMESPACE, "harbour", levels=["explicit"])
    shown = client.memory(NAMESPACE, fact)
    assert (len(hit.evidence), hit.more_evidence, len(shown.evidence), shown.more_evidence) == (3, 0, 3, 0)


def test_a_topic_names_its_earliest_messages_and_counts_the_others(here: Sandbox) -> None:
    say(*(f"Word {n}." for n in range(NUMBER)))
    client = Nexus(here.deployment)
    client.write_topic(NAMESPACE, "words.md", content="Words.")
    assert (client.topic(NAMESPACE, "words.md").sources, client.topic(NAMESPACE, "words.md").more_sources) == ((), 0)
    here.sql(
        "INSERT INTO topic_sources (namespace_id, topic_id, memory_id)"
        " SELECT namespace_id, (SELECT id FROM topics), id FROM memories WHERE level = 'raw'"
    )
    shown = client.topic(NAMESPACE, "words.md")
    first = here.sql("SELECT id FROM memories WHERE level = 'raw' ORDER BY id LIMIT :most", most=limits.MEMORY_EVIDENCE)
    assert shown.sources == tuple(row[0] for row in first)
    assert shown.more_sources == NUMBER - limits.MEMORY_EVIDENCE
