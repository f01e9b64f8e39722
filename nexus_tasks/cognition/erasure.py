"""Erasure: what falls with a memory, and what is made anew without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from nexus_tasks.errors import NotFound
from nexus_tasks.storage import derivations, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.erasure import cascade, removing, targets
from nexus_tasks.storage.models import Memory
from nexus_tasks.text import content_words

# A namespace that is erased keeps its name and settings, and what it has spent: else erasing would lift its budget.
# Totals that search keeps follow the memories by themselves.
SPARED = frozenset({"namespaces", "model_calls", "budget_holds", "search_totals"})


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """What went. ``unwanted`` are derivations (memory id, observer) whose claims go too; ``again`` are those that are
    wanted anew, and ``digests`` the sessions whose digests are.
    """

    deleted: dict[str, int]
    ids: tuple[int, ...]
    unwanted: tuple[tuple[int, str], ...] = ()
    again: tuple[tuple[int, str], ...] = ()
    digests: tuple[str, ...] = ()


def forget_memory(tx: Transaction, namespace_id: int, memory_id: int) -> Forgotten:
    """Erase one memory and everything derived only from it.

    Raises:
        NotFound: the namespace has no such memory.
    """
    target = targets.lock_memory(tx, namespace_id, memory_id)
    if target is None:
        raise NotFound(f"There is no memory {memory_id} here.")
    return _forget(tx, namespace_id, {target.id: target})


def forget_session(tx: Transaction, namespace_id: int, session_key: str) -> Forgotten:
    """Erase a session: its messages, its digests, and everything derived only from them.

    Raises:
        NotFound: the namespace has no such session.
    """
    session = sessions.get(tx, namespace_id, session_key, lock=True)
    forgotten = _forget(tx, namespace_id, targets.lock_session(tx, session.id), leaving=session.id)
    deleted = Counter(forgotten.deleted) + removing.remove_session(tx, session)
    return Forgotten(
        deleted=dict(deleted),
        ids=forgotten.ids,
        unwanted=forgotten.unwanted,
        again=forgotten.again,
        digests=forgotten.digests,
    )


def forget_namespace(tx: Transaction, namespace_id: int) -> Forgotten:
    """Erase everything that a namespace remembers. Its name, its settings and its ledger stay."""
    ids = targets.lock_namespace(tx, namespace_id)
    return Forgotten(deleted=dict(removing.remove_namespace(tx, namespace_id, SPARED)), ids=tuple(ids))


def _forget(tx: Transaction, namespace_id: int, erased: dict[int, Memory], *, leaving: int | None = None) -> Forgotten:
    fallen = cascade.find_cascade(tx, erased, _stands)
    raw = [memory_id for memory_id, memory in fallen.memories.items() if memory.level == "raw"]
    unwanted = derivations.of_messages(tx, raw)
    deleted = removing.remove(tx, namespace_id, fallen)
    again = fallen.rederive - fallen.memories.keys()
    return Forgotten(
        deleted=dict(deleted),
        ids=tuple(sorted(fallen.memories)),
        unwanted=tuple(unwanted),
        again=tuple(derivations.of_messages(tx, sorted(again), state="wanted")),
        digests=tuple(targets.keys_with_messages(tx, fallen.sessions_losing_digests() - {leaving})),
    )


def _stands(fact: Memory, lost: Collection[Memory], left: Collection[Memory]) -> bool:
    """Whether a fact says nothing that only what it lost had said: none of its words came from there alone."""
    said = set(content_words(fact.content))
    known = {word for source in left for word in _words(source)} | set(content_words(fact.author or ""))
    return not (said & {word for source in lost for word in _words(source)}) - known


def _words(source: Memory) -> list[str]:
    return content_words(f"{source.author or ''} {source.content}")
