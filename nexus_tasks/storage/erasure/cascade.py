"""What falls with a memory: everything that was made from it, as far as the evidence reaches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy import select

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Evidence, Memory

# A fact, what it lost, what it still rests on → whether its wording can have come from what is left.
Stands = Callable[[Memory, Collection[Memory], Collection[Memory]], bool]


@dataclass(kw_only=True)
class Falling:
    """``memories`` are to go. Messages in ``again`` stay, but a fact that rested on them has gone: derive them anew.
    ``weakened`` maps a fact that stays to how many sources it lost, and to those it has left.
    """

    memories: dict[int, Memory] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    weakened: dict[int, tuple[int, list[Memory]]] = field(default_factory=dict)

    def sessions(self) -> set[int]:
        """The sessions whose digests fall."""
        return {m.session_id for m in self.memories.values() if m.level.startswith("summary") and m.session_id}

    def perspectives(self) -> set[int]:
        """Who loses a memory."""
        return {m.perspective_id for m in self.memories.values() if m.perspective_id}


def fall(tx: Transaction, targets: Mapping[int, Memory], stands: Stands) -> Falling:
    """Everything that goes with ``targets``, which are locked.

    Digests and conclusions fall with anything they rest on. A fact falls when nothing is left that it was derived
    from, when its wording cannot stand on that (``stands``), or when it took the place of another at the word of a
    message that goes: what is left of it may have been said before that other one.
    """
    falling = Falling(memories=dict(targets))
    frontier = set(targets)
    while frontier:
        resting = _resting_on(tx, frontier, falling.memories)
        sources = _sources(tx, [memory.id for memory in resting if memory.level == "explicit"])
        frontier = set()
        for memory in resting:
            if memory.level == "explicit":
                left = [source for source in sources[memory.id] if source.id not in falling.memories]
                lost = [source for source in sources[memory.id] if source.id in falling.memories]
                if left and stands(memory, lost, left) and _keeps_its_place(tx, memory, left):
                    falling.weakened[memory.id] = len(lost), left
                    continue
                falling.again.update(source.id for source in left if source.level == "raw")
                falling.weakened.pop(memory.id, None)
            falling.memories[memory.id] = memory
            frontier.add(memory.id)
    return falling


def _resting_on(tx: Transaction, sources: Collection[int], gone: Collection[int]) -> list[Memory]:
    """Memories with evidence among ``sources``; of facts only those derived from them: the rest are neighbours."""
    edge = select(Evidence.memory_id).where(
        Evidence.source_id.in_(sources),
        Evidence.memory_id == Memory.id,
        (Memory.level != "explicit") | (Evidence.role == "derived_from"),
    )
    query = select(Memory).where(edge.exists(), Memory.id.not_in(gone)).order_by(Memory.id)
    return list(tx.scalars(query.with_for_update(of=Memory)))


def _keeps_its_place(tx: Transaction, fact: Memory, left: Collection[Memory]) -> bool:
    """Whether all that a fact took the place of ended with a message which is left, or had never held."""
    others = tx.execute(select(Memory.valid_from, Memory.valid_to).where(Memory.superseded_by == fact.id))
    said = {source.occurred_at for source in left}
    return all(ended in said or ended == began for began, ended in others)


def _sources(tx: Transaction, memory_ids: Collection[int]) -> dict[int, list[Memory]]:
    found: dict[int, list[Memory]] = {memory_id: [] for memory_id in memory_ids}
    query = (
        select(Evidence.memory_id, Memory)
        .join(Memory, Memory.id == Evidence.source_id)
        .where(Evidence.memory_id.in_(memory_ids), Evidence.role == "derived_from")
        .order_by(Memory.id)
    )
    for memory_id, source in tx.execute(query):
        found[memory_id].append(source)
    return found
