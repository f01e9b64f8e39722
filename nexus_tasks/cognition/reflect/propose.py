"""Ask the model how new facts relate to their nearest facts, and check the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.model_call import ask
from nexus_tasks.cognition.reflect.new_facts import FactState, NewFacts, state_of
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.llm.answers import Insight, PromptFact, Reflection, ReflectMaterial, Relation
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.text import shorten
from nexus_tasks.types import clean_text

# Both bounds are chosen by hand, not measured.
LONGEST_INSIGHT = 180  # the most characters of an insight
FEWEST_SUPPORTS = 3  # the fewest facts that must support an insight


@dataclass(kw_only=True)
class Changes:
    """The changes that a reflection proposes. The changes name only facts that the model was shown."""

    relations: list[Relation] = field(default_factory=list)
    insights: list[Insight] = field(default_factory=list)
    rejected: int = 0  # relations and insights of the answer that failed the check

    def facts(self) -> list[int]:
        """Ids of all facts that the relations and insights name."""
        related = {memory_id for relation in self.relations for memory_id in (relation.new_id, relation.old_id)}
        return sorted(related.union(*(insight.support for insight in self.insights)))


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The changes that a reflection on a perspective's new facts proposes."""

    facts: int  # the number of new facts that the model was asked about
    through: int  # the id of the last new fact
    changes: Changes
    again: frozenset[int] = frozenset()  # ids of the facts that were judged again
    seen: Mapping[int, FactState] = field(default_factory=dict)  # the facts as the model was shown them, by id

    @classmethod
    def nothing(cls, through: int) -> Proposal:
        """A proposal without changes, for a perspective without new facts."""
        return cls(facts=0, through=through, changes=Changes())


def propose(resources: Resources, job: JobContext, chosen: NewFacts) -> Proposal:
    """Ask the model how each new fact relates to its nearest facts. When no fact is near, do not ask the model."""
    changes = Changes()
    if chosen.material:
        changes = _checked(ask(resources, job, build_request(chosen.material)), chosen.material)
    changes.relations += [
        Relation(kind="duplicate", new_id=new, old_id=old, holds="both", rationale="the same content words")
        for new, old in chosen.duplicates
    ]
    facts = chosen.material.facts if chosen.material else ()
    return Proposal(
        facts=chosen.facts,
        through=chosen.through,
        changes=changes,
        again=chosen.again,
        seen={fact.id: state_of(fact.content, chosen.said.get(fact.id)) for fact in facts},
    )


def build_request(material: ReflectMaterial) -> ModelRequest[Reflection]:
    """The model request for new facts and the facts near them."""
    return ModelRequest(
        purpose="reflect",
        instructions=prompts.instructions("reflect"),
        transcript="\n".join(["<facts>", *_lines(material), "</facts>"]),
        question=prompts.names(observer=material.observer, subject=material.subject),
        answer=Reflection,
        material=material,
        shared=False,
    )


def _lines(material: ReflectMaterial) -> list[str]:
    """The lines of the prompt: each new fact with its near facts, the newest fact first.

    A fact is often near to many new facts. The prompt has the text of each fact once, and later only the fact's id.
    This halves the length of the prompt.
    """
    not_written = {fact.id: fact for fact in material.facts}
    lines = []
    for new_id, olds in reversed(material.clusters):
        new = not_written.pop(new_id, None)
        lines.append(f"new {_line(new) if new else f'[{new_id}]'}")
        above = [f"[{old}]" for old in olds if old not in not_written]
        lines += [f"    near {_line(not_written.pop(old))}" for old in olds if old in not_written]
        if above:
            lines.append(f"    near {' '.join(above)}")
    return lines


def _line(fact: PromptFact) -> str:
    again = f" (again {prompts.moment(fact.said_again)})" if fact.said_again else ""
    event = f" (event {fact.event})" if fact.event else ""
    return f"[{fact.id}] {prompts.moment(fact.valid_from)}{again}{event} {prompts.inert(fact.content)}"


def _checked(answer: Reflection, material: ReflectMaterial) -> Changes:
    """The valid parts of an answer.

    A relation is valid when its two facts were shown together and no earlier relation names the same two facts. An
    insight is valid when it has a text, and when the model was shown all its facts, which are three or more.
    """
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
        content = shorten(" ".join(clean_text(insight.content).split()), LONGEST_INSIGHT)
        changes.insights.append(insight.model_copy(update={"support": support, "content": content}))
    return changes
