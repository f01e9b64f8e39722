"""Reading the vectors of sessions' digests, for the likeness of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from sqlalchemy import TextClause, text

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching.scope import Scope

_HEADER_BYTES = 4  # of pgvector's binary form: the number of dimensions, and a number that is not used


def read_digest_vectors(tx: Transaction, scope: Scope, model: str, session_ids: Sequence[int]) -> dict[int, Vectors]:
    """The vectors of the newest long digests: id of a session → vector.

    A session is left out when it has no digest, when its digest was not valid at the filter's ``as_of``, or when the
    digest has no vector of the model.
    """
    values = {**scope.values, "model": model, "session_ids": list(session_ids)}
    rows = tx.execute(_statement(scope.visible), values)
    return {session: np.frombuffer(vector, ">f2", offset=_HEADER_BYTES) for session, vector in rows}


@lru_cache(maxsize=64)
def _statement(visible: str) -> TextClause:
    return text(_VECTORS.format(visible=visible))


# Half floats, because the driver gets their bytes as hexadecimal digits, and a likeness needs no more.
# The newest digest is read in the order of the unique index, because a long session may have had a thousand digests.
_VECTORS = """
    SELECT asked.session_id, halfvec_send(CAST(e.vector AS halfvec))
    FROM unnest(CAST(:session_ids AS bigint[])) AS asked (session_id)
    CROSS JOIN LATERAL (
        SELECT memory_id FROM session_digests
        WHERE namespace_id = :namespace_id AND session_id = asked.session_id AND kind = 'long'
        ORDER BY end_seq DESC, generation DESC LIMIT 1
    ) AS newest
    CROSS JOIN LATERAL (SELECT * FROM memories WHERE id = newest.memory_id OFFSET 0) AS m
    CROSS JOIN LATERAL (
        SELECT vector FROM embeddings WHERE memory_id = newest.memory_id AND model = :model OFFSET 0
    ) AS e
    WHERE {visible}
    """
