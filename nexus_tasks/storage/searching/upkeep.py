"""What keeps search fast: totals folded, common words counted, a vector index per large namespace.

Search is right without any of it, only slower, and the weight of words in more than ``MOST_COUNTED`` memories is less
exact. One process at a time does it, under advisory locks that the others do not wait for.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from sqlalchemy import Connection, text

from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.searching.query_stats import MOST_COUNTED, MOST_UNINDEXED
from nexus_tasks.storage.searching.vectors import MOST_DIMENSIONS, hnsw

BUILD_MEMORY = "512MB"  # an index of 300,000 vectors of 384 dimensions is built in memory; larger ones go to disk
_LOCK = 0x6E65787574  # "nexut", beside the schema's "nexus"


@dataclass(frozen=True, kw_only=True)
class Upkeep:
    """What one run did: rows of totals folded away, namespaces counted, vector indexes made and dropped."""

    folded: int = 0
    counted: int = 0
    indexed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def run(database: Database) -> Upkeep:
    """Do what is needed; nothing when another process is at it. Building an index takes about a minute per 100,000."""
    with database.apart() as connection:
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
            return Upkeep()
        try:
            folded = _fold(connection)
            grown = _grown(connection)
            for namespace_id, memories in grown:
                _count_words(database, namespace_id, memories)
            made, dropped = _index_vectors(connection)
            return Upkeep(folded=folded, counted=len(grown), indexed=tuple(made), dropped=tuple(dropped))
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})


def _fold(connection: Connection) -> int:
    """Replace the rows of each total by their sum, in one statement: a reader sees the one or the other."""
    return connection.execute(
        text(
            """
            WITH many AS (
                SELECT namespace_id, model FROM search_totals GROUP BY namespace_id, model HAVING count(*) > 1
            ), gone AS (
                DELETE FROM search_totals AS t USING many
                WHERE t.namespace_id = many.namespace_id AND t.model = many.model
                RETURNING t.namespace_id, t.model, t.count, t.length
            )
            INSERT INTO search_totals (namespace_id, model, count, length)
            SELECT namespace_id, model, sum(count), sum(length) FROM gone GROUP BY namespace_id, model
            """
        )
    ).rowcount


def _grown(connection: Connection) -> list[tuple[int, int]]:
    """Namespaces, with their memories, that changed by a tenth since their words were counted."""
    rows = connection.execute(
        text(
            """
            SELECT totals.namespace_id, totals.memories
            FROM (
                SELECT namespace_id, sum(count)::bigint AS memories FROM search_totals
                WHERE model = '' GROUP BY namespace_id
            ) AS totals
            LEFT JOIN LATERAL (
                SELECT max(total) AS total FROM common_words WHERE namespace_id = totals.namespace_id
            ) AS counted ON true
            WHERE greatest(totals.memories, counted.total) > :most
              AND 10 * abs(totals.memories - coalesce(counted.total, 0)) > totals.memories
            """
        ),
        {"most": MOST_COUNTED},
    )
    return [(namespace_id, memories) for namespace_id, memories in rows]


def _count_words(database: Database, namespace_id: int, memories: int) -> None:
    with database.transaction() as tx:
        tx.execute(text("DELETE FROM common_words WHERE namespace_id = :id"), {"id": namespace_id})
        tx.execute(
            text(
                f"""
                INSERT INTO common_words (key, namespace_id, memories, total)
                SELECT hashtextextended(word, :id), :id, ndoc, :total
                FROM ts_stat('SELECT tsv FROM memories WHERE namespace_id = {int(namespace_id)}')
                WHERE ndoc > :most
                """
            ),
            {"id": namespace_id, "total": memories, "most": MOST_COUNTED},
        )


def _index_vectors(connection: Connection) -> tuple[list[str], list[str]]:
    """Make the indexes that are missing, drop those no longer needed or left unfinished; their names."""
    rows = connection.execute(
        text(
            "SELECT c.relname, i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = 'embeddings'::regclass AND c.relname LIKE 'ix\\_vectors\\_%'"
        )
    )
    there = {str(name): bool(valid) for name, valid in rows}
    wanted = _large(connection, MOST_UNINDEXED)
    kept = _large(connection, MOST_UNINDEXED // 2)  # a namespace at the border does not come and go
    dropped = [name for name, valid in there.items() if name not in kept or not valid]
    for name in dropped:
        connection.execute(text(f"DROP INDEX CONCURRENTLY IF EXISTS {name}"))
    made = [name for name in wanted if not there.get(name)]
    if made:
        # Without helpers: they share memory that containers have little of.
        connection.execute(text("SET max_parallel_maintenance_workers = 0"))
        connection.execute(text(f"SET maintenance_work_mem = '{BUILD_MEMORY}'"))
    for name in made:
        connection.execute(text(f"CREATE INDEX CONCURRENTLY {name} ON embeddings {wanted[name]}"))
    return made, dropped


def _large(connection: Connection, most: int) -> dict[str, str]:
    """The index of each namespace and model with more than ``most`` vectors: its name and what follows the table's."""
    rows = connection.execute(
        text(
            """
            SELECT totals.namespace_id, totals.model, vector_dims(one.vector)
            FROM (
                SELECT namespace_id, model FROM search_totals WHERE model <> ''
                GROUP BY namespace_id, model HAVING sum(count) > :most
            ) AS totals
            CROSS JOIN LATERAL (
                SELECT vector FROM embeddings
                WHERE namespace_id = totals.namespace_id AND model = totals.model LIMIT 1
            ) AS one
            """
        ),
        {"most": most},
    )
    return {
        f"ix_vectors_{namespace_id}_{zlib.crc32(model.encode()):08x}": hnsw(namespace_id, model, dimensions)
        for namespace_id, model, dimensions in rows
        if dimensions <= MOST_DIMENSIONS
    }
