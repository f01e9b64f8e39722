"""Reading the memories that a context (a block of memories for a prompt) shows.

The statements read only the columns that a context needs, and no text that is much too long for the context: 300
messages of 300 KB would take 100 MB of this process's memory. Postgres knows the size of a large text without reading
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import TextClause, text

from nexus_tasks import limits
from nexus_tasks.event_time import Span, describe, local
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching.scope import Filter, build_scope


class ContextRow(NamedTuple):
    """A memory in a context.

    ``subject`` is the subject of a fact, or the author of a message. ``later`` is a remark behind the content, for
    example that a later message says otherwise. ``unread`` memories are too long for the context; their ``content`` is
    empty.
    """

    id: int
    external_id: str | None
    level: str
    content: str
    subject: str | None
    occurred_at: datetime
    confidence: float
    times_reinforced: int
    seq: int | None
    event_from: datetime | None
    event_to: datetime | None
    time_zone: str | None
    role: str | None  # the role of a message; ``None`` for other memories
    category: str | None
    pinned: bool
    unread: bool = False
    later: str = ""
    score: float = 0.0  # of the search that found the memory

    @property
    def event(self) -> str | None:
        """The time of which a fact speaks, such as ``2026-05-03``, unless the fact's own words say it."""
        if self.event_from is None or self.event_to is None or self.level.startswith("summary"):
            return None
        found = describe(Span(local(self.event_from, self.time_zone), local(self.event_to, self.time_zone)))
        return None if found in self.content else found


_COLUMNS = (
    "m.id, m.external_id, m.level, m.content, m.author, m.occurred_at, m.confidence, m.times_reinforced, m.seq,"
    " m.event_from, m.event_to, m.time_zone, m.role, m.category, m.pinned_at IS NOT NULL AS pinned"
)
# A context of `n` tokens shows 4n characters, which have at most 16n bytes. A text may have twice as many, because line
# breaks, indentation and echoes are not shown.
BYTES_PER_TOKEN = 32
# A digest may be cut, so its beginning is read. Texts behind the first 16 MB of a statement's texts are not read.
_READ = """
    SELECT id, external_id, level,
           CASE WHEN is_read THEN content WHEN is_cut THEN left(content, :longest) ELSE '' END AS content,
           author, occurred_at, confidence, times_reinforced, seq, event_from, event_to, time_zone, role, category,
           pinned, NOT (is_read OR is_cut) AS unread
    FROM (
        SELECT found.*, level LIKE 'summary%' AS is_cut, bytes <= :longest AND
               sum(CASE WHEN bytes <= :longest THEN bytes ELSE 0 END) OVER (ROWS UNBOUNDED PRECEDING) <= :together
               AS is_read
        FROM (
            SELECT page.*, octet_length(content) AS bytes, row_number() OVER () AS place FROM ({sql}) AS page
        ) AS found
    ) AS sized
    ORDER BY place
"""


def _reading(sql: str) -> TextClause:
    """The statement that reads the texts of the rows of ``sql``. It needs the parameters of :func:`_bounds` too."""
    return text(_READ.format(sql=sql))


def _bounds(longest: int) -> dict[str, int]:
    return {"longest": longest, "together": limits.ANSWER_BYTES}  # bytes


def longest_text(max_tokens: int) -> int:
    """The bytes of the longest text that is read for a context of ``max_tokens`` tokens."""
    return BYTES_PER_TOKEN * max_tokens


def newest(
    tx: Transaction, wanted: Filter, levels: Sequence[tuple[str, float]], limit: int, *, longest: int
) -> dict[str, list[ContextRow]]:
    """The newest memories of each level that pass the filter: level → memories, newest first.

    Args:
        levels: pairs of a level and the lowest confidence. Memories with a lower one are left out, unless pinned.
        limit: the largest number of memories of each level.
        longest: the most bytes of a text that is read (:func:`longest_text`). Longer ones are ``unread``.
    """
    within = build_scope(wanted)
    rows = tx.execute(
        _newest(within.both, limit),
        {
            **within.values,
            "levels": [level for level, _ in levels],
            "least": [least for _, least in levels],
            **_bounds(longest),
        },
    )
    found: dict[str, list[ContextRow]] = {level: [] for level, _ in levels}
    for row in rows:
        line = ContextRow(*row)
        found[line.level].append(line)
    return found


