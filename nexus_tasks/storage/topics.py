"""Storing and reading topics. A topic is a file of knowledge in a namespace, with the ids of its source messages."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import defer

from nexus_tasks import limits
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among
from nexus_tasks.storage.models import Topic, TopicSource
from nexus_tasks.text import word_forms
from nexus_tasks.types import TopicDetails, TopicInfo

# The most characters of a stored topic, about 2,000 tokens. The extractor shows topics whole while they together have
# at most NEXUS_EXTRACT_SHOWN_TOKENS tokens (4,000 by default), so each stored topic can be shown whole. Only a topic
# that is shown whole can be shortened by the model. Chosen by hand, not measured.
LONGEST_CONTENT = 8_000
_COMPARED = 1_000_000  # pairs of lines, in 0.3 s; of more lines, only all their words together are compared
_LONGEST_FILENAME = 128  # with the suffix ".md", see cognition/extraction/filenames.py
_PART = re.compile(r"-part-(\d{1,6})$")
_PART_OF_NAME = re.compile(r" \(part \d{1,6}\)$")


@dataclass(frozen=True, kw_only=True)
class TopicDraft:
    """A validated topic to store.

    ``seen`` is the revision of the stored topic that the writer of the draft has read, or 0 when the writer has read no
    stored topic. When the stored topic still has this revision, the draft replaces the stored content. Otherwise the
    draft's new lines are appended to the stored content. ``shown`` is the content that the writer has read, or its
    beginning. Its lines are not new: what the stored topic lacks of them has been removed since. ``sources`` are the
    ids of the messages that the draft was written from. ``own`` has the lines (see :func:`lines_of`) that no extraction
    wrote.
    """

    filename: str
    name: str
    description: str
    type: str
    content: str
    made_by: str
    seen: int = 0
    shown: str = ""
    sources: tuple[int, ...] = ()
    own: str = ""


def every(tx: Transaction, namespace_id: int, limit: int | None = None) -> Sequence[Topic]:
    """A namespace's topics, at most ``limit``. The most recently changed topic comes first."""
    query = select(Topic).where(Topic.namespace_id == namespace_id)
    return tx.scalars(query.order_by(Topic.updated_at.desc(), Topic.id.desc()).limit(limit)).all()


def listed(tx: Transaction, namespace_id: int, *, limit: int, offset: int) -> list[TopicInfo]:
    """A page of a namespace's topics without their content. The most recently changed topic comes first."""
    query = (
        select(Topic, func.length(Topic.content))
        .options(defer(Topic.content), defer(Topic.own))
        .where(Topic.namespace_id == namespace_id)
        .order_by(Topic.updated_at.desc(), Topic.id.desc())
        .limit(limit)
        .offset(offset)
    )
    return [TopicInfo(**_head(topic, characters)) for topic, characters in tx.execute(query)]


def find(tx: Transaction, namespace_id: int, filename: str, *, lock: bool = False) -> Topic | None:
    """The topic with this file name, or ``None``. With ``lock`` its row stays locked until the transaction ends."""
    query = select(Topic).where(Topic.namespace_id == namespace_id, Topic.filename == filename)
    return tx.scalar(query.execution_options(populate_existing=True).with_for_update() if lock else query)


def are_there(tx: Transaction, shown: Mapping[int, str]) -> bool:
    """Whether all of these topics are there, with these file names (topic id → file name)."""
    query = select(Topic.id, Topic.filename).where(among(Topic.id, shown))
    return {found.id: found.filename for found in tx.execute(query)} == dict(shown)


def source_ids(tx: Transaction, topic_ids: Collection[int]) -> set[int]:
    """The ids of the messages that these topics were written from."""
    return set(tx.scalars(select(TopicSource.memory_id).where(TopicSource.topic_id.in_(topic_ids)).distinct()))


def store(tx: Transaction, namespace_id: int, drafts: Sequence[TopicDraft]) -> int:
    """Store new topics, and new versions of topics. Returns the number of new and changed topics.

    A draft replaces a topic's content when the topic still has the draft's revision ``seen``. When the topic has
    another revision, another run or a person has changed it. Then the lines of the draft that are new to both are
    appended, so that no line is lost, and none comes back that was removed meanwhile.

    A stored topic has at most :data:`LONGEST_CONTENT` characters. The lines that do not fit are added to the topic's
    next part: ``deploys.md`` goes on in ``deploys-part-2.md``, and so on.
    """
    return sum(_store(tx, namespace_id, draft) for draft in sorted(drafts, key=lambda draft: _part_of(draft.filename)))


