"""Remember which messages were erased, so that a second reading of a transcript does not store them again.

A coding agent keeps its transcript, and the hook may read all of it again: the agent has rewritten the file, or a
person had imported it before. Only hashes of a message's id are kept, and nothing of its text. Each erased message
has two:

- The hash of the id alone, for transcripts. Each line of a transcript has an id of its own, and keeps it when a
  continued session copies the line into another transcript.
- The hash of the session's key and the id, for other programs. Such a program may number the messages of each session
  1, 2, 3. Then a new message of one session has the id of an erased message of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256

from sqlalchemy import select, text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among_texts
from nexus_tasks.storage.models import ErasedId

# A message without an id has a hash of its text in place of the id (`hash:…`). The middleware of Anthropic's SDK gives
# an id that is a hash of the conversation (`turn:…`). These are left out: by such a hash, a person who guesses the
# erased text would know that the guess is right.
_NOTE = text(
    """
    WITH hashes AS (
        SELECT sha256(convert_to(sessions.session_key, 'UTF8')) AS of_key,
               sha256(convert_to(memories.external_id, 'UTF8')) AS of_id
        FROM memories LEFT JOIN sessions ON sessions.id = memories.session_id
        WHERE memories.namespace_id = :namespace_id AND memories.id = ANY(CAST(:ids AS bigint[]))
          AND memories.level = 'raw'
          AND memories.external_id IS NOT NULL AND NOT starts_with(memories.external_id, 'hash:')
          AND memories.external_id !~ '^turn:[0-9a-f]{40}(:[0-9]+)?$'
    )
    INSERT INTO erased_ids (namespace_id, id_hash)
    SELECT :namespace_id, encode(of_id, 'hex') FROM hashes
    UNION
    SELECT :namespace_id, encode(sha256(of_key || of_id), 'hex') FROM hashes WHERE of_key IS NOT NULL
    ON CONFLICT DO NOTHING
    """
)


def note(tx: Transaction, namespace_id: int, memory_ids: Collection[int]) -> None:
    """Remember the ids of those of the memories that are messages. Call it before they are deleted."""
    tx.execute(_NOTE, {"namespace_id": namespace_id, "ids": list(memory_ids)})


def erased(
    tx: Transaction, namespace_id: int, ids: Iterable[str | None], *, session_key: str | None = None
) -> set[str]:
    """Those of the ids that erased messages had.

    Args:
        session_key: only messages of this session count. Default: those of the whole namespace.
    """
    hashes = {_hash(one, session_key): one for one in ids if one is not None}
    if not hashes:
        return set()
    found = select(ErasedId.id_hash).where(
        ErasedId.namespace_id == namespace_id, among_texts(ErasedId.id_hash, list(hashes))
    )
    return {hashes[one] for one in tx.scalars(found)}


def _hash(id: str, session_key: str | None) -> str:
    of_id = sha256(id.encode())
    if session_key is None:
        return of_id.hexdigest()
    return sha256(sha256(session_key.encode()).digest() + of_id.digest()).hexdigest()
