"""Topics that rest on what is erased: they go, and are written anew from the messages that are left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from sqlalchemy import delete, func, select

from nexus_tasks.storage import extractions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, Topic, TopicSource
from nexus_tasks.text import content_words


def remove(tx: Transaction, namespace_id: int, erased: Collection[Memory], again: Collection[int]) -> int:
    """Delete the topics that may hold words of ``erased`` memories, to be called while these are there yet.

    That is every topic written from one of them; and of those written since, whose writer was shown these, each that
    says a word of theirs which none of its own messages says. One that was imported, without messages, is its
    importer's. The sessions of the messages that are left are extracted anew, and so are those of ``again``, the
    messages that have lost a fact. Returns how many topics went.
    """
    ids = {memory.id for memory in erased}
    spoken = _words(memory for memory in erased if memory.level == "raw")
    _put_back(tx, "facts", again, ids)
    resting = _resting(tx, namespace_id)
    falling = {topic_id for topic_id, messages in resting.items() if not ids.isdisjoint(messages)}
    began = select(func.min(Topic.created_at)).where(Topic.id.in_(falling)).scalar_subquery()
    since = select(Topic).where(Topic.id.in_(resting.keys() - falling), Topic.updated_at >= began)
    falling |= {
        topic.id
        for topic in tx.scalars(since)
        if (alien := set(content_words(_said(topic))) & spoken)
        and alien - _words(tx.scalars(select(Memory).where(Memory.id.in_(resting[topic.id]))))
    }
    if falling:
        _put_back(tx, "topics", {one for topic_id in falling for one in resting[topic_id]}, ids)
        tx.execute(delete(Topic).where(Topic.id.in_(falling)).execution_options(synchronize_session=False))
    return len(falling)


def _resting(tx: Transaction, namespace_id: int) -> dict[int, set[int]]:
    """The messages that each topic of a namespace was written from."""
    found: dict[int, set[int]] = defaultdict(set)
    query = select(TopicSource.topic_id, TopicSource.memory_id).where(TopicSource.namespace_id == namespace_id)
    for topic_id, memory_id in tx.execute(query):
        found[topic_id].add(memory_id)
    return found


def _said(topic: Topic) -> str:
    return f"{topic.filename.replace('-', ' ').replace('_', ' ')} {topic.name} {topic.description} {topic.content}"


def _words(memories: Iterable[Memory]) -> set[str]:
    return {word for memory in memories for word in content_words(f"{memory.author or ''} {memory.content}")}


def _put_back(
    tx: Transaction, extractor: extractions.Extractor, left: Collection[int], erased: Collection[int]
) -> None:
    query = (
        select(Memory.session_id, func.min(Memory.seq))
        .where(Memory.id.in_(set(left) - set(erased)), Memory.level == "raw")
        .group_by(Memory.session_id)
    )
    extractions.put_back(
        tx, extractor, {session_id: seq for session_id, seq in tx.execute(query) if session_id and seq}
    )
