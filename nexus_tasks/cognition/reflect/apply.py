"""Write the changes of a reflection: merged facts, reinforcements, contradictions and insights.

``undo`` can reverse each change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from nexus_tasks.cognition.reflect.new_facts import holds, valid_from
from nexus_tasks.cognition.reflect.propose import FEWEST_SUPPORTS, Changes
from nexus_tasks.llm.answers import Insight, Relation
from nexus_tasks.storage import conclusions, reflections, undo, webhooks
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, PerspectiveRow

# Confidence of the memories that a reflection writes. Chosen by hand, not measured.
CONTRADICTION_CONFIDENCE = 0.70
COUNTED = ("merged", "reinforced", "contradictions", "superseded", "insights")


def texts_to_embed(changes: Changes, said: Mapping[int, str]) -> list[str]:
    """Every text that the changes may store. The caller embeds the texts before the transaction, to keep it short.

    Args:
        said: the wording of each fact, by the fact's id.
    """
    texts = [insight.content for insight in changes.insights]
    for relation in changes.relations:
        new, old = said[relation.new_id], said[relation.old_id]
        if relation.kind == "contradicts":
            texts += [_contradiction_text(relation, old, new), _contradiction_text(relation, new, old)]
    return list(dict.fromkeys(texts))


def _kept_first(new: Memory, old: Memory) -> tuple[Memory, Memory]:
    """Of two facts that say the same, the fact to keep and the other.

    A pinned fact is kept. Otherwise the fact of the higher standing is kept, and of two facts with equal standing the
    fact that was said earlier.
    """
    kept, other = sorted(
        (new, old), key=lambda fact: (fact.pinned_at is None, -(fact.standing or 0), valid_from(fact), fact.id)
    )
    return kept, other


def _stays(loser: Memory, winner: Memory) -> bool:
    """Whether a fact holds although ``winner`` contradicts it: it is pinned, or it lasts longer than ``winner``.

    Only a person ends a pinned fact. When a fact that expires ended one that lasts, neither would hold afterwards.
    """
    if loser.pinned_at is not None:
        return True
    ends = winner.expires_at
    return ends is not None and (loser.expires_at is None or loser.expires_at > ends)


def _contradiction_text(relation: Relation, loser: str, winner: str) -> str:
    return f"Earlier: {loser} {'Also said' if relation.holds == 'both' else 'Now'}: {winner}"


@dataclass(kw_only=True)
class PendingChanges:
    """The changes that one reflection still has to make. After :meth:`write`, ``made`` has the memories that it wrote.

    Attributes:
        active_facts: the facts that hold, by id. When :meth:`write` supersedes a fact, it also removes the fact from
            ``active_facts``. It then skips all later changes that name the fact.
        counts: the number of changes made, by kind.
        made: the content of each written memory, by the memory's id.
        merged: merged facts: the id of the fact that ended → the id of the fact that stays.
    """

    tx: Transaction
    perspective: PerspectiveRow
    relations: list[Relation]
    insights: list[Insight]
    active_facts: dict[int, Memory]
    made_by: str
    counts: Counter[str] = field(default_factory=Counter)
    made: dict[int, str] = field(default_factory=dict)
    merged: dict[int, int] = field(default_factory=dict)
    reflection_id: int = 0

    def to_be_superseded(self) -> set[int]:
        """Ids of the facts that :meth:`write` would supersede."""
        decided = (relation for relation in self.relations if relation.holds != "both")
        weakened = filter(None, map(self._loser_and_winner, decided))
        losers = {loser.id for loser, winner in weakened if not _stays(loser, winner)}
        pairs = (self._pair(relation) for relation in self.relations if relation.kind == "duplicate")
        return losers | {_kept_first(*pair)[1].id for pair in pairs if pair}

    def write(self, job_id: str) -> int | None:
        """Make the changes. Return the reflection's id, or ``None`` when there is nothing to change."""
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
        if (pair := self._pair(relation)) is None:
            return  # An earlier relation of this reflection has superseded one of the two facts.
        new, old = pair
        if relation.kind == "contradicts":
            self._contradict(relation, new, old)
            return
        if relation.kind == "duplicate":
            self._merge(new, old)
            return
        conclusions.reinforce(self.tx, self.reflection_id, new, old)
        self.counts["reinforced"] += 1

    def _pair(self, relation: Relation) -> tuple[Memory, Memory] | None:
        """The new and the old fact of a relation, if both are active."""
        new, old = self.active_facts.get(relation.new_id), self.active_facts.get(relation.old_id)
        return None if new is None or old is None else (new, old)

    def _merge(self, new: Memory, old: Memory) -> None:
        """Keep one of two facts that say the same. It gets the sources of the other fact, which ends."""
        kept, other = _kept_first(new, old)
        conclusions.merge(self.tx, self.reflection_id, kept, other)
        del self.active_facts[other.id]
        self.merged[other.id] = kept.id
        self.counts["merged"] += 1

    def _contradict(self, relation: Relation, new: Memory, old: Memory) -> None:
        judged = self._loser_and_winner(relation)
        assert judged is not None
        loser, winner = judged
        content = _contradiction_text(relation, loser.content, winner.content)
        # The contradiction is recorded, but a fact that stays loses no confidence.
        stays = _stays(loser, winner)
        decided = relation.holds != "both" and not stays
        when = conclusions.takeover_time(self.tx, loser, winner) if decided else max(valid_from(new), valid_from(old))
        self._conclude("contradiction", content, CONTRADICTION_CONFIDENCE, (new, old), "contradicts", when)
        self._tell(new, old)
        if not stays:
            conclusions.weaken(self.tx, self.reflection_id, loser.id)
        self.counts["contradictions"] += 1
        if decided:
            conclusions.supersede(self.tx, self.reflection_id, loser, winner, when)
            del self.active_facts[loser.id]
            self.counts["superseded"] += 1

    def _tell(self, new: Memory, old: Memory) -> None:
        told = {"reflection": self.reflection_id, "new_id": new.id, "old_id": old.id}
        webhooks.tell(self.tx, self.perspective.namespace_id, "contradiction.found", told)

    def _loser_and_winner(self, relation: Relation) -> tuple[Memory, Memory] | None:
        """The fact that a contradiction weakens, and the other one. ``None`` when ``relation`` weakens no fact.

        A contradiction weakens the fact that is no longer true. When both facts are still true, the contradiction
        weakens the earlier fact.
        """
        if relation.kind != "contradicts" or (pair := self._pair(relation)) is None:
            return None
        new, old = pair
        if relation.holds == "both":
            loser = min(new, old, key=lambda memory: (valid_from(memory), memory.id))
        else:
            loser = old if relation.holds == "new" else new
        return loser, new if loser is old else old

    def _conclude_insight(self, insight: Insight) -> None:
        """Store one insight, unless one of its facts is superseded or an insight from the same facts exists.

        A fact that this reflection has merged into another counts as that one.

        An insight from n facts has the confidence min(0.92, 0.72 + 0.05 · (n − 3)): 0.72 for three facts, and 0.92 for
        seven or more. The numbers are chosen by hand, not measured.
        """
        support = sorted({self._kept(i) for i in insight.support})
        supports = [self.active_facts[i] for i in support if i in self.active_facts]
        few = len(supports) < max(len(support), FEWEST_SUPPORTS)
        if few or reflections.has_insight(self.tx, self.perspective.id, support):
            return
        confidence = min(0.92, 0.72 + 0.05 * (len(supports) - 3))
        self._conclude("derived", insight.content, confidence, tuple(supports), "insight_support")
        self.counts["insights"] += 1

    def _kept(self, memory_id: int) -> int:
        """The fact into which this reflection has merged a fact, or the fact itself."""
        while memory_id in self.merged:
            memory_id = self.merged[memory_id]
        return memory_id

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


def pending_changes(tx: Transaction, perspective: PerspectiveRow, changes: Changes, made_by: str) -> PendingChanges:
    """The proposed changes without the changes that must not be made.

    A change must not be made in three cases: one of its facts is superseded or has expired, an earlier reflection made
    the change, or an undo has reversed the change.
    """
    found = reflections.by_id(tx, changes.facts())
    active_facts = {i: memory for i, memory in found.items() if holds(memory)}
    undone_pairs, undone_supports = undo.judged_by_undone(tx, perspective.id)
    relations = [
        relation
        for relation in changes.relations
        if {relation.new_id, relation.old_id} <= active_facts.keys()
        and frozenset((relation.new_id, relation.old_id)) not in undone_pairs
        and not reflections.has_relation(tx, relation.new_id, relation.old_id)
    ]
    insights = [
        insight
        for insight in changes.insights
        if active_facts.keys() >= set(insight.support)
        and frozenset(insight.support) not in undone_supports
        and not reflections.has_insight(tx, perspective.id, insight.support)
    ]
    return PendingChanges(
        tx=tx,
        perspective=perspective,
        relations=relations,
        insights=insights,
        active_facts=active_facts,
        made_by=made_by,
    )
