"""Erase a memory, a session or a namespace, and the memories derived from them. Report the work that is due again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import text

from nexus_tasks.errors import NotFound
from nexus_tasks.event_time import event_time, zone
from nexus_tasks.storage import batches, derivations, erased_ids, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.erasure import cascade, context, removing, targets
from nexus_tasks.storage.models import Memory
from nexus_tasks.storage.shown import shown
from nexus_tasks.text import word_forms

_Words = Callable[[Memory], set[str]]
_ALIVE = text("SELECT 1")

# Tables that stay when a namespace is erased. The namespace keeps its name, settings, tokens, webhooks and spending.
# Deleting the spending would reset the day's budget. Database triggers update `search_totals` when memories are
# deleted.
# `erased_ids` stays: by it, the hook knows the erased messages when it reads a transcript again.
# A message batch that the provider may have is not forgotten either, because its answers cost money.
SPARED = frozenset(
    {
        *("namespaces", "tokens", "webhooks", "model_calls", "budget_holds", "search_totals"),
        *("batch_requests", "message_batches"),
        "erased_ids",
    }
)


@dataclass(frozen=True, kw_only=True)
class ErasureResult:
    """The rows that an erasure deleted, and the work that the caller must do after the commit.

    Attributes:
        deleted: the number of deleted rows, by table.
        ids: ids of the erased memories.
        unwanted: derivations (memory id, observer) of erased messages. The caller must drop the claims of these
            derivations.
        again: derivations (memory id, observer) to make again, because the erasure deleted a fact from the message.
        digests: keys of the sessions that must be digested again.
    """

    deleted: dict[str, int]
    ids: tuple[int, ...]
    unwanted: tuple[tuple[int, str], ...] = ()
    again: tuple[tuple[int, str], ...] = ()
    digests: tuple[str, ...] = ()


def forget_memory(tx: Transaction, namespace_id: int, memory_id: int) -> ErasureResult:
    """Erase one memory, and the digests, conclusions of reflections and facts that were derived from the memory.

    A fact stays when its other sources support the fact (see :func:`_is_still_supported`).

    Raises:
        NotFound: the namespace has no such memory.
    """
    target = targets.lock_memory(tx, namespace_id, memory_id)
    if target is None:
        raise NotFound(f"There is no memory {memory_id} here.")
    return _forget(tx, namespace_id, {target.id: target})


def forget_expired(tx: Transaction, namespace_id: int, memory_ids: Collection[int]) -> ErasureResult | None:
    """Erase those of the memories that have expired and were stored with ``erase_expired``. ``None``: there are none.

    Each is erased as :func:`forget_memory` erases it.
    """
    expired = targets.lock_expired(tx, namespace_id, memory_ids)
    return _forget(tx, namespace_id, expired) if expired else None


def forget_replaced(tx: Transaction, namespace_id: int, memory_ids: Collection[int]) -> ErasureResult:
    """Erase messages of a locked session, each as :func:`forget_memory` erases it.

    Other messages get their ids. So the ids are not noted in ``erased_ids``.
    """
    return _forget(tx, namespace_id, targets.lock_messages(tx, memory_ids), replaced=True)


def forget_session(tx: Transaction, namespace_id: int, session_key: str) -> ErasureResult:
    """Erase a session. Each message and digest of the session is erased as :func:`forget_memory` erases a memory.

    Raises:
        NotFound: the namespace has no such session.
    """
    session = sessions.get(tx, namespace_id, session_key, lock=True)
    forgotten = _forget(tx, namespace_id, targets.lock_session(tx, session.id), leaving=session.id)
    deleted = Counter(forgotten.deleted) + removing.remove_session(tx, session)
    return ErasureResult(
        deleted=dict(deleted),
        ids=forgotten.ids,
        unwanted=forgotten.unwanted,
        again=forgotten.again,
        digests=forgotten.digests,
    )


def forget_namespace(tx: Transaction, namespace_id: int) -> ErasureResult:
    """Erase all memories of a namespace. The name, the settings and the ledger of the namespace stay."""
    ids = targets.lock_namespace(tx, namespace_id)
    erased_ids.note(tx, namespace_id, ids)
    gone = +Counter({"batch_requests": batches.erase_texts(tx, namespace_id)})
    return ErasureResult(deleted=dict(gone + removing.remove_namespace(tx, namespace_id, SPARED)), ids=tuple(ids))


def _forget(
    tx: Transaction, namespace_id: int, erased: dict[int, Memory], *, leaving: int | None = None, replaced: bool = False
) -> ErasureResult:
    worded = context.facts_with_words_of(tx, erased)
    targets.lock_perspectives(tx, [*erased, *worded])
    # Several facts may cite the same messages. The words of a long message take up to 0.2 s and 2 MB.
    words = lru_cache(maxsize=20)(partial(_words, tx))
    rules = partial(_is_still_supported, words), partial(_told_by_lost, words)
    deleting = cascade.find_cascade(tx, erased, worded, *rules)
    raw = [memory_id for memory_id, memory in deleting.memories.items() if memory.level == "raw"]
    unwanted = derivations.of_messages(tx, raw)
    if not replaced:
        erased_ids.note(tx, namespace_id, raw)
    deleted = removing.remove(tx, namespace_id, deleting)
    again = deleting.rederive - deleting.memories.keys()
    return ErasureResult(
        deleted=dict(deleted),
        ids=tuple(sorted(deleting.memories)),
        unwanted=tuple(unwanted),
        again=tuple(derivations.of_messages(tx, sorted(again), state="wanted")),
        digests=tuple(targets.keys_with_messages(tx, deleting.sessions_losing_digests() - {leaving})),
    )


def _is_still_supported(words: _Words, fact: Memory, lost: Collection[Memory], left: Collection[Memory]) -> bool:
    """Whether a fact may stay after its ``lost`` sources are erased.

    The fact must go when it has a content word that only the ``lost`` sources support. A word is still supported when
    one of the ``left`` sources or the name of the fact's author contains the word. A word that no source contains does
    not count.
    """
    return _words_of_lost(words, fact, lost, left).isdisjoint(word_forms(fact.content))


def _told_by_lost(words: _Words, fact: Memory, lost: Collection[Memory], left: Collection[Memory]) -> dict[str, Any]:
    """The columns of a fact that stays, without what only its ``lost`` sources tell: labels, and a time."""
    gone = _words_of_lost(words, fact, lost, left)
    labels = [label for label in fact.labels if gone.isdisjoint(word_forms(label))]
    changed: dict[str, Any] = {} if labels == fact.labels else {"labels": labels}
    told = fact.event_from, fact.event_to
    if told in _times(lost) and told not in _times((fact, *left)):
        changed |= {"event_from": None, "event_to": None}
    return changed


def _words_of_lost(words: _Words, fact: Memory, lost: Collection[Memory], left: Collection[Memory]) -> set[str]:
    """The content words of the ``lost`` sources of a fact that neither the others nor the author's name have."""
    known = {word for source in left for word in words(source)} | word_forms(fact.author or "")
    return {word for source in lost for word in words(source)} - known


def _times(memories: Collection[Memory]) -> set[tuple[datetime | None, datetime | None]]:
    spans = (event_time(one.content, one.occurred_at, zone(one.time_zone)) for one in memories)
    return {(span.begin, span.end) for span in spans if span is not None}


def _words(tx: Transaction, source: Memory) -> set[str]:
    tx.execute(_ALIVE)  # otherwise the transaction would be idle for as long as the words of many sources take
    return word_forms(f"{source.author or ''} {shown(source.content)}")
