"""Remember which messages were erased, so that a second reading of a transcript does not bring them back.

A coding agent keeps its transcript, and the hook may read all of it again: the agent has rewritten the file, or a
person had imported it before. Only a hash of a message's id is kept, and nothing of its text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256

from sqlalchemy import select, text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among_texts
from nexus_tasks.storage.models import ErasedId

# A message without an id has a hash of its text in place of the id. It is left out: a hash of a text tells the text to
# whoever guesses it.
_NOTE = text(
    """
    INSERT INTO erased_ids (namespace_id, id_hash)
    SELECT namespace_id, encode(sha256(convert_to(external_id, 'UTF8')), 'hex') FROM memories
    WHERE namespace_id = :namespace_id AND id = ANY(CAST(:ids AS bigint[])) AND level = 'raw'
      AND external_id IS NOT NULL AND NOT starts_with(external_id, 'hash:')
    ON CONFLICT DO NOTHING
    """
)


def note(tx: Transaction, namespace_id: int, memory_ids: Collection[int]) -> None:
    """Remember the ids of those of the memories that are messages. Call it before they are deleted."""
    tx.execute(_NOTE, {"namespace_id": namespace_id, "ids": list(memory_ids)})


def erased(tx: Transaction, namespace_id: int, ids: Iterable[str | None]) -> set[str]:
    """Those of the ids that an erased message of the namespace had."""
    hashes = {sha256(one.encode()).hexdigest(): one for one in ids if one is not None}
    if not hashes:
        return set()
    found = select(ErasedId.id_hash).where(
        ErasedId.namespace_id == namespace_id, among_texts(ErasedId.id_hash, list(hashes))
    )
    return {hashes[one] for one in tx.scalars(found)}
