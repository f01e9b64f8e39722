"""Choose the facts of one reflection: a perspective's next new facts, and the facts nearest to each new fact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.reflect.relatable import Clusters, choose_pairs
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.cognition.retrieval import nearest_facts
from nexus_tasks.embeddings.base import Embedder, Vectors
from nexus_tasks.event_time import Span, describe, local
from nexus_tasks.llm.answers import PromptFact, ReflectMaterial
from nexus_tasks.storage import open_questions, reflections
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, PerspectiveRow
from nexus_tasks.text import content_key

# Both numbers are chosen by hand, not measured.
FACTS_PER_RUN = 100  # the most new facts that one run takes
NEAREST = 8  # the most facts that a new fact is compared with
PURPOSE = "reflect"


class FactState(NamedTuple):
    """What a judgement about a fact rests on. When one of these values changes, the fact is judged again."""

    content: str  # the normalised wording
    message_id: int  # the id of the last message that said the fact
    times: int  # how many messages said it


@dataclass(frozen=True, kw_only=True)
class NewFacts:
    """A perspective's next new facts, and the question about them."""

    facts: int  # the number of new facts
    through: int  # the id of the last new fact; the watermark when all facts are judged again
    again: frozenset[int]  # ids of the facts that are judged again
    material: ReflectMaterial | None  # ``None`` when no pair of facts can relate, so that the model is not asked
    duplicates: Sequence[tuple[int, int]]  # pairs that are certainly duplicates: (new fact, earlier fact)
    said: Mapping[int, reflections.LastSaid]  # when each fact was last said, by the fact's id


def choose_new_facts(resources: Resources, perspective: PerspectiveRow) -> NewFacts | None:
    """Choose up to a hundred new facts. When an earlier run saved its question, choose the facts of that question.

    The result is ``None`` when the perspective has no new facts.
    """
    with resources.database.transaction() as tx:
        asked = open_questions.find(tx, perspective.namespace_id, PURPOSE, perspective.id)
        if asked and asked["after"] == perspective.reflected_through:
            said = {
                int(i): reflections.LastSaid(datetime.fromisoformat(when), *more)
                for i, (when, *more) in asked.get("said", {}).items()
            }
            material = _material(tx, perspective, asked["clusters"], said)
            return NewFacts(
                facts=asked["facts"],
                through=asked["through"],
                again=frozenset(asked.get("again", ())),
                material=material,
                duplicates=[(new, old) for new, old in asked.get("duplicates", ())],
                said=said,
            )
        new = reflections.unreflected_facts(tx, perspective, FACTS_PER_RUN)
    if not new:
        return None
    material, duplicates, said = _with_nearest(resources, perspective, new)
    return NewFacts(
        facts=len(new),
        through=max(new[-1].id, perspective.reflected_through),
        again=frozenset(perspective.again) - _left_out(perspective, new),
        material=material,
        duplicates=duplicates,
        said=said,
    )


def _left_out(perspective: PerspectiveRow, new: Sequence[Memory]) -> frozenset[int]:
    """Facts to judge again that a run with ``FACTS_PER_RUN`` facts leaves to the next run."""
    if len(new) < FACTS_PER_RUN:
        return frozenset()
    return frozenset(i for i in perspective.again if i > new[-1].id)


def save_question(resources: Resources, job: JobContext, perspective: PerspectiveRow, chosen: NewFacts) -> None:
    """Save the question before the model is asked, so that a rerun asks the same question even after new facts came."""
    if chosen.material is None:
        return
    question: dict[str, Any] = {
        "after": perspective.reflected_through,
        "through": chosen.through,
        "facts": chosen.facts,
        "again": sorted(chosen.again),
        "clusters": [[new, list(olds)] for new, olds in chosen.material.clusters],
        "duplicates": [list(pair) for pair in chosen.duplicates],
        "said": {i: (said.when.isoformat(), said.message_id, said.times) for i, said in chosen.said.items()},
    }
    with resources.database.transaction() as tx:
        job.still_mine()
        open_questions.note(tx, job.namespace_id, PURPOSE, perspective.id, question)


