"""Upkeep of search: merging totals, counting common words, and building one vector index per large namespace.

Without upkeep, searches are slower, and a word that more than 5,000 memories contain has a less exact weight. An
advisory lock of Postgres lets one process at a time do the upkeep. Other processes do not wait for the lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError, OperationalError

from nexus_tasks.errors import InvalidInput
from nexus_tasks.storage import statistics
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.searching.query_stats import MOST_COUNTED, MOST_UNINDEXED
from nexus_tasks.storage.searching.vectors import MOST_DIMENSIONS, hnsw_definition, index_name

log = logging.getLogger(__name__)

# An index of 300,000 vectors of 384 dimensions is built within this memory. Building a larger index also uses the disk.
BUILD_MEMORY = "512MB"
AT_ONCE = 500  # memories whose words are made anew in one transaction, which takes about 0.5 s
IN_USE_SECONDS = 10.0  # the longest wait of an erasure for transactions that use a vector index
MOST_SECONDS = 30.0  # for words in one run, so that the other work of upkeep is not late
_LOCK = 0x6E65787574  # the number of the advisory lock, "nexut" in ASCII; the lock of `schema.py` is "nexusm"


@dataclass(frozen=True, kw_only=True)
class Upkeep:
    """The work of one run of upkeep.

    ``reworded`` is the number of memories that were looked at after a change of their namespace's language.
    ``folded`` is the number of totals whose rows were merged into one row. ``counted`` is the number of namespaces
    whose common words were counted. ``indexed`` and ``dropped`` are the names of the vector indexes that were built and
    dropped. ``analyzed`` are the tables whose statistics were renewed.
    """

    reworded: int = 0
    folded: int = 0
    counted: int = 0
    indexed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    analyzed: tuple[str, ...] = ()


def run(database: Database) -> Upkeep:
    """Do the upkeep that is due. Do nothing when another process is doing the upkeep.

    Building a vector index takes about 1 min per 100,000 vectors.
    """
    with database.dedicated_connection() as connection:
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
            return Upkeep()
        try:
            reworded = _make_words_anew(database)
            folded = _fold(connection)
            grown = _grown(connection)
            for namespace_id, memories in grown:
                _count_words(database, namespace_id, memories)
            made, dropped = _index_vectors(connection)
            analyzed = statistics.analyze_grown(connection)
            return Upkeep(
                reworded=reworded,
                folded=folded,
                counted=len(grown),
                indexed=tuple(made),
                dropped=tuple(dropped),
                analyzed=tuple(analyzed),
            )
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})


@contextmanager
def without_vector_indexes(database: Database) -> Iterator[None]:
    """Run the block without the vector indexes, and build them again behind it, while others read and write.

    A statement that rewrites the table of vectors also builds the table's indexes. Meanwhile no other transaction can
    read or write the table: with 81,000 vectors for 14 s, and without the index for 2 s.

    While another process does the upkeep, the indexes stay. When one cannot be dropped or built,
    because transactions are open for too long, the next upkeep builds it.
    """
    with database.dedicated_connection() as connection:
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
            yield
            return
        # The lock ends with the connection, also with one that breaks meanwhile.
        connection.execute(text(f"SET lock_timeout = {int(1_000 * IN_USE_SECONDS)}"))
        with _logged():
            for name in _vector_indexes(connection):
                connection.execute(text(f"DROP INDEX CONCURRENTLY IF EXISTS {name}"))
        yield
        with _logged():
            _index_vectors(connection)


@contextmanager
def _logged() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        log.warning("The vector indexes wait for the next upkeep: %s", str(error.orig).partition("\n")[0])


def _make_words_anew(database: Database) -> int:
    """Make the words of memories anew whose namespace has changed its language. Returns the number of memories.

    Each batch is a transaction, which also notes how far it came. So a run that dies loses at most one batch, and
    writers wait for one batch at the most. Until the end, a search misses forms of words in the memories that are left.
    """
    end, done = time.monotonic() + MOST_SECONDS, 0
    with database.transaction() as tx:
        # Writers that took the language of before hold this lock until their memories can be seen here.
        waiting = tx.scalars(text("SELECT id FROM namespaces WHERE reworded_through IS NOT NULL FOR UPDATE")).all()
    for namespace_id in waiting:
        try:
            done += _reword(database, namespace_id, end)
        except InvalidInput as error:  # a text has too many words in the new language
            log.warning("Memories of the namespace %d keep their old words: %s", namespace_id, error.message)
    return done


def _reword(database: Database, namespace_id: int, end: float) -> int:
    done = 0
    while time.monotonic() < end:
        with database.transaction() as tx:
            batch = tx.execute(_MAKE_BATCH_ANEW, {"id": namespace_id, "most": AT_ONCE}).one()
            noted = tx.scalar(_NOTE_BATCH, {"id": namespace_id, "most": AT_ONCE, **batch._mapping})
            if batch.done < AT_ONCE:
                # Upkeep then counts the new words.
                tx.execute(text("DELETE FROM common_words WHERE namespace_id = :id"), {"id": namespace_id})
        done += batch.done
        if batch.done < AT_ONCE or not noted:
            break
    return done


# A row is locked before its words are made, so that they are those of its newest content.
_MAKE_BATCH_ANEW = text(
    """
    WITH namespace AS MATERIALIZED (
        SELECT language, reworded_through FROM namespaces WHERE id = :id
    ), locked AS MATERIALIZED (
        SELECT id, content FROM memories
        WHERE namespace_id = :id AND id > (SELECT reworded_through FROM namespace)
        ORDER BY id LIMIT :most FOR NO KEY UPDATE
    ), made AS MATERIALIZED (
        SELECT id, search_terms(content, ('pg_catalog.' || (SELECT language FROM namespace))::regconfig) AS words
        FROM locked
    ), changed AS (
        UPDATE memories SET tsv = words FROM made WHERE memories.id = made.id AND tsv IS DISTINCT FROM words
    )
    SELECT (SELECT language FROM namespace) AS language, (SELECT reworded_through FROM namespace) AS before,
           max(id) AS last, count(*) AS done
    FROM made
    """
)
# A language that was set meanwhile begins anew, in the next run.
_NOTE_BATCH = text(
    """
    UPDATE namespaces SET reworded_through = CASE WHEN :done = :most THEN CAST(:last AS bigint) END
    WHERE id = :id AND reworded_through = :before AND language IS NOT DISTINCT FROM :language RETURNING id
    """
)


def _fold(connection: Connection) -> int:
    """Replace the rows of each total by one row with their sum. Returns the number of new rows.

    One statement deletes the old rows and inserts the new row, so that a reader at any time sees the same total.
    """
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
    """Namespaces whose common words must be counted again, as (namespace id, number of memories).

    These namespaces have more than 5,000 memories, or had more at the last count. The number of their memories has
    changed by more than 10 % since the last count. They come in the order of their ids, because the first one of two
    namespaces with one key gets it (see :func:`_count_words`).
    """
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
            ORDER BY totals.namespace_id
            """
        ),
        {"most": MOST_COUNTED},
    )
    return [(namespace_id, memories) for namespace_id, memories in rows]


