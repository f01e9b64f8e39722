"""Storing evidence edges. An edge leads from a memory to a source memory, and its role names their relation."""

from __future__ import annotations

from collections.abc import Sequence

from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Evidence


def link(
    tx: Transaction,
    namespace_id: int,
    memory_id: int,
    sources: Sequence[int],
    role: str,
    *,
    reflection_id: int | None = None,
) -> list[int]:
    """Add edges from one memory to its sources.

    Returns:
        The sources to which the memory had no edge with this role before.
    """
    edges = [(memory_id, source) for source in sources]
    return [source for _, source in link_all(tx, namespace_id, edges, role, reflection_id=reflection_id)]


def link_all(
    tx: Transaction,
    namespace_id: int,
    edges: Sequence[tuple[int, int]],
    role: str,
    *,
    reflection_id: int | None = None,
) -> list[tuple[int, int]]:
    """Add edges, each given as (memory id, source id). Returns the edges that did not exist before.

    Args:
        role: ``derived_from``, ``reinforces``, ``contradicts``, ``insight_support``, ``digested_from``, ``supersedes``
            or ``duplicate_of``.
        reflection_id: the reflection that adds the edges. An undo of this reflection deletes the edges.
    """
    if not edges:
        return []
    made_by = {} if reflection_id is None else {"reflection_id": reflection_id}
    rows = [
        {"namespace_id": namespace_id, "memory_id": memory_id, "source_id": source, "role": role, **made_by}
        for memory_id, source in sorted(set(edges))
    ]
    added = insert_rows(tx, Evidence, rows, returning="memory_id, source_id", on_conflict="DO NOTHING")
    return [(memory_id, source_id) for memory_id, source_id in added]
