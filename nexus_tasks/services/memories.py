"""List and show memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime

from nexus_tasks import limits
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NotFound
from nexus_tasks.storage import memories, namespaces, perspectives
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.types import (
    LEVELS,
    MemoryDetails,
    MemoryInfo,
    PerspectiveInfo,
    as_stored,
    check_namespace,
    to_utc,
)


def list_memories(
    deployment: Deployment,
    namespace: str,
    *,
    observer: str | None,
    subject: str | None,
    session_key: str | None,
    session_prefix: str | None,
    levels: Sequence[str] | None,
    as_of: datetime | None,
    superseded: bool,
    limit: int,
    offset: int,
) -> list[MemoryInfo]:
    """See :meth:`nexus_tasks.client.Nexus.memories`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        wanted = replace(
            memory_filter(known.id, observer, subject, levels, as_of),
            session_key=session_key and as_stored(session_key),
            session_prefix=session_prefix and as_stored(session_prefix),
            superseded=superseded,
        )
        return memories.matching(tx, wanted, limit, offset)


def list_perspectives(deployment: Deployment, namespace: str, *, limit: int, offset: int) -> list[PerspectiveInfo]:
    """See :meth:`nexus_tasks.client.Nexus.perspectives`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        return perspectives.listed(tx, known.id, limit=limit, offset=offset)


def show_memory(deployment: Deployment, namespace: str, memory_id: int) -> MemoryDetails:
    """See :meth:`nexus_tasks.client.Nexus.memory`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        found = memories.find(tx, known.id, memory_id)
        if found is None:
            raise NotFound(f"There is no memory {memory_id} in {namespace}.")
        most = limits.MEMORY_EVIDENCE
        evidence, edges = memories.evidence_of(tx, memory_id, most)
        return MemoryDetails(
            **{field.name: getattr(found, field.name) for field in fields(found)},
            evidence=evidence,
            supports=tuple(memories.resting_on(tx, memory_id, most)),
            superseded=tuple(memories.ids_superseded_by(tx, memory_id, most)),
            more_evidence=edges - len(evidence),
        )


def memory_filter(
    namespace_id: int,
    observer: str | None,
    subject: str | None,
    levels: Sequence[str] | None,
    as_of: datetime | None,
) -> Filter:
    """Make the filter (``storage/searching/scope.py``) from a caller's arguments.

    Raises:
        InvalidInput: ``levels`` contains an unknown level.
    """
    if unknown := set(levels or ()) - set(LEVELS):
        raise InvalidInput(f"levels: {', '.join(sorted(unknown))} is none of {', '.join(LEVELS)}.")
    return Filter(
        namespace_id=namespace_id,
        observer=observer and as_stored(observer),
        subject=subject and as_stored(subject),
        levels=tuple(levels) if levels else None,
        as_of=to_utc(as_of) if as_of else None,
    )
