"""Finding the cascade of an erasure: the memories that must be deleted because they rest on erased memories.

A memory rests on its sources, which the table ``evidence`` names. ``removing.py`` deletes the cascade.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.erasure.context import insights_with_words_of, words_of
from nexus_tasks.storage.erasure.targets import WITHOUT_TEXTS
from nexus_tasks.storage.many import among, not_among
from nexus_tasks.storage.models import Evidence, Memory
from nexus_tasks.storage.shown import shown
from nexus_tasks.text import word_forms
from nexus_tasks.types import standing_rank

# A function of a fact, its lost sources and its remaining sources. It returns whether the remaining sources alone
# support the fact's wording.
StillSupported = Callable[[Memory, Collection[Memory], Collection[Memory]], bool]
# A function of the same arguments. It returns the columns of a fact that stays which only its lost sources tell, and
# their new values.
ToldByLost = Callable[[Memory, Collection[Memory], Collection[Memory]], dict[str, Any]]


@dataclass(kw_only=True)
class Cascade:
    """The memories that an erasure deletes or changes.

    - ``memories`` are the memories to delete, by id.
    - ``rederive`` are the ids of messages that stay, although a fact that was derived from them is deleted. Facts are
      derived from these messages again.
    - ``weakened`` are the facts that stay and lose sources: memory id → (number of lost sources, remaining sources
      without those of merged facts).
    - ``redated`` are those of the weakened facts that lose their earliest source: memory id → text.
    - ``standings`` are the ranks of the weakened facts' standings: memory id → rank.
    - ``cleared`` are columns of facts that stay which only erased messages tell: memory id → new values.
    """

    memories: dict[int, Memory] = field(default_factory=dict)
    rederive: set[int] = field(default_factory=set)
    weakened: dict[int, tuple[int, list[Memory]]] = field(default_factory=dict)
    redated: dict[int, str] = field(default_factory=dict)
    standings: dict[int, int] = field(default_factory=dict)
    cleared: dict[int, dict[str, Any]] = field(default_factory=dict)

    def sessions_losing_digests(self) -> set[int]:
        """The ids of the sessions whose digests are deleted."""
        return {m.session_id for m in self.memories.values() if m.level.startswith("summary") and m.session_id}

    def perspectives_losing_memories(self) -> set[int]:
        """The ids of the perspectives that lose a memory."""
        return {m.perspective_id for m in self.memories.values() if m.perspective_id}


def find_cascade(
    tx: Transaction,
    targets: Mapping[int, Memory],
    worded: Mapping[int, set[str]],
    still_supported: StillSupported,
    told_by_lost: ToldByLost,
) -> Cascade:
    """Find and lock the memories that must be deleted together with ``targets``. The caller has locked ``targets``.

    A digest, or a conclusion of a reflection, is deleted when any memory that it rests on is deleted. A fact that loses
    a source is deleted in four cases:

    - The fact has no source of its own left. The sources that a merge gave to it are those of another fact, which then
      holds again.
    - The remaining sources do not support the fact's wording (``still_supported`` returns ``False``).
    - Only the words of assistants and tools remain, and a person's words were among the sources.
    - The fact has superseded another memory, and the time at which that memory ended is the time of an erased source
      only. (A memory that was never valid does not count.)

    Args:
        worded: facts with words that only erased messages have (see ``context.py``): id → these words. A fact is
            deleted when its text has one of them. Otherwise it loses its labels that have one.
    """
    cascade = Cascade(memories=dict(targets))
    labelled, ended = _add_worded(tx, cascade, worded)
    frontier = set(cascade.memories)
    while frontier:
        resting = _resting_on(tx, frontier, cascade.memories)
        sources, merged = _sources(tx, [memory.id for memory in resting if memory.level == "explicit"])
        frontier = set()
        for memory in resting:
            if memory.level == "explicit":
                left = [source for source in sources[memory.id] if source.id not in cascade.memories]
                lost = [source for source in sources[memory.id] if source.id in cascade.memories]
                own = [source for source in left if (memory.id, source.id) not in merged]
                if (
                    own
                    and _is_still_said_by_people(lost, own)
                    # This statement of each fact comes first, so that the transaction is not idle for all of them.
                    and _may_stay_superseding(tx, memory, left)
                    and still_supported(memory, lost, left)
                ):
                    cascade.weakened[memory.id] = len(lost), own
                    cascade.standings[memory.id] = min(_standing(memory, source) for source in own)
                    cascade.cleared[memory.id] = told_by_lost(memory, lost, left)
                    if memory.valid_from != min(source.occurred_at for source in own):
                        cascade.redated[memory.id] = memory.content
                    continue
                if memory.valid_to is not None:
                    ended.append((memory, left))
                else:
                    cascade.rederive.update(source.id for source in left if source.level == "raw")
                cascade.weakened.pop(memory.id, None)
            cascade.memories[memory.id] = memory
            frontier.add(memory.id)
        if not frontier:
            insights = {insight.id: insight for insight in insights_with_words_of(tx, cascade.memories)}
            cascade.memories |= insights
            frontier = set(insights)
    for memory, left in ended:  # what was superseded or corrected must not hold again, unless its successor goes
        if memory.superseded_by in cascade.memories:
            cascade.rederive.update(source.id for source in left if source.level == "raw")
    for fact in labelled:
        if fact.id not in cascade.memories:
            _clear_labels(cascade, fact, worded[fact.id])
    _clear_corrections(tx, cascade)
    return cascade


def _clear_labels(cascade: Cascade, fact: Memory, words: Collection[str]) -> None:
    """Note that a fact which stays loses the labels that have one of the ``words``."""
    cleared = cascade.cleared.get(fact.id, {})
    labels = cleared.get("labels", fact.labels)
    left = [label for label in labels if word_forms(label).isdisjoint(words)]
    if left != labels:
        cascade.cleared[fact.id] = cleared | {"labels": left}


def _clear_corrections(tx: Transaction, cascade: Cascade) -> None:
    """Note the labels that a correction has only from the fact which it corrected, when erased messages told them."""
    owners = sorted(cascade.perspectives_losing_memories())
    query = select(Memory).where(
        among(Memory.perspective_id, owners),
        not_among(Memory.id, cascade.memories),
        Memory.level == "explicit",
        Memory.made_by == "correction",
        func.cardinality(Memory.labels) > 0,
    )
    corrections = tx.scalars(query.order_by(Memory.id).with_for_update()).all() if owners else ()
    if not corrections:
        return
    sources, _ = _sources(tx, [fact.id for fact in corrections])
    gone = words_of(tx, [memory for memory in cascade.memories.values() if memory.level == "raw"])
    for fact in corrections:
        left = [source for source in sources[fact.id] if source.id not in cascade.memories]
        known = " ".join([fact.author or "", *(f"{source.author or ''} {shown(source.content)}" for source in left)])
        _clear_labels(cascade, fact, gone.difference(word_forms(known)))


def _add_worded(
    tx: Transaction, cascade: Cascade, worded: Mapping[int, set[str]]
) -> tuple[list[Memory], list[tuple[Memory, list[Memory]]]]:
    """Lock facts with words of erased messages, and add those whose texts have such words.

    The messages that an added fact cites are derived again.

    Returns:
        The facts that have such words in labels only, and the added facts that have ended, with their sources.
    """
    labelled: list[Memory] = []
    ended: list[tuple[Memory, list[Memory]]] = []
    if not worded:
        return labelled, ended
    found = tx.scalars(select(Memory).where(among(Memory.id, worded)).order_by(Memory.id).with_for_update()).all()
    sources, _ = _sources(tx, [fact.id for fact in found])
    for fact in found:
        if worded[fact.id].isdisjoint(word_forms(fact.content)):
            labelled.append(fact)
            continue
        cascade.memories.setdefault(fact.id, fact)
        if fact.valid_to is not None:
            ended.append((fact, sources[fact.id]))
        else:
            cascade.rederive.update(source.id for source in sources[fact.id])
    return labelled, ended


def _resting_on(tx: Transaction, sources: Collection[int], gone: Collection[int]) -> list[Memory]:
    """Find and lock the memories that rest on ``sources``, except the memories ``gone``.

    A fact rests only on the sources of its edges with the role ``derived_from``. Its other edges lead to related facts.
    """
    edge = select(Evidence.memory_id).where(
        among(Evidence.source_id, sources),
        Evidence.memory_id == Memory.id,
        (Memory.level != "explicit") | (Evidence.role == "derived_from"),
    )
    query = select(Memory).where(edge.exists(), not_among(Memory.id, gone)).order_by(Memory.id)
    return list(tx.scalars(query.with_for_update(of=Memory)))


def _is_still_said_by_people(lost: Collection[Memory], left: Collection[Memory]) -> bool:
    return not any(source.role == "user" for source in lost) or any(source.role == "user" for source in left)


def _standing(fact: Memory, source: Memory) -> int:
    """The rank of a source's standing for a fact. A person who speaks of somebody else has the standing ``other``."""
    other = source.role == "user" and source.author != fact.author
    return standing_rank("other") if other else source.standing or standing_rank("import")


