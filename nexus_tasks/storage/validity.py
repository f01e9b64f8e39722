"""Recompute whether facts and conclusions are valid, from what is recorded about them.

Reflections end facts. Undoing a reflection, or erasing a memory, takes a reason away for which a fact ended. Then the
validity of the fact, and of the conclusions that rest on it, is computed again from the reasons that are left. So it
does not depend on the order in which reflections, undos and erasures happened.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text

from nexus_tasks.storage.engine import Transaction

# A reason to end a fact is the record of a reflection that is not undone, when the fact that took its place still
# exists. Without a reason, a fact is valid, except when a later message has said it again while it had ended: then a
# newer fact has the same content, and one of the two is enough.
_SETTLE_FACTS = text(
    """
    UPDATE memories AS m SET valid_to = now_is.ended_at, superseded_by = now_is.superseded_by
    FROM (
        SELECT f.id, CASE WHEN reason.superseded_by IS NOT NULL THEN reason.ended_at
                          WHEN since.id IS NOT NULL THEN greatest(since.valid_from, f.valid_from) END AS ended_at,
               coalesce(reason.superseded_by, since.id) AS superseded_by
        FROM memories AS f
        LEFT JOIN LATERAL (
            SELECT c.superseded_by, c.ended_at FROM reflection_changes AS c
            JOIN reflections AS r ON r.id = c.reflection_id AND r.undone_at IS NULL
            WHERE c.memory_id = f.id AND c.superseded AND c.superseded_by IS NOT NULL
            ORDER BY c.reflection_id LIMIT 1
        ) AS reason ON true
        LEFT JOIN LATERAL (
            SELECT newer.id, newer.valid_from FROM memories AS newer
            WHERE newer.namespace_id = f.namespace_id AND newer.perspective_id = f.perspective_id
              AND newer.content_key = f.content_key AND newer.level = 'explicit' AND newer.id > f.id
            ORDER BY newer.id DESC LIMIT 1
        ) AS since ON true
        WHERE f.id = ANY(CAST(:ids AS bigint[])) AND f.level = 'explicit'
    ) AS now_is
    WHERE m.id = now_is.id AND (m.valid_to, m.superseded_by) IS DISTINCT FROM (now_is.ended_at, now_is.superseded_by)
    RETURNING m.id, m.valid_to IS NULL
    """
)
# A reworded reinforcement (older releases made such memories) ends with the first of its two facts. A contradiction
# ends when both its facts have ended. An insight ends when fewer than three of its facts are valid. A fact that was
# merged into another fact has not ended for this purpose: the other fact stands for it. A conclusion that was corrected
# has ended, whatever its facts do, while the correction is not undone and its fact exists.
# ``OFFSET 0`` makes Postgres look up each row by an index: it would read whole tables for a few facts.
_SETTLE_CONCLUSIONS = text(
    """
    WITH RECURSIVE merged AS (
        SELECT unnest(CAST(:ids AS bigint[])) AS id
        UNION
        SELECT e.memory_id FROM merged CROSS JOIN LATERAL (
            SELECT memory_id FROM evidence WHERE source_id = merged.id AND role = 'duplicate_of' OFFSET 0
        ) AS e
    ), resting AS (
        SELECT id FROM merged
        UNION
        SELECT e.memory_id FROM merged CROSS JOIN LATERAL (
            SELECT memory_id FROM evidence
            WHERE source_id = merged.id AND role IN ('reinforces', 'contradicts', 'insight_support') OFFSET 0
        ) AS e
    ), rests AS (
        SELECT c.id, c.valid_from, e.role, stands.valid_to, stands.superseded_by,
               count(*) OVER (PARTITION BY c.id) AS sources,
               row_number() OVER (PARTITION BY c.id ORDER BY stands.valid_to NULLS LAST, e.source_id) AS place
        FROM resting
        CROSS JOIN LATERAL (SELECT id, level, valid_from FROM memories WHERE id = resting.id OFFSET 0) AS c
        CROSS JOIN LATERAL (
            SELECT source_id, role FROM evidence
            WHERE memory_id = c.id AND role IN ('reinforces', 'contradicts', 'insight_support') OFFSET 0
        ) AS e
        CROSS JOIN LATERAL (
            WITH RECURSIVE chain AS (
                SELECT m.id, m.valid_to, m.superseded_by FROM memories AS m WHERE m.id = e.source_id
                UNION
                SELECT kept.id, kept.valid_to, kept.superseded_by FROM chain
                JOIN evidence AS d ON d.memory_id = chain.id AND d.role = 'duplicate_of'
                    AND d.source_id = chain.superseded_by
                JOIN memories AS kept ON kept.id = d.source_id
            )
            SELECT chain.valid_to, chain.superseded_by FROM chain
            WHERE NOT EXISTS (
                SELECT FROM evidence AS d WHERE d.memory_id = chain.id AND d.role = 'duplicate_of'
                    AND d.source_id = chain.superseded_by
            )
        ) AS stands
        WHERE c.level IN ('derived', 'contradiction')
    )
    UPDATE memories AS c SET valid_to = now_is.valid_to, superseded_by = now_is.superseded_by
    FROM (
        SELECT rests.id, coalesce(corrected.superseded_by, rests.superseded_by) AS superseded_by,
               CASE WHEN corrected.superseded_by IS NOT NULL THEN corrected.ended_at
                    WHEN rests.valid_to IS NOT NULL THEN greatest(rests.valid_to, rests.valid_from) END AS valid_to
        FROM rests
        LEFT JOIN LATERAL (
            SELECT ch.superseded_by, ch.ended_at FROM reflection_changes AS ch
            JOIN reflections AS r ON r.id = ch.reflection_id AND r.undone_at IS NULL AND r.job_id LIKE 'correction:%'
            WHERE ch.memory_id = rests.id AND ch.superseded AND ch.superseded_by IS NOT NULL
            ORDER BY ch.reflection_id LIMIT 1
        ) AS corrected ON true
        WHERE place = CASE role WHEN 'contradicts' THEN sources WHEN 'insight_support' THEN greatest(sources - 2, 1)
                                ELSE 1 END
    ) AS now_is
    WHERE c.id = now_is.id AND (c.valid_to, c.superseded_by) IS DISTINCT FROM (now_is.valid_to, now_is.superseded_by)
    RETURNING c.id, c.valid_to IS NULL
    """
)


def settle_facts(tx: Transaction, ids: Collection[int]) -> list[int]:
    """Compute the validity of facts again, and of the conclusions that rest on them.

    Memories of ``ids`` that are no facts are settled as conclusions.

    Returns:
        The ids of the memories that are valid again.
    """
    if not ids:
        return []
    settled = tx.execute(_SETTLE_FACTS, {"ids": sorted(ids)}).all()
    return [i for i, valid in settled if valid] + settle_conclusions(tx, ids)


def settle_conclusions(tx: Transaction, ids: Collection[int]) -> list[int]:
    """Compute the validity of conclusions again: of those that rest on the facts ``ids``, and of those in ``ids``.

    Returns:
        The ids of the conclusions that are valid again.
    """
    if not ids:
        return []
    return [i for i, valid in tx.execute(_SETTLE_CONCLUSIONS, {"ids": sorted(ids)}) if valid]
