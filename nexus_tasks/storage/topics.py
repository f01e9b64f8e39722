"""Topics: files of knowledge of a namespace, each with the messages it was written from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Topic, TopicSource


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A checked topic, ready to be stored. ``seen`` is the revision whose whole content it is meant to replace; 0: the
    content is to be added to whatever is there.
    """

    filename: str
    name: str
    description: str
    type: str
    content: str
    made_by: str
    seen: int = 0
    sources: tuple[int, ...] = ()


def every(tx: Transaction, namespace_id: int) -> Sequence[Topic]:
    """A namespace's topics, those that changed last first."""
    query = select(Topic).where(Topic.namespace_id == namespace_id)
    return tx.scalars(query.order_by(Topic.updated_at.desc(), Topic.id.desc())).all()


def find(tx: Transaction, namespace_id: int, filename: str, *, lock: bool = False) -> Topic | None:
    """The topic of that name, or ``None``."""
    query = select(Topic).where(Topic.namespace_id == namespace_id, Topic.filename == filename)
    return tx.scalar(query.execution_options(populate_existing=True).with_for_update() if lock else query)


def sources(tx: Transaction, topic_ids: Collection[int]) -> set[int]:
    """The messages that topics were written from."""
    return set(tx.scalars(select(TopicSource.memory_id).where(TopicSource.topic_id.in_(topic_ids)).distinct()))


def keep(tx: Transaction, namespace_id: int, drafts: Sequence[Draft]) -> int:
    """Store topics, new ones or new versions; returns how many changed.

    Content replaces what is there only when that is what its writer has seen. Otherwise those of its lines that are not
    there yet are added below it: nothing that another session has learned meanwhile is lost.
    """
    return sum(_keep(tx, namespace_id, draft) for draft in sorted(drafts, key=lambda draft: draft.filename))


def replace(tx: Transaction, namespace_id: int, drafts: Sequence[Draft]) -> int:
    """Store topics as they are given, whatever was there; returns how many changed."""
    there = {topic.filename: topic.revision for topic in every(tx, namespace_id)}
    return keep(tx, namespace_id, [dataclasses.replace(one, seen=there.get(one.filename, 0)) for one in drafts])


def _keep(tx: Transaction, namespace_id: int, draft: Draft) -> bool:
    fields = {"name": draft.name, "description": draft.description, "type": draft.type, "made_by": draft.made_by}
    made = tx.scalar(
        upsert(Topic)
        .values(namespace_id=namespace_id, filename=draft.filename, content=draft.content, **fields)
        .on_conflict_do_nothing()
        .returning(Topic.id)
    )
    if made is not None:
        _link(tx, namespace_id, made, draft.sources)
        return True
    there = find(tx, namespace_id, draft.filename, lock=True)
    assert there is not None
    content = draft.content if there.revision == draft.seen else merged(there.content, draft.content)
    changed: dict[str, Any] = fields | {"content": content}
    if all(getattr(there, name) == value for name, value in changed.items() if name != "made_by"):
        return False
    tx.execute(
        update(Topic)
        .where(Topic.id == there.id)
        .values(**changed, revision=Topic.revision + 1, updated_at=func.clock_timestamp())
        .execution_options(synchronize_session=False)
    )
    _link(tx, namespace_id, there.id, draft.sources)
    return True


def merged(there: str, new: str) -> str:
    """The content that is there, and below it the lines of ``new`` that are not in it."""
    known = {line.strip() for line in there.splitlines()}
    added = [line for line in new.splitlines() if not line.strip() or line.strip() not in known]
    return f"{there}\n{more}" if (more := "\n".join(added).strip("\n")) else there


def _link(tx: Transaction, namespace_id: int, topic_id: int, memory_ids: Sequence[int]) -> None:
    rows = [{"namespace_id": namespace_id, "topic_id": topic_id, "memory_id": one} for one in sorted(set(memory_ids))]
    insert_rows(tx, TopicSource, rows, on_conflict="DO NOTHING")


def summary(topic: Topic) -> dict[str, Any]:
    """A topic as the command line shows it, without its content."""
    return {
        "filename": topic.filename,
        "name": topic.name,
        "description": topic.description,
        "type": topic.type,
        "made_by": topic.made_by,
        "created_at": topic.created_at,
        "updated_at": topic.updated_at,
    }
