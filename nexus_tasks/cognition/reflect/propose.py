"""What a reflection is shown, what it is asked, and what of the answer holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.mind import Errand, Mind, ask
from nexus_tasks.cognition.search import nearest_facts
from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.llm.answers import Fact, Insight, Reflection, ReflectMaterial, Relation
from nexus_tasks.llm.base import Request
from nexus_tasks.storage import reflections
from nexus_tasks.storage.models import Memory, PerspectiveRow
from nexus_tasks.text import shorten
from nexus_tasks.types import clean_text

FACTS_PER_RUN = 100
NEAREST = 8
LONGEST_INSIGHT = 180  # characters
FEWEST_SUPPORTS = 3


@dataclass(kw_only=True)
class Changes:
    """What a reflection would do, checked against what it was shown."""

    relations: list[Relation] = field(default_factory=list)
    insights: list[Insight] = field(default_factory=list)
    rejected: int = 0

    def facts(self) -> list[int]:
        """Every fact that is to be changed or rested on."""
        related = {memory_id for relation in self.relations for memory_id in (relation.new_id, relation.old_id)}
        return sorted(related.union(*(insight.support for insight in self.insights)))


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The changes that follow from a perspective's new facts, those up to ``through``."""

    facts: int
    through: int
    changes: Changes


def valid_from(memory: Memory) -> datetime:
    """When a fact became so."""
    return memory.valid_from or memory.occurred_at


@dataclass
class _Embedded:
    """An embedder of texts whose vectors are known: no transaction waits for the real one."""

    name: str
    vectors: Mapping[str, Vectors]

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self.vectors[text] for text in texts])


def candidates(mind: Mind, perspective: PerspectiveRow, new: Sequence[Memory]) -> ReflectMaterial | None:
    """Each new fact with the eight nearest others by words and vectors: work grows with the new facts, not with pairs.

    ``None`` when no fact has any near it.
    """
    standing = {memory.id: memory.content for memory in new if memory.valid_to is None}
    texts = list(dict.fromkeys(standing.values()))
    known = _Embedded(mind.embedder.name, dict(zip(texts, mind.embedder.embed(texts), strict=True)) if texts else {})
    with mind.database.transaction() as tx:
        near = nearest_facts(tx, known, perspective, standing, NEAREST)
        clusters = {new_id: sorted(olds) for new_id, olds in near.items() if olds}
        found = reflections.by_id(tx, sorted({*clusters, *(old for olds in clusters.values() for old in olds)}))
    if not clusters:
        return None
    return ReflectMaterial(
        observer=perspective.observer,
        subject=perspective.subject,
        facts=tuple(Fact(id=i, content=one.content, valid_from=valid_from(one)) for i, one in sorted(found.items())),
        # A fact that was erased between the two looks is not shown.
        clusters=tuple(
            (new_id, tuple(old for old in olds if old in found))
            for new_id, olds in sorted(clusters.items())
            if new_id in found
        ),
    )


def propose(mind: Mind, errand: Errand, new: Sequence[Memory], material: ReflectMaterial | None) -> Proposal:
    """Ask how the new facts relate to those near them; where nothing is near, there is nothing to ask."""
    changes = Changes()
    if material:
        changes = _checked(ask(mind, errand, _request(material)), material)
    return Proposal(facts=len(new), through=new[-1].id, changes=changes)


def _request(material: ReflectMaterial) -> Request[Reflection]:
    by_id = {fact.id: fact for fact in material.facts}
    lines = ["<facts>"]
    for new_id, olds in reversed(material.clusters):
        lines.append(f"new {_line(by_id[new_id])}")
        lines += [f"    near {_line(by_id[old])}" for old in olds]
    lines.append("</facts>")
    return Request(
        purpose="reflect",
        instructions=prompts.instructions("reflect"),
        transcript="\n".join(lines),
        question=f"The observer is {material.observer}, the subject is {material.subject}.",
        answer=Reflection,
        material=material,
        shared=False,
    )


def _line(fact: Fact) -> str:
    return f"[{fact.id}] {prompts.moment(fact.valid_from)} {prompts.inert(fact.content)}"


def _checked(answer: Reflection, material: ReflectMaterial) -> Changes:
    """The parts of an answer that cite only what was shown: pairs shown together, insights on three or more."""
    shown = {frozenset((new, old)) for new, olds in material.clusters for old in olds}
    ids = {fact.id for fact in material.facts}
    changes = Changes()
    judged: set[frozenset[int]] = set()
    for relation in answer.relations:
        pair = frozenset((relation.new_id, relation.old_id))
        if pair not in shown or pair in judged:
            changes.rejected += 1
            continue
        judged.add(pair)
        changes.relations.append(relation)
    for insight in answer.insights:
        support = sorted(set(insight.support))
        if len(support) < FEWEST_SUPPORTS or not ids.issuperset(support) or not insight.content.strip():
            changes.rejected += 1
            continue
        told = shorten(" ".join(clean_text(insight.content).split()), LONGEST_INSIGHT)
        changes.insights.append(insight.model_copy(update={"support": support, "content": told}))
    return changes
