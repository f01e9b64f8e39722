"""Erasing the topics that may contain words of erased messages.

A topic is a file of knowledge that extraction writes from messages. After the erasure, extraction writes topics again
from the remaining messages. It cannot write the lines again that a person has written or imported, so these stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from sqlalchemy import delete, func, select, update

from nexus_tasks.storage import extractions, topics
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.dead_letters import ERASED_ERROR
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.erasure.context import awake
from nexus_tasks.storage.many import among, parts
from nexus_tasks.storage.models import DeadLetter, Memory, SavedAnswer, Topic, TopicSource
from nexus_tasks.storage.shown import SHOWN
from nexus_tasks.text import word_forms

_IDS_AT_ONCE = 200  # of a statement
_WRITTEN = ("namespace_id", "filename", "name", "description", "type", "content", "own", "made_by", "revision")


def remove(tx: Transaction, namespace_id: int, erased: Collection[Memory], rederive: Collection[int]) -> int:
    """Delete the topics that may contain words of ``erased`` memories. Returns the number of deleted topics.

    Call this function before the memories are deleted. A topic that was written from an erased message is deleted. When
    the model writes a topic, its prompt contains other topics, so a topic may repeat words of an older topic. Therefore
    another topic is also deleted when it meets these three conditions:

    - The topic changed after the oldest deleted topic was created.
    - The topic contains a word of an erased message.
    - None of the messages that the topic was written from contains this word.

    A topic without source messages (an imported topic) stays. Of a deleted topic, the lines stay that no extraction
    wrote, apart from those with a word of an erased message that no other message of the topic has. They are a new
    topic of the same name, so that a run which was shown the deleted one notices. A name with such a word is replaced.

    In each session, the extractor of topics then reads again from the first remaining source message of a deleted
    topic. The extractor of facts reads again from the session's first message in ``rederive``.

    Args:
        erased: the memories that the erasure deletes.
        rederive: ids of messages that stay, although a fact that was derived from them is deleted.
    """
    ids = {memory.id for memory in erased}
    _rewind(tx, "facts", rederive, ids)
    sources = _messages_of_topics(tx, namespace_id)
    erased_topics = {topic_id for topic_id, messages in sources.items() if not ids.isdisjoint(messages)}
    if not erased_topics:  # no topic changed after one of them was created
        return 0
    spoken = _words(tx, [memory.id for memory in erased if memory.level == "raw"])
    began = select(func.min(Topic.created_at)).where(among(Topic.id, erased_topics)).scalar_subquery()
    since = select(Topic).where(among(Topic.id, sources.keys() - erased_topics), Topic.updated_at >= began)
    erased_topics |= {
        topic.id
        for topic in awake(tx, tx.scalars(since))
        if (shared := word_forms(_text(topic)) & spoken) and shared - _words(tx, sources[topic.id])
    }
    _rewind(tx, "topics", {one for topic_id in erased_topics for one in sources[topic_id]}, ids)
    with_own = tx.scalars(select(Topic).where(among(Topic.id, erased_topics), Topic.own != "").order_by(Topic.id))
    kept = []
    for topic in awake(tx, with_own):
        left = _words(tx, sources[topic.id] - ids)
        kept.append(_own_lines(topic, spoken - left, left))
    tx.execute(delete(Topic).where(among(Topic.id, erased_topics)).execution_options(synchronize_session=False))
    insert_rows(tx, Topic, [row for row in kept if row], on_conflict="DO NOTHING")
    return len(erased_topics)


def _own_lines(topic: Topic, gone: Collection[str], left: Collection[str]) -> dict[str, Any]:
    """The row of a topic with the lines of ``topic`` that no extraction wrote. Empty when none is left.

    The file name, name and description of an extraction stay only when they tell nothing else than the lines and the
    messages that are left.

    Args:
        gone: the words that only erased messages have.
        left: the words of the topic's other messages.
    """
    own = set(map(str.strip, topic.own.splitlines()))
    lines = [line for line in topic.content.splitlines() if line.strip() in own]
    lines = [line for line in lines if word_forms(line).isdisjoint(gone)]
    if not lines:
        return {}
    content, other = "\n".join(lines), f"topic-{topic.id}"
    told = word_forms(content).union(left)

    def stays(texts: Collection[str]) -> bool:
        words = word_forms(_spaced(min(texts, key=len)))  # without the number of a part
        return words.isdisjoint(gone) and (not own.isdisjoint(texts) or words <= told)

    filenames, names = topics.names_of(topic.filename, topic.name)
    kept = Topic(
        namespace_id=topic.namespace_id,
        filename=topic.filename if stays(filenames) else f"{other}.md",
        name=topic.name if stays(names) else other,
        description=topic.description if stays({topic.description}) else other,
        type=topic.type,
        content=content,
        made_by="user",
        revision=topic.revision + 1,
    )
    kept.own = topics.lines_among(topics.lines_of(kept), "\n".join((topic.own, other, f"{other}.md")))
    return {name: getattr(kept, name) for name in _WRITTEN}


def remove_one(tx: Transaction, topic: Topic, extractor: str) -> None:
    """Delete a topic, and what may quote it: the namespace's saved answers, and errors in dead letters.

    Args:
        extractor: the job kind that reads topics. Its dead letters lose the text of their error.
    """
    tx.execute(delete(SavedAnswer).where(SavedAnswer.namespace_id == topic.namespace_id))
    read = (DeadLetter.namespace_id == topic.namespace_id, DeadLetter.kind == extractor)
    tx.execute(
        update(DeadLetter)
        .where(*read)
        .values(message=ERASED_ERROR, traceback="")
        .execution_options(synchronize_session=False)
    )
    tx.delete(topic)


def _messages_of_topics(tx: Transaction, namespace_id: int) -> dict[int, set[int]]:
    """The source messages of each topic of a namespace: topic id → ids of the messages."""
    found: dict[int, set[int]] = defaultdict(set)
    query = select(TopicSource.topic_id, TopicSource.memory_id).where(TopicSource.namespace_id == namespace_id)
    for topic_id, memory_id in tx.execute(query):
        found[topic_id].add(memory_id)
    return found


def _text(topic: Topic) -> str:
    return f"{_spaced(topic.filename)} {topic.name} {topic.description} {topic.content}"


def _spaced(filename: str) -> str:
    return filename.removesuffix(".md").replace("-", " ").replace("_", " ")


def _words(tx: Transaction, memory_ids: Collection[int]) -> set[str]:
    """The words of memories that a prompt shows. Few texts are in memory at a time: a session may have gigabytes."""
    query, found = select(Memory.author, SHOWN).execution_options(yield_per=1), set[str]()
    for part in parts(memory_ids, _IDS_AT_ONCE):
        with tx.execute(query.where(among(Memory.id, part))) as rows:
            for author, content in awake(tx, rows):
                found.update(word_forms(f"{author or ''} {content}"))
    return found


def _rewind(tx: Transaction, extractor: extractions.Extractor, left: Collection[int], erased: Collection[int]) -> None:
    query = (
        select(Memory.session_id, func.min(Memory.seq))
        .where(among(Memory.id, set(left) - set(erased)), Memory.level == "raw")
        .group_by(Memory.session_id)
    )
    extractions.rewind(tx, extractor, {session_id: seq for session_id, seq in tx.execute(query) if session_id and seq})