@lru_cache(maxsize=256)
def _newest(within: str, limit: int) -> TextClause:
    return _reading(
        f"""
        SELECT one.*
        FROM unnest(CAST(:levels AS text[]), CAST(:least AS float8[])) AS asked (level, least)
        CROSS JOIN LATERAL (
            SELECT {_COLUMNS} FROM memories AS m
            WHERE {within} AND m.level = asked.level AND (m.confidence >= asked.least OR m.pinned_at IS NOT NULL)
            ORDER BY m.occurred_at DESC, m.id DESC LIMIT {limit}
        ) AS one
        ORDER BY one.occurred_at DESC, one.id DESC
        """
    )


_SPEAKER = text(
    """
    SELECT said.author FROM (
        SELECT author, role, id FROM memories WHERE namespace_id = :namespace_id AND level = 'raw'
        ORDER BY created_at DESC LIMIT 500
    ) AS said
    WHERE said.role = 'user' GROUP BY said.author ORDER BY count(*) DESC, said.author LIMIT 1
    """
)


def main_speaker(tx: Transaction, namespace_id: int) -> str | None:
    """The author with the most messages of role ``user`` among the last 500 messages; ``None`` when there is none."""
    speaker: str | None = tx.scalar(_SPEAKER, {"namespace_id": namespace_id})
    return speaker


def strongest(
    tx: Transaction, wanted: Filter, categories: Sequence[str], least: float, limit: int, *, longest: int
) -> list[ContextRow]:
    """The memories about the filter's subject: pinned ones, then the most often confirmed, the surest and the oldest.

    Args:
        categories: only facts of these categories. Pinned facts, and conclusions of reflections, always pass.
        least: the lowest confidence. Memories with a lower one are left out, unless pinned.
        longest: the most bytes of a text that is read (:func:`longest_text`). Longer ones are ``unread``.
    """
    within = build_scope(wanted)
    values = {**within.values, "categories": list(categories), "least": least, **_bounds(longest)}
    return [ContextRow(*row) for row in tx.execute(_strongest(within.both, limit), values)]


@lru_cache(maxsize=256)
def _strongest(within: str, limit: int) -> TextClause:
    return _reading(
        f"""
        SELECT {_COLUMNS} FROM memories AS m
        WHERE {within} AND (m.confidence >= :least OR m.pinned_at IS NOT NULL)
          AND m.perspective_id IN (
              SELECT id FROM perspectives WHERE namespace_id = :namespace_id AND subject = :subject
          )
          AND (m.pinned_at IS NOT NULL OR m.category IS NULL OR m.category = ANY (CAST(:categories AS text[])))
        ORDER BY m.pinned_at IS NULL, m.times_reinforced DESC, m.confidence DESC, m.id LIMIT {limit}
        """
    )


_BY_ID = _reading(
    f"""
    SELECT {_COLUMNS} FROM memories AS m
    WHERE m.namespace_id = :namespace_id AND m.id = ANY (CAST(:ids AS bigint[]))
    ORDER BY array_position(CAST(:ids AS bigint[]), m.id)
    """
)


def by_id(tx: Transaction, namespace_id: int, ids: Sequence[int], *, longest: int) -> dict[int, ContextRow]:
    """Read the memories with these ids, the most important first: id → memory.

    Args:
        longest: the most bytes of a text that is read (:func:`longest_text`). Longer ones are ``unread``.
    """
    values = {"namespace_id": namespace_id, "ids": list(ids), **_bounds(longest)}
    rows = tx.execute(_BY_ID, values) if ids else ()
    return {row[0]: ContextRow(*row) for row in rows}


_SOURCES = text(
    """
    SELECT memory_id, array_agg(source_id ORDER BY source_id) FROM evidence
    WHERE namespace_id = :namespace_id AND memory_id = ANY (CAST(:ids AS bigint[])) AND role = 'derived_from'
    GROUP BY memory_id
    """
)