def _count_words(database: Database, namespace_id: int, memories: int) -> None:
    """Count the common words of a namespace anew.

    Two words may have one key, because the key is a hash: words of this namespace, or of this and of another. Whoever
    knows the hash can also make up such words. They must not end the upkeep of all namespaces. A word whose key another
    namespace has counts as in 5,001 memories.
    """
    with database.transaction() as tx:
        tx.execute(text("DELETE FROM common_words WHERE namespace_id = :id"), {"id": namespace_id})
        tx.execute(
            text(
                f"""
                INSERT INTO common_words (key, namespace_id, memories, total)
                SELECT hashtextextended(word, :id), :id, max(ndoc), :total
                FROM ts_stat('SELECT tsv FROM memories WHERE namespace_id = {int(namespace_id)}')
                WHERE ndoc > :most GROUP BY 1
                ON CONFLICT DO NOTHING
                """
            ),
            {"id": namespace_id, "total": memories, "most": MOST_COUNTED},
        )


def _index_vectors(connection: Connection) -> tuple[list[str], list[str]]:
    """Build missing vector indexes, and drop unneeded and unfinished vector indexes.

    Returns:
        The names of the built indexes, and the names of the dropped indexes.
    """
    there = _vector_indexes(connection)
    wanted = _large(connection, MOST_UNINDEXED)
    # An index is dropped only when the number of vectors falls to half of the number at which an index is built. Small
    # changes of the number therefore do not build and drop the index again and again.
    kept = _large(connection, MOST_UNINDEXED // 2)
    dropped = [name for name, valid in there.items() if name not in kept or not valid]
    for name in dropped:
        connection.execute(text(f"DROP INDEX CONCURRENTLY IF EXISTS {name}"))
    made = [name for name in wanted if not there.get(name)]
    if made:
        # Parallel workers need shared memory. Containers have little shared memory, so no parallel workers are used.
        connection.execute(text("SET max_parallel_maintenance_workers = 0"))
        connection.execute(text(f"SET maintenance_work_mem = '{BUILD_MEMORY}'"))
    return [name for name in made if _build(connection, name, wanted[name])], dropped


def _vector_indexes(connection: Connection) -> dict[str, bool]:
    """The vector indexes that there are: name → whether the index is finished."""
    rows = connection.execute(
        text(
            "SELECT c.relname, i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = 'embeddings'::regclass AND c.relname LIKE 'ix\\_vectors\\_%'"
        )
    )
    return {str(name): bool(valid) for name, valid in rows}


def _build(connection: Connection, name: str, definition: str) -> bool:
    """Build a vector index. Vectors of two lengths have no index, but the other namespaces still get theirs."""
    try:
        connection.execute(text(f"CREATE INDEX CONCURRENTLY {name} ON embeddings {definition}"))
    except DataError as error:
        log.warning("The vector index %s cannot be built: %s", name, str(error.orig).partition("\n")[0])
        return False
    return True


def _large(connection: Connection, most: int) -> dict[str, str]:
    """The vector index of each namespace and model with more than ``most`` vectors.

    Returns:
        Name of the index → the part of CREATE INDEX after "ON embeddings".
    """
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
        index_name(namespace_id, model): hnsw_definition(namespace_id, model, dimensions)
        for namespace_id, model, dimensions in rows
        if dimensions <= MOST_DIMENSIONS
    }
