"""What a reflection is shown, what it is asked, and what of the answer holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.reflect.choose import Slice
from nexus_tasks.cognition.resources import JobContext, Resources, ask
from nexus_tasks.llm.answers import Fact, Insight, Reflection, ReflectMaterial, Relation
from nexus_tasks.llm.base import Request
from nexus_tasks.text import shorten
from nexus_tasks.types import clean_text

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

    @classmethod
    def nothing(cls, through: int) -> Proposal:
        """No changes: there are no new facts, or none any more."""
        return cls(facts=0, through=through, changes=Changes())


def propose(resources: Resources, job: JobContext, chosen: Slice) -> Proposal:
    """Ask how the new facts relate to those near them; where nothing is near, there is nothing to ask."""
    changes = Changes()
    if chosen.material:
        changes = _checked(ask(resources, job, _request(chosen.material)), chosen.material)
    return Proposal(facts=chosen.facts, through=chosen.through, changes=changes)


def _request(material: ReflectMaterial) -> Request[Reflection]:
    return Request(
        purpose="reflect",
        instructions=prompts.instructions("reflect"),
        transcript="\n".join(["<facts>", *_lines(material), "</facts>"]),
        question=f"The observer is {material.observer}, the subject is {material.subject}.",
        answer=Reflection,
        material=material,
        shared=False,
    )


def _lines(material: ReflectMaterial) -> list[str]:
    """The newest fact first, each with those near it. Facts of one conversation are near many others: what was written
    out above is named by its id, which halves what is sent.
    """
    untold = {fact.id: fact for fact in material.facts}
    lines = []
    for new_id, olds in reversed(material.clusters):
        new = untold.pop(new_id, None)
        lines.append(f"new {_line(new) if new else f'[{new_id}]'}")
        above = [f"[{old}]" for old in olds if old not in untold]
        lines += [f"    near {_line(untold.pop(old))}" for old in olds if old in untold]
        if above:
            lines.append(f"    near {' '.join(above)}")
    return lines


def _line(fact: Fact) -> str:
    again = f" (again {prompts.moment(fact.said_again)})" if fact.said_again else ""
    return f"[{fact.id}] {prompts.moment(fact.valid_from)}{again} {prompts.inert(fact.content)}"


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