def split_oversized(tx: Transaction, namespace_id: int) -> None:
    """Split the topics with more than :data:`LONGEST_CONTENT` characters, which an earlier release has stored."""
    query = select(Topic).where(Topic.namespace_id == namespace_id, func.length(Topic.content) > LONGEST_CONTENT)
    for topic in sorted(tx.scalars(query), key=lambda topic: _part_of(topic.filename)):
        same = {
            name: getattr(topic, name) for name in ("filename", "name", "description", "type", "content", "made_by")
        }
        _store(tx, namespace_id, TopicDraft(**same, seen=topic.revision))


def _part_of(filename: str) -> tuple[str, int]:
    """The name without its part, and the number of the part: ``("deploys", 2)`` for ``deploys-part-2.md``.

    Transactions lock the topics in this order, so that no two of them wait for each other.
    """
    stem = filename.removesuffix(".md")
    part = _PART.search(stem)
    return (stem[: part.start()], int(part[1])) if part else (stem, 1)


def _next_part(draft: TopicDraft, content: str, sources: Collection[int]) -> TopicDraft:
    stem, number = _part_of(draft.filename)
    suffix = f"-part-{number + 1}"
    return dataclasses.replace(
        draft,
        filename=f"{stem[: _LONGEST_FILENAME - len(suffix) - len('.md')]}{suffix}.md",
        name=f"{_PART_OF_NAME.sub('', draft.name)} (part {number + 1})",
        content=content,
        seen=0,
        sources=tuple(sorted(sources)),
    )


def _fitting(content: str) -> tuple[str, str]:
    """``content`` in two pieces. The first has at most :data:`LONGEST_CONTENT` characters, and ends with a line."""
    if len(content) <= LONGEST_CONTENT:
        return content, ""
    end = content.rfind("\n", 0, LONGEST_CONTENT + 1)
    end = end if end > 0 else LONGEST_CONTENT  # a single line is longer than the bound
    return content[:end].rstrip("\n"), content[end:].strip("\n")


def holds(topic: Topic, content: str) -> bool:
    """Whether a topic has this content, of which its next part may have the rest."""
    return topic.content == _fitting(content)[0]


def overwrite(
    tx: Transaction, namespace_id: int, drafts: Sequence[TopicDraft], seen: Mapping[str, int] | None = None
) -> int:
    """Store topics with exactly the given content. Returns how many topics changed.

    Args:
        seen: the revision of a topic that its draft was written from. When the topic has another revision by now, the
            draft's new lines are added to it. A topic without a revision here is replaced, whatever is stored.
    """
    there = {topic.filename: topic.revision for topic in every(tx, namespace_id)} | dict(seen or {})
    ours = [dataclasses.replace(one, seen=there.get(one.filename, 0), own=lines_of(one)) for one in drafts]
    return store(tx, namespace_id, ours)


def _store(tx: Transaction, namespace_id: int, draft: TopicDraft) -> bool:
    fields = {"name": draft.name, "description": draft.description, "type": draft.type, "made_by": draft.made_by}
    content, rest = _fitting(draft.content)
    made = tx.scalar(
        upsert(Topic)
        .values(
            namespace_id=namespace_id,
            filename=draft.filename,
            content=content,
            own=lines_among(lines_of(dataclasses.replace(draft, content=content)), draft.own),
            **fields,
        )
        .on_conflict_do_nothing()
        .returning(Topic.id)
    )
    if made is not None:
        _link(tx, namespace_id, made, draft.sources)
        if rest:
            _store(tx, namespace_id, _next_part(draft, rest, draft.sources))
        return True
    there = find(tx, namespace_id, draft.filename, lock=True)
    assert there is not None
    is_seen = there.revision == draft.seen
    whole = draft.content if is_seen else append_missing_lines(there.content, draft.content, draft.shown)
    content, rest = _fitting(whole)
    own, more = _own(there, draft.own), False
    if rest:  # the rest may repeat lines of the stored topic, so it rests on the stored topic's messages too
        sources = source_ids(tx, [there.id]).union(draft.sources)
        more = _store(tx, namespace_id, _next_part(dataclasses.replace(draft, own=own), rest, sources))
    told = lines_of(dataclasses.replace(draft, content=content))
    changed: dict[str, Any] = fields | {"content": content, "own": lines_among(told, own)}
    if all(getattr(there, name) == value for name, value in changed.items() if name not in ("made_by", "own")):
        return more
    tx.execute(
        update(Topic)
        .where(Topic.id == there.id)
        .values(**changed, revision=Topic.revision + 1, updated_at=func.clock_timestamp())
        .execution_options(synchronize_session=False)
    )
    _link(tx, namespace_id, there.id, draft.sources)
    return True


def names_of(filename: str, name: str) -> tuple[set[str], set[str]]:
    """A topic's file names and names: with the number of the topic's part, and without it."""
    return {filename, f"{_part_of(filename)[0]}.md"}, {name, _PART_OF_NAME.sub("", name)}