def _event(memory: Memory) -> str:
    if memory.event_from is None or memory.event_to is None:
        return ""
    return describe(Span(local(memory.event_from, memory.time_zone), local(memory.event_to, memory.time_zone)))


def valid_from(memory: Memory) -> datetime:
    """The time since which a fact is valid. When it is unknown, the time at which the fact was said."""
    return memory.valid_from or memory.occurred_at


def holds(memory: Memory) -> bool:
    """Whether a fact is neither superseded nor expired."""
    return memory.valid_to is None and (memory.expires_at is None or memory.expires_at > datetime.now(UTC))


def state_of(content: str, said: reflections.LastSaid | None) -> FactState:
    """The state of a fact whose wording is ``content``."""
    return FactState(content_key(content), said.message_id if said else 0, said.times if said else 0)


@dataclass
class _Embedded:
    """An embedder that returns known vectors, so that no transaction waits for the real embedder."""

    name: str
    vectors: Mapping[str, Vectors]

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self.vectors[text] for text in texts])


def _vectors(embedder: Embedder, texts: Iterable[str]) -> dict[str, Vectors]:
    """The vector of each text. No transaction is open meanwhile, because the embedder may be slow."""
    once = list(dict.fromkeys(texts))
    return dict(zip(once, embedder.embed(once), strict=True)) if once else {}


def _with_nearest(
    resources: Resources, perspective: PerspectiveRow, new: Sequence[Memory]
) -> tuple[ReflectMaterial | None, Sequence[tuple[int, int]], dict[int, reflections.LastSaid]]:
    """Find the eight facts nearest to each new fact, by words and vectors, and leave out pairs that cannot relate.

    Returns:
        The material, the pairs that are certainly duplicates, and the time at which each fact was last said. The
        material is ``None`` when no pair is left.
    """
    active = {memory.id: memory.content for memory in new if holds(memory)}
    known = _Embedded(resources.embedder.name, _vectors(resources.embedder, active.values()))
    with resources.database.transaction() as tx:
        near = nearest_facts(tx, known, perspective, active, NEAREST)
        found = reflections.by_id(tx, sorted({i for new_id, olds in near.items() for i in (new_id, *olds)}))
        contents = {i: memory.content for i, memory in found.items()}
        events = {i: _event(memory) for i, memory in found.items()}
    others = [text for text in contents.values() if text not in known.vectors]
    vectors = {**known.vectors, **_vectors(resources.embedder, others)}
    chosen = choose_pairs([(new_id, sorted(olds)) for new_id, olds in sorted(near.items())], contents, vectors, events)
    with resources.database.transaction() as tx:
        shown = {i for new_id, olds in chosen.clusters if olds for i in (new_id, *olds)}
        said = reflections.last_said(tx, sorted(shown.union(*chosen.duplicates)))
        return _material(tx, perspective, chosen.clusters, said), chosen.duplicates, said


def _material(
    tx: Transaction, perspective: PerspectiveRow, clusters: Clusters, said: Mapping[int, reflections.LastSaid]
) -> ReflectMaterial | None:
    """The facts of ``clusters`` as the model sees them. Facts that have been erased are left out."""
    named: Iterable[int] = {i for new, olds in clusters if olds for i in (new, *olds)}
    found = reflections.by_id(tx, sorted(named))
    if not found:
        return None
    return ReflectMaterial(
        observer=perspective.observer,
        subject=perspective.subject,
        facts=tuple(
            PromptFact(
                id=i,
                content=one.content,
                valid_from=valid_from(one),
                said_again=said[i].when if i in said and said[i].times > 1 else None,
                last_message=said[i].message_id if i in said else 0,
                event=_event(one),
            )
            for i, one in sorted(found.items())
        ),
        clusters=tuple(
            (new, tuple(old for old in olds if old in found)) for new, olds in clusters if olds and new in found
        ),
    )
