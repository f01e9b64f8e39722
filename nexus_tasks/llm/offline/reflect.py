"""The offline reflection: compare each new fact with its nearest facts, and make insights of similar facts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import combinations

from nexus_tasks.llm.answers import Insight, PromptFact, Reflection, ReflectMaterial, Relation
from nexus_tasks.llm.offline.compare import compare
from nexus_tasks.llm.offline.reading import read_fact
from nexus_tasks.text import jaccard, shorten
from nexus_tasks.types import to_utc

# These numbers are chosen by hand, not measured.
INSIGHT_OVERLAP = 0.55  # the least share of common words (Jaccard index) of two similar facts
INSIGHT_SUPPORT = 3  # the fewest facts of an insight
MAX_INSIGHT = 180  # characters of an insight
_PREFIX = "Repeatedly: "


def reflect(material: ReflectMaterial) -> Reflection:
    """The relations of the new facts, and the insights.

    Relations are in the order of the clusters (each new fact with its nearest facts). Each pair of facts occurs once.
    Insights are in the order of their smallest fact ids.
    """
    facts = {fact.id: fact for fact in material.facts}
    clusters = {
        new: tuple(id for id in candidates if id in facts and id != new)
        for new, candidates in material.clusters
        if new in facts
    }
    relations = list(_relations(facts, clusters))
    outdated = {r.old_id if r.holds == "new" else r.new_id for r in relations if r.kind == "contradicts"}
    return Reflection(relations=relations, insights=list(_insights(facts, clusters, outdated)))


def _relations(facts: Mapping[int, PromptFact], clusters: Mapping[int, tuple[int, ...]]) -> Iterator[Relation]:
    seen: set[frozenset[int]] = set()
    for new, candidates in clusters.items():
        for candidate in candidates:
            pair = frozenset((new, candidate))
            if pair not in seen:
                seen.add(pair)
                # When both facts are new, the fact that was said later counts as the new fact of the relation.
                both_new = new in clusters.get(candidate, ())
                newer, older = new, candidate
                if both_new and _age(facts[candidate]) > _age(facts[new]):
                    newer, older = candidate, new
                yield from _relation(facts[newer], facts[older])


def _relation(new: PromptFact, old: PromptFact) -> Iterator[Relation]:
    verdict = compare(new.content, old.content)
    if verdict is not None and verdict.kind != "contradicts" and new.event != old.event:
        return  # "I swam last Friday", said in two weeks: two events
    if verdict is not None:
        later = "new" if _age(new) > _age(old) else "old"
        yield Relation(
            kind=verdict.kind,
            new_id=new.id,
            old_id=old.id,
            holds=later if verdict.kind == "contradicts" else "both",
            rationale=verdict.rationale,
        )


def _age(fact: PromptFact) -> tuple[datetime, int, int]:
    """A sort key by the time when the fact was last said. A later fact has a greater key.

    For facts of the same moment, the id of the last message that said the fact decides.
    """
    return to_utc(fact.said_again or fact.valid_from), fact.last_message, fact.id


def _insights(
    facts: Mapping[int, PromptFact], clusters: Mapping[int, tuple[int, ...]], outdated: set[int]
) -> Iterator[Insight]:
    likeness = _likeness(facts, clusters, outdated)
    for support in _components(likeness):
        if len(support) >= INSIGHT_SUPPORT and not clusters.keys().isdisjoint(support):
            central = max(support, key=lambda id: (round(sum(likeness[id].values()), 9), -id))
            yield Insight(
                content=_PREFIX + shorten(facts[central].content, MAX_INSIGHT - len(_PREFIX)),
                support=support,
                rationale=f"{len(support)} facts say much the same; this is the most central one",
            )


def _likeness(
    facts: Mapping[int, PromptFact], clusters: Mapping[int, tuple[int, ...]], outdated: set[int]
) -> dict[int, dict[int, float]]:
    """Map each fact to the similar facts of its clusters, with their share of common words (Jaccard index).

    Two facts that contradict each other are not similar.
    """
    likeness: dict[int, dict[int, float]] = defaultdict(dict)
    for new, candidates in clusters.items():
        for a, b in combinations(sorted({new, *candidates} - outdated), 2):
            if b in likeness[a]:
                continue
            overlap = jaccard(read_fact(facts[a].content).everything, read_fact(facts[b].content).everything)
            verdict = compare(facts[a].content, facts[b].content) if overlap >= INSIGHT_OVERLAP else None
            if overlap >= INSIGHT_OVERLAP and (verdict is None or verdict.kind != "contradicts"):
                likeness[a][b] = likeness[b][a] = overlap
    return likeness


def _components(likeness: Mapping[int, Mapping[int, float]]) -> Iterator[list[int]]:
    seen: set[int] = set()
    for start in sorted(likeness):
        if start in seen:
            continue
        component, frontier = {start}, [start]
        while frontier:
            reached = likeness[frontier.pop()].keys() - component
            component |= reached
            frontier.extend(reached)
        seen |= component
        yield sorted(component)