def _may_stay_superseding(tx: Transaction, fact: Memory, left: Collection[Memory]) -> bool:
    """Whether ``fact`` may still supersede the memories that it superseded.

    Each of these memories must have ended at the time of a source in ``left``, or must never have been valid.
    """
    others = tx.execute(select(Memory.valid_from, Memory.valid_to).where(Memory.superseded_by == fact.id))
    said = {source.occurred_at for source in left}
    return all(ended in said or ended == began for began, ended in others)


def _sources(tx: Transaction, memory_ids: Collection[int]) -> tuple[dict[int, list[Memory]], set[tuple[int, int]]]:
    """The sources that each fact was derived from, and those that a merge gave to it.

    Returns:
        fact id → sources, and the pairs (fact id, source id) of merges.
    """
    found: dict[int, list[Memory]] = {memory_id: [] for memory_id in memory_ids}
    merged = set[tuple[int, int]]()
    query = (
        select(Evidence.memory_id, Memory, Evidence.reflection_id)
        .join(Memory, Memory.id == Evidence.source_id)
        .where(among(Evidence.memory_id, memory_ids), Evidence.role == "derived_from")
        .order_by(Memory.id)
        .options(*WITHOUT_TEXTS)
    )
    for memory_id, source, reflection_id in tx.execute(query):
        found[memory_id].append(source)
        if reflection_id is not None:
            merged.add((memory_id, source.id))
    return found, merged
