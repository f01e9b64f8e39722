"""Doing what a reflection found: counters, contradictions, insights, each recorded so that it can be undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from nexus_tasks.cognition.reflect.choose import valid_from
from nexus_tasks.cognition.reflect.propose import Changes
from nexus_tasks.llm.answers import Insight, Relation
from nexus_tasks.storage import conclusions, reflections, undo
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, PerspectiveRow
from nexus_tasks.text import content_key

CONTRADICTION_CONFIDENCE = 0.70
REWORDED_CONFIDENCE = 0.75
COUNTED = ("reinforced", "contradictions", "superseded", "insights")


def wordings(changes: Changes, said: Mapping[int, str]) -> list[str]:
    """Every text that the changes may store: their vectors are made before the transaction, which waits for nobody."""
    texts = [insight.content for insight in changes.insights]
    for relation in changes.relations:
        new, old = said[relation.new_id], said[relation.old_id]
        if relation.kind == "contradicts":
            texts += [_verdict(relation, old, new), _verdict(relation, new, old)]
        elif relation.kind == "reinforces":
            texts.append(new)
    return list(dict.fromkeys(texts))


def _verdict(relation: Relation, loser: str, winner: str) -> str:
    return f"Earlier: {loser} {'Also said' if relation.holds == 'both' else 'Now'}: {winner}"


@dataclass(kw_only=True)
class Application:
    """The changes of one reflection that are still to be made, and what making them did.

    ``standing`` are the facts that hold; one that is superseded on the way takes no further part.
    """

    tx: Transaction
    perspective: PerspectiveRow
    relations: list[Relation]
    insights: list[Insight]
    standing: dict[int, Memory]
    made_by: str
    counts: Counter[str] = field(default_factory=Counter)
    made: dict[int, str] = field(default_factory=dict)  # memories that were made, with their contents
    reflection_id: int = 0

    def doomed(self) -> set[int]:
        """The facts that would be superseded."""
        decided = (relation for relation in self.relations if relation.holds != "both")
        return {loser.id for relation in decided if (loser := self._loser(relation)) is not None}

    def run(self, job_id: str) -> int | None:
        """Make the changes; returns the reflection's id, or ``None`` when there is nothing to change."""
        if not (self.relations or self.insights):
            return None
        pairs = [(relation.new_id, relation.old_id) for relation in self.relations]
        judged = conclusions.judged_ids(pairs, [insight.support for insight in self.insights])
        self.reflection_id = conclusions.begin(self.tx, self.perspective, job_id, judged)
        for relation in self.relations:
            self._relate(relation)
        for insight in self.insights:
            self._conclude_insight(insight)
        return self.reflection_id

    def _relate(self, relation: Relation) -> None:
        new, old = self.standing.get(relation.new_id), self.standing.get(relation.old_id)
        if new is None or old is None:
            return  # superseded earlier in this very run
        if relation.kind == "contradicts":
            self._contradict(relation, new, old)
            return
        conclusions.reinforce(self.tx, self.reflection_id, new, old)
        self.counts["reinforced"] += 1
        if relation.kind == "duplicate" or content_key(new.content) == content_key(old.content):
            return
        self._conclude("derived", new.content, REWORDED_CONFIDENCE, (new, old), "reinforces")

    def _contradict(self, relation: Relation, new: Memory, old: Memory) -> None:
        loser = self._loser(relation)
        assert loser is not None
        winner = new if loser is old else old
        content = _verdict(relation, loser.content, winner.content)
        decided = relation.holds != "both"
        when = conclusions.takeover_time(self.tx, loser, winner) if decided else max(valid_from(new), valid_from(old))
        self._conclude("contradiction", content, CONTRADICTION_CONFIDENCE, (new, old), "contradicts", when)
        conclusions.weaken(self.tx, self.reflection_id, loser.id)
        self.counts["contradictions"] += 1
        if decided:
            conclusions.supersede(self.tx, self.reflection_id, loser, winner, when)
            del self.standing[loser.id]
            self.counts["superseded"] += 1

    def _loser(self, relation: Relation) -> Memory | None:
        """The fact that a contradiction weakens: the one that does not hold, else the one that became valid earlier."""
        new, old = self.standing.get(relation.new_id), self.standing.get(relation.old_id)
        if relation.kind != "contradicts" or new is None or old is None:
            return None
        if relation.holds == "both":
            return min(new, old, key=lambda memory: (valid_from(memory), memory.id))
        return old if relation.holds == "new" else new

    def _conclude_insight(self, insight: Insight) -> None:
        """Store one insight, unless one on these facts exists or a fact it rests on no longer holds."""
        held = [self.standing[i] for i in insight.support if i in self.standing]
        if len(held) < len(insight.support) or reflections.has_insight(self.tx, self.perspective.id, insight.support):
            return
        confidence = min(0.92, 0.72 + 0.05 * (len(held) - 3))
        self._conclude("derived", insight.content, confidence, tuple(held), "insight_support")
        self.counts["insights"] += 1

    def _conclude(
        self,
        level: str,
        content: str,
        confidence: float,
        sources: tuple[Memory, ...],
        role: str,
        when: datetime | None = None,
    ) -> None:
        conclusion = conclusions.Conclusion(
            level=level,
            content=content,
            confidence=confidence,
            sources=tuple(source.id for source in sources),
            role=role,
            made_by=self.made_by,
            valid_from=when or max(map(valid_from, sources)),
        )
        self.made[conclusions.conclude(self.tx, self.perspective, self.reflection_id, conclusion)] = content


def application(tx: Transaction, perspective: PerspectiveRow, changes: Changes, made_by: str) -> Application:
    """What of ``changes`` is still to be done: its facts hold, and it is neither recorded yet nor was it undone."""
    found = reflections.by_id(tx, changes.facts())
    standing = {i: memory for i, memory in found.items() if memory.valid_to is None}
    undone_pairs, undone_supports = undo.judged_by_undone(tx, perspective.id)
    relations = [
        relation
        for relation in changes.relations
        if {relation.new_id, relation.old_id} <= standing.keys()
        and frozenset((relation.new_id, relation.old_id)) not in undone_pairs
        and not reflections.has_relation(tx, relation.new_id, relation.old_id)
    ]
    insights = [
        insight
        for insight in changes.insights
        if standing.keys() >= set(insight.support)
        and frozenset(insight.support) not in undone_supports
        and not reflections.has_insight(tx, perspective.id, insight.support)
    ]
    return Application(
        tx=tx,
        perspective=perspective,
        relations=relations,
        insights=insights,
        standing=standing,
        made_by=made_by,
    )
