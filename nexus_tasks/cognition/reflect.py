"""reflect_perspective and reflect_namespace: how new facts relate to old ones, and what they show together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.mind import GAVE_UP, Errand, Mind, ask
from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.llm.answers import Fact, Insight, Reflection, ReflectMaterial, Relation
from nexus_tasks.llm.base import Request
from nexus_tasks.storage import embeddings, facts, perspectives, reflections
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, PerspectiveRow
from nexus_tasks.text import content_key, shorten
from nexus_tasks.types import JobOutcome, Status, clean_text

FACTS_PER_RUN = 100
NEAREST = 8
LONGEST_INSIGHT = 180  # characters
CONTRADICTION_CONFIDENCE, CONTRADICTED_LOSES = 0.70, 0.15
REWORDED_CONFIDENCE = 0.75
# A run that would supersede more than this share of a perspective's facts, and more than this many, is held.
GUARD_SHARE, GUARD_COUNT = 0.30, 5
ARCHIVE_AFTER = timedelta(days=30)


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


def reflect_perspective(mind: Mind, errand: Errand, observer: str, subject: str) -> tuple[JobOutcome, bool]:
    """Reflect on up to a hundred new facts; the second value says whether more are waiting."""
    with mind.database.transaction() as tx:
        perspective = perspectives.find(tx, errand.namespace_id, observer, subject)
        if perspective is None:
            return errand.commit(tx, JobOutcome(status="empty")), False
        if perspective.held:
            return errand.commit(tx, JobOutcome(status="needs_review", details={"plan": perspective.held})), False
        if perspective.dead:
            return errand.commit(tx, GAVE_UP), False
        new = reflections.unreflected_facts(tx, perspective, FACTS_PER_RUN)
        if not new:
            return errand.commit(tx, JobOutcome(status="unchanged")), False
        material = _material(tx, mind, perspective, new)
    answer = Reflection(relations=[], insights=[])
    if material.clusters:
        answer = ask(mind, errand, _request(material))
    changes = _checked(answer, material)
    wordings = _wordings(changes, material)
    vectors = dict(zip(wordings, mind.embedder.embed(wordings), strict=True)) if wordings else {}
    return _apply(mind, errand, perspective, new, changes, vectors)


def _material(tx: Transaction, mind: Mind, perspective: PerspectiveRow, new: Sequence[Memory]) -> ReflectMaterial:
    standing = [memory.id for memory in new if memory.valid_to is None]
    near = reflections.nearest(tx, perspective.id, standing, model=mind.embedder.name, count=NEAREST)
    ids = sorted({*near, *(old for olds in near.values() for old in olds)})
    found = reflections.by_id(tx, ids)
    return ReflectMaterial(
        observer=perspective.observer,
        subject=perspective.subject,
        facts=tuple(Fact(id=i, content=found[i].content, valid_from=_valid_from(found[i])) for i in ids),
        clusters=tuple((new_id, tuple(olds)) for new_id, olds in sorted(near.items())),
    )


def _valid_from(memory: Memory) -> datetime:
    return memory.valid_from or memory.occurred_at


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
        if len(support) < 3 or not ids.issuperset(support) or not insight.content.strip():
            changes.rejected += 1
            continue
        changes.insights.append(insight.model_copy(update={"support": support}))
    return changes


def _wordings(changes: Changes, material: ReflectMaterial) -> list[str]:
    """Every text that the changes may store: their vectors are made before the transaction, which waits for nobody."""
    said = {fact.id: fact.content for fact in material.facts}
    texts = [_told(insight) for insight in changes.insights]
    for relation in changes.relations:
        new, old = said[relation.new_id], said[relation.old_id]
        if relation.kind == "contradicts":
            texts += [_verdict(relation, old, new), _verdict(relation, new, old)]
        elif relation.kind == "reinforces":
            texts.append(new)
    return list(dict.fromkeys(texts))


def _told(insight: Insight) -> str:
    return shorten(" ".join(clean_text(insight.content).split()), LONGEST_INSIGHT)


def _verdict(relation: Relation, loser: str, winner: str) -> str:
    return f"Earlier: {loser} {'Also said' if relation.holds == 'both' else 'Now'}: {winner}"


def _apply(
    mind: Mind,
    errand: Errand,
    perspective: PerspectiveRow,
    new: Sequence[Memory],
    changes: Changes,
    vectors: Mapping[str, Vectors],
) -> tuple[JobOutcome, bool]:
    made_by = mind.model.model_for("reflect")
    with mind.database.transaction() as tx:
        locked = perspectives.locked(tx, errand.namespace_id, perspective.observer, [perspective.subject])
        held = locked[perspective.subject]
        if held.reflected_through != perspective.reflected_through:
            return errand.commit(tx, JobOutcome(status="superseded")), False
        found = reflections.by_id(tx, changes.facts())
        standing = {i: memory for i, memory in found.items() if memory.valid_to is None}
        fresh = [r for r in changes.relations if not reflections.related(tx, r.new_id, r.old_id)]
        doomed = {old.id for r in fresh if (old := _loser(r, standing)) is not None and r.holds != "both"}
        if len(doomed) > GUARD_COUNT and len(doomed) > GUARD_SHARE * reflections.active(tx, held.id):
            plan = _plan(changes, doomed)
            reflections.hold(tx, held.id, plan)
            return errand.commit(tx, JobOutcome(status="needs_review", details={"plan": plan})), False
        perspectives.advance(tx, held.id, seen=perspective.reflected_through, through=new[-1].id)
        counts = {"reinforced": 0, "contradictions": 0, "superseded": 0, "insights": 0}
        made = [
            *(memory for r in fresh for memory in _relate(tx, held, r, standing, counts, made_by)),
            *(memory for i in changes.insights for memory in _conclude(tx, held, i, standing, counts, made_by)),
        ]
        # A fact that was reworded meanwhile has no vector here; like any other memory, it is found without one.
        placed = {memory_id: vectors[text] for memory_id, text in made if text in vectors}
        embeddings.store(tx, errand.namespace_id, mind.embedder.name, list(placed), list(placed.values()))
        tx.flush()
        more = perspectives.unreflected(tx, [held.id])[held.id] > 0
        details: dict[str, Any] = {"facts": len(new), **counts, "rejected": changes.rejected, "model": made_by}
        return errand.commit(tx, JobOutcome(status="completed", details=details)), more


def _plan(changes: Changes, doomed: set[int]) -> dict[str, Any]:
    return {
        "supersedes": sorted(doomed),
        "relations": [relation.model_dump() for relation in changes.relations],
        "insights": [insight.model_dump() for insight in changes.insights],
    }


def _loser(relation: Relation, standing: dict[int, Memory]) -> Memory | None:
    """The fact that a contradiction weakens: the one that does not hold, else the one that became valid earlier."""
    new, old = standing.get(relation.new_id), standing.get(relation.old_id)
    if relation.kind != "contradicts" or new is None or old is None:
        return None
    if relation.holds == "both":
        return min(new, old, key=lambda memory: (_valid_from(memory), memory.id))
    return old if relation.holds == "new" else new


def _relate(
    tx: Transaction,
    perspective: PerspectiveRow,
    relation: Relation,
    standing: dict[int, Memory],
    counts: dict[str, int],
    made_by: str,
) -> list[tuple[int, str]]:
    """Record one relation; returns the memories it made, as (id, content)."""
    new, old = standing.get(relation.new_id), standing.get(relation.old_id)
    if new is None or old is None:
        return []  # superseded earlier in this very run
    if relation.kind == "contradicts":
        return _contradict(tx, perspective, relation, new, old, standing, counts, made_by)
    reflections.reinforce(tx, [new.id, old.id])
    facts.link(tx, perspective.namespace_id, new.id, [old.id], "reinforces")
    counts["reinforced"] += 1
    if relation.kind == "duplicate" or content_key(new.content) == content_key(old.content):
        return []
    conclusion = reflections.Conclusion(
        level="derived",
        content=new.content,
        confidence=REWORDED_CONFIDENCE,
        sources=(new.id, old.id),
        role="reinforces",
        made_by=made_by,
        valid_from=max(_valid_from(new), _valid_from(old)),
    )
    return [(reflections.conclude(tx, perspective, conclusion), conclusion.content)]


def _contradict(
    tx: Transaction,
    perspective: PerspectiveRow,
    relation: Relation,
    new: Memory,
    old: Memory,
    standing: dict[int, Memory],
    counts: dict[str, int],
    made_by: str,
) -> list[tuple[int, str]]:
    loser = _loser(relation, standing)
    assert loser is not None
    winner = new if loser is old else old
    conclusion = reflections.Conclusion(
        level="contradiction",
        content=_verdict(relation, loser.content, winner.content),
        confidence=CONTRADICTION_CONFIDENCE,
        sources=(new.id, old.id),
        role="contradicts",
        made_by=made_by,
        valid_from=max(_valid_from(new), _valid_from(old)),
    )
    made = reflections.conclude(tx, perspective, conclusion)
    reflections.weaken(tx, loser.id, CONTRADICTED_LOSES)
    counts["contradictions"] += 1
    if relation.holds != "both":
        reflections.supersede(tx, loser, winner)
        del standing[loser.id]
        counts["superseded"] += 1
    return [(made, conclusion.content)]


def _conclude(
    tx: Transaction,
    perspective: PerspectiveRow,
    insight: Insight,
    standing: dict[int, Memory],
    counts: dict[str, int],
    made_by: str,
) -> list[tuple[int, str]]:
    """Store one insight, unless one on these facts exists or a fact it rests on no longer holds."""
    if any(i not in standing for i in insight.support) or reflections.insight_on(tx, perspective.id, insight.support):
        return []
    conclusion = reflections.Conclusion(
        level="derived",
        content=_told(insight),
        confidence=min(0.92, 0.72 + 0.05 * (len(insight.support) - 3)),
        sources=tuple(insight.support),
        role="insight_support",
        made_by=made_by,
        valid_from=max(_valid_from(standing[i]) for i in insight.support),
    )
    counts["insights"] += 1
    return [(reflections.conclude(tx, perspective, conclusion), conclusion.content)]


def reflect_namespace(mind: Mind, errand: Errand) -> tuple[JobOutcome, list[tuple[str, str]]]:
    """Archive old messages; returns the perspectives (observer, subject) that have something to reflect on."""
    with mind.database.transaction() as tx:
        ripe = perspectives.ripe(tx, at_least=1, namespace_id=errand.namespace_id)
        archived = reflections.archive_raw(tx, errand.namespace_id, datetime.now(UTC) - ARCHIVE_AFTER)
        details = {"perspectives": len(ripe), "archived": archived}
        status: Status = "completed" if ripe or archived else "unchanged"
        outcome = errand.commit(tx, JobOutcome(status=status, details=details))
        return outcome, [(observer, subject) for _, _, observer, subject in ripe]