def sources(tx: Transaction, namespace_id: int, fact_ids: Sequence[int]) -> dict[int, list[int]]:
    """The messages that each fact rests on: id of the fact → ids of the messages."""
    rows = tx.execute(_SOURCES, {"namespace_id": namespace_id, "ids": list(fact_ids)}) if fact_ids else ()
    return {fact: list(found) for fact, found in rows}


# The facts that replaced the facts of a message, through to the fact that holds now. A merged fact leads to the fact
# that stands for it. When the message says what holds
# now, because its fact was said again later, there is nothing to remark.
_REPLACED = text(
    """
    WITH RECURSIVE replaced AS (
        SELECT said.source_id AS message_id, fact.content_key, heir.memory_id AS heir
        FROM evidence AS said
        JOIN memories AS fact ON fact.id = said.memory_id AND fact.level = 'explicit' AND fact.valid_to IS NOT NULL
        JOIN perspectives AS holder ON holder.id = fact.perspective_id
             AND (CAST(:observer AS text) IS NULL OR holder.observer = :observer)
        JOIN evidence AS heir ON heir.source_id = fact.id AND heir.role = 'supersedes'
        WHERE said.source_id = ANY (CAST(:ids AS bigint[])) AND said.role = 'derived_from'
          AND said.namespace_id = :namespace_id
        UNION
        SELECT replaced.message_id, replaced.content_key, next.id
        FROM replaced
        JOIN memories AS fact ON fact.id = replaced.heir AND fact.valid_to IS NOT NULL
        CROSS JOIN LATERAL (
            SELECT memory_id AS id FROM evidence WHERE source_id = fact.id AND role = 'supersedes'
            UNION ALL
            SELECT source_id FROM evidence WHERE memory_id = fact.id AND role = 'duplicate_of'
        ) AS next
    )
    SELECT DISTINCT ON (replaced.message_id) replaced.message_id, m.id
    FROM replaced JOIN memories AS m ON m.id = replaced.heir
    WHERE m.namespace_id = :namespace_id AND m.valid_to IS NULL AND m.content_key IS DISTINCT FROM replaced.content_key
      AND (m.expires_at IS NULL OR m.expires_at > now())
      AND (CAST(:min_standing AS smallint) IS NULL OR m.standing >= :min_standing)
    ORDER BY replaced.message_id, m.occurred_at DESC, m.id DESC
    """
)


def replaced_by(tx: Transaction, wanted: Filter, message_ids: Sequence[int]) -> dict[int, int]:
    """The messages of which a fact no longer holds: id of the message → id of the newest fact that holds instead.

    Args:
        wanted: only facts of its observer, and only facts that hold with its lowest standing.
    """
    values = {
        "namespace_id": wanted.namespace_id,
        "ids": list(message_ids),
        "observer": wanted.observer,
        "min_standing": wanted.min_standing,
    }
    return dict(tx.execute(_REPLACED, values).all()) if message_ids else {}


_BEGINNINGS = _COLUMNS.replace("m.content", "left(m.content, :characters)")


@lru_cache(maxsize=256)
def _around(within: str) -> TextClause:
    return text(
        f"""
        WITH center AS (
            SELECT session_id, seq FROM memories
            WHERE namespace_id = :namespace_id AND level = 'raw' AND id = coalesce(
                (SELECT min(source_id) FROM evidence WHERE memory_id = :id AND role = 'derived_from'), :id
            )
        )
        SELECT {_BEGINNINGS} FROM center
        JOIN memories AS m ON m.session_id = center.session_id
                          AND m.seq BETWEEN center.seq - :turns AND center.seq + :turns
        WHERE {within} ORDER BY m.seq
        """
    )


def around(tx: Transaction, wanted: Filter, memory_id: int, turns: int, *, characters: int) -> list[ContextRow]:
    """The turns of a conversation around a message, or around the first message that a fact rests on.

    Of each text the first ``characters`` characters are read.
    """
    within = build_scope(replace(wanted, levels=("raw",)))
    values = {**within.values, "id": memory_id, "turns": turns, "characters": characters}
    rows = tx.execute(_around(within.both), values)
    return [ContextRow(*row) for row in rows]