def lines_of(topic: Topic | TopicDraft) -> str:
    """The texts that tell something, as lines: the file name, the name, the description and the content."""
    filenames, names = names_of(topic.filename, topic.name)
    return "\n".join((*sorted(filenames), *sorted(names), topic.description, topic.content))


def lines_among(content: str, others: str) -> str:
    """The lines of ``content`` that ``others`` has too."""
    known = {line.strip() for line in others.splitlines()}
    return "\n".join(line for line in content.splitlines() if line.strip() and line.strip() in known)


def _own(there: Topic, written: str) -> str:
    """The lines of a topic that no extraction wrote, after a person has written the lines ``written`` in place of it.

    Lines that the person left as they were stay those of the extraction that wrote them. So do lines that the person
    has reworded: they may still tell what an erased message said.
    """
    known, own = ({line.strip() for line in lines.splitlines()} for lines in (lines_of(there), there.own))
    extracted = [word_forms(line) for line in known - own]
    new = [line for line in written.splitlines() if line.strip() not in known]
    if len(new) * len(extracted) > _COMPARED:
        extracted = [set[str]().union(*extracted)]
    new = [line for line in new if not _rewords(line, extracted)]
    return "\n".join((there.own, *new))


def _rewords(line: str, others: Sequence[set[str]]) -> bool:
    """Whether more than half of the words of ``line`` are in one of the ``others``."""
    words = word_forms(line)
    return any(len(words & other) * 2 > len(words) for other in others)


def append_missing_lines(there: str, new: str, before: str) -> str:
    """The content ``there``, followed by the lines of ``new`` that neither it nor the content ``before`` has."""
    known = {line.strip() for content in (there, before) for line in content.splitlines()}
    added = [line for line in new.splitlines() if not line.strip() or line.strip() not in known]
    return f"{there}\n{more}" if (more := "\n".join(added).strip("\n")) else there


def _link(tx: Transaction, namespace_id: int, topic_id: int, memory_ids: Sequence[int]) -> None:
    rows = [{"namespace_id": namespace_id, "topic_id": topic_id, "memory_id": one} for one in sorted(set(memory_ids))]
    insert_rows(tx, TopicSource, rows, on_conflict="DO NOTHING")


def write(tx: Transaction, namespace_id: int, draft: TopicDraft, revision: int | None) -> Topic | None:
    """Store a topic with exactly the draft's content. The messages that the stored topic rests on stay its sources.

    Args:
        revision: the revision that the stored topic must have; 0 when there must be no topic. ``None``: any.

    Returns:
        The topic, or ``None`` when it has another revision. Nothing was stored then.
    """
    fields = {field: getattr(draft, field) for field in ("name", "description", "type", "content", "made_by")}
    if not revision:
        made = upsert(Topic).values(namespace_id=namespace_id, filename=draft.filename, own=lines_of(draft), **fields)
        new: Topic | None = tx.scalar(made.on_conflict_do_nothing().returning(Topic))
        if new is not None:
            return new
    there = find(tx, namespace_id, draft.filename, lock=True)
    if there is None or revision not in (None, there.revision):
        return None
    if any(getattr(there, field) != value for field, value in fields.items() if field != "made_by"):
        there.own = lines_among(lines_of(draft), _own(there, lines_of(draft)))
        for field, value in fields.items():
            setattr(there, field, value)
        there.revision, there.updated_at = there.revision + 1, datetime.now(UTC)
        tx.flush()
    return there


def rename(tx: Transaction, topic: Topic, filename: str) -> bool:
    """Give a topic another file name. Returns whether the name was free."""
    if topic.filename == filename:
        return True
    try:
        with tx.begin_nested():
            own, topic.filename = f"{topic.own}\n{filename}", filename
            topic.own = lines_among(lines_of(topic), own)
            topic.revision, topic.updated_at = topic.revision + 1, datetime.now(UTC)
    except IntegrityError:  # of a savepoint: another topic, which may have been made just now, has the name
        return False
    return True


def details(tx: Transaction, topic: Topic) -> TopicDetails:
    """A topic with its content and the ids of the earliest messages that it was written from."""
    query = select(TopicSource.memory_id, func.count().over()).where(TopicSource.topic_id == topic.id)
    rows = tx.execute(query.order_by(TopicSource.memory_id).limit(limits.MEMORY_EVIDENCE)).all()
    return TopicDetails(
        **_head(topic, len(topic.content)),
        content=topic.content,
        sources=tuple(row[0] for row in rows),
        more_sources=rows[0][1] - len(rows) if rows else 0,
    )


def _head(topic: Topic, characters: int) -> dict[str, Any]:
    return {
        "filename": topic.filename,
        "name": topic.name,
        "description": topic.description,
        "type": topic.type,
        "made_by": topic.made_by,
        "created_at": topic.created_at,
        "updated_at": topic.updated_at,
        "characters": characters,
        "revision": topic.revision,
    }
