"""The facts that a reflection compares with a new fact: those of its perspective with the nearest words and vectors."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from nexus_tasks.cognition.retrieval import nearest_facts
from nexus_tasks.deployment import default_deployment
from nexus_tasks.storage import namespaces, perspectives
from nexus_tasks.storage.searching import upkeep
from tests.integration.inline import NAMESPACE, facts, say, statements, work
from tests.integration.reflecting import know
from tests.sandbox import Sandbox

reading: Any = sys.modules["nexus_tasks.storage.searching.few_memories"]
near_memories: Any = sys.modules["nexus_tasks.storage.searching.near_memories"]
SAID = (
    "I have two goats in the yard.",
    "The goats in my yard are named Ada and Bob.",
    "I work as a nurse in Bergen.",
    "I play the cello on Sundays.",
    "I have two goats and a donkey in the yard.",
    "I left my work in Bergen.",
    "I like tea with honey.",
)


def nearest(count: int = 2) -> dict[str, list[str]]:
    """The wordings of the facts nearest to each fact about ann."""
    here, known = default_deployment(), {one.id: one.content for one in facts(subject="ann")}
    with here.database.transaction() as tx:
        ann = perspectives.lock(tx, namespaces.get(tx, NAMESPACE).id, "assistant", ["ann"])["ann"]
        found = nearest_facts(tx, here.embedder, ann, known, count)
    return {known[i]: [known[one] for one in others] for i, others in found.items()}


def wording(part: str) -> str:
    """The fact with these words."""
    [found] = [one.content for one in facts(subject="ann") if part in one.content]
    return found


@pytest.mark.usefixtures("here")
def test_the_nearest_facts_share_words_and_none_is_its_own_neighbour() -> None:
    know(*SAID)
    found = nearest()
    assert set(found[wording("two goats in")]) == {wording("Ada and Bob"), wording("donkey")}
    assert found[wording("nurse")][0] == wording("left my work")
    assert all(one not in others and len(others) == 2 for one, others in found.items())
    assert all(len(others) == len(found) - 1 for others in nearest(count=100).values())


@pytest.mark.parametrize("indexed", [False, True])
def test_among_many_facts_the_nearest_ones_are_the_same(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    know(*SAID)
    say({"content": "I have two goats in the yard too.", "author": "bo"})
    work("derive_memory")
    here.sql("UPDATE memories SET valid_to = now() WHERE content LIKE '%honey%' AND level = 'explicit'")
    few = nearest(count=1)
    monkeypatch.setattr(reading, "NARROW", 3)
    if indexed:
        for module in (near_memories, upkeep):
            monkeypatch.setattr(module, "MOST_UNINDEXED", 3)
        upkeep.run(here.deployment.database)
        assert here.sql("SELECT 1 FROM pg_indexes WHERE indexname LIKE 'ix_vectors_%'")
    with statements(here) as made:
        many = nearest(count=1)
    assert sum("halfvec" in one for one in made) == indexed
    for part in ("two goats in", "nurse", "left my work"):
        assert many[wording(part)] == few[wording(part)]
    for one, others in nearest(count=100).items():
        assert {one, *others} == set(few)
    here.sql("DELETE FROM postings")
    assert nearest()[wording("two goats in")][0] in {wording("Ada and Bob"), wording("donkey")}


def test_among_many_facts_without_vectors_the_nearest_are_found_by_their_words(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is after a change of the embedder, until all memories have vectors of the new one."""
    know(*SAID)
    monkeypatch.setattr(reading, "NARROW", 3)
    here.sql("DELETE FROM embeddings WHERE memory_id NOT IN (SELECT id FROM memories WHERE content LIKE '%honey%')")
    assert set(nearest()[wording("two goats in")]) == {wording("Ada and Bob"), wording("donkey")}


def test_a_fact_without_a_vector_is_found_by_its_words(here: Sandbox) -> None:
    know(*SAID)
    here.sql("DELETE FROM embeddings WHERE memory_id IN (SELECT id FROM memories WHERE content LIKE '%goats%')")
    assert set(nearest()[wording("two goats in")]) == {wording("Ada and Bob"), wording("donkey")}
    here.sql("DELETE FROM embeddings")
    assert nearest()[wording("nurse")][0] == wording("left my work")
    here.sql("DELETE FROM postings")
    assert all(len(others) == 2 for others in nearest().values())  # all are as near as each other


def test_facts_without_words_in_common_are_found_by_their_vectors(here: Sandbox) -> None:
    know(*SAID)
    here.sql("DELETE FROM embeddings WHERE memory_id IN (SELECT id FROM memories WHERE content LIKE '%honey%')")
    here.sql("DELETE FROM postings")
    assert set(nearest()[wording("two goats in")]) == {wording("Ada and Bob"), wording("donkey")}


def test_facts_of_others_and_facts_that_hold_no_longer_are_not_near(here: Sandbox) -> None:
    know(*SAID)
    say({"content": "I have two goats in the yard too.", "author": "bo"})
    work("derive_memory")
    here.sql("UPDATE memories SET valid_to = now() WHERE content LIKE '%donkey%' AND level = 'explicit'")
    known = {one.content for one in facts(subject="ann")}
    assert len(known) == len(SAID) - 1
    for one, others in nearest(count=100).items():
        assert {one, *others} == known