def between(
    tx: Transaction, wanted: Filter, since: datetime, until: datetime, limit: int, *, characters: int
) -> list[ContextRow]:
    """The messages of a span of time, oldest first, at most ``limit``: of each the first ``characters`` characters."""
    within = build_scope(replace(wanted, levels=("raw",), since=since, until=until))
    rows = tx.execute(_between(within.both, limit), {**within.values, "characters": characters})
    return [ContextRow(*row) for row in rows]


@lru_cache(maxsize=256)
def _between(within: str, limit: int) -> TextClause:
    return text(f"SELECT {_BEGINNINGS} FROM memories AS m WHERE {within} ORDER BY m.occurred_at, m.id LIMIT {limit}")


_SAID_LAST = text(
    f"""
    SELECT {_BEGINNINGS} FROM (
        SELECT * FROM memories
        WHERE namespace_id = (SELECT namespace_id FROM sessions WHERE id = :session_id)
          AND session_id = :session_id AND level = 'raw' AND seq > :after
          AND (expires_at IS NULL OR expires_at > now())
        ORDER BY seq DESC LIMIT :limit
    ) AS m
    WHERE m.role = 'user' OR m.role = 'assistant' AND coalesce(jsonb_array_length(m.tool_calls), 0) = 0
    ORDER BY m.seq
    """
)


def said_last(tx: Transaction, session_id: int, after: int, limit: int, *, characters: int) -> list[ContextRow]:
    """What the user said and the agent answered in a session, in order: of each the first ``characters`` characters.

    Args:
        after: the number (``seq``) of the message after which the messages stand.
        limit: of the messages after it, only the last ``limit`` are looked at. Those with tool calls are left out.
    """
    values = {"session_id": session_id, "after": after, "limit": limit, "characters": characters}
    return [ContextRow(*row) for row in tx.execute(_SAID_LAST, values)]


_OF_SESSION = _reading(
    f"""
    WITH session AS (SELECT id FROM sessions WHERE namespace_id = :namespace_id AND session_key = :session_key)
    SELECT {_COLUMNS}
    FROM session_digests AS digest JOIN memories AS m ON m.id = digest.memory_id
    WHERE digest.session_id = (SELECT id FROM session) AND m.valid_to IS NULL AND NOT :heard_only
      AND (CAST(:min_standing AS smallint) IS NULL OR m.standing >= :min_standing)
    UNION ALL (
        SELECT {_COLUMNS} FROM memories AS m
        WHERE m.namespace_id = :namespace_id AND m.session_id = (SELECT id FROM session) AND m.level = 'raw'
          AND (CAST(:min_standing AS smallint) IS NULL OR m.standing >= :min_standing)
          AND (m.expires_at IS NULL OR m.expires_at > now())
          AND EXISTS (
              SELECT FROM derivations AS d WHERE d.memory_id = m.id AND d.state = 'wanted'
              AND (CAST(:observer AS text) IS NULL OR d.observer = :observer)
          )
        ORDER BY m.seq DESC LIMIT :limit
    )
    """
)


def of_session(
    tx: Transaction, wanted: Filter, session_key: str, limit: int, *, longest: int
) -> tuple[dict[str, ContextRow], list[ContextRow]]:
    """A session's digests, and the session's newest messages that are not derived yet.

    A message is not derived yet when its derivation for the filter's observer is wanted. If the filter has no observer,
    a wanted derivation for any observer counts.

    Args:
        longest: the most bytes of a text that is read (:func:`longest_text`). Longer ones are ``unread``.

    Returns:
        The digests (level → digest), and at most ``limit`` messages, newest first. With the filter's ``heard_only``
        there are no digests.
    """
    rows = tx.execute(
        _OF_SESSION,
        {
            "namespace_id": wanted.namespace_id,
            "observer": wanted.observer,
            "session_key": session_key,
            "min_standing": wanted.min_standing,
            "heard_only": wanted.heard_only,
            "limit": limit,
            **_bounds(longest),
        },
    )
    lines = [ContextRow(*row) for row in rows]
    said = sorted((line for line in lines if line.level == "raw"), key=lambda line: -(line.seq or 0))
    return {line.level: line for line in lines if line.level != "raw"}, said
