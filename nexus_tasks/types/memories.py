"""The types of memories, topics and search hits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from nexus_tasks.event_time import Span, describe
from nexus_tasks.types.document import Document
from nexus_tasks.types.names import Level, Role, Standing

TopicType = Literal["user", "feedback", "project", "reference"]


class _Dated:
    """A memory that may speak of a time."""

    level: Level
    event_from: datetime | None
    event_to: datetime | None

    @property
    def event(self) -> str | None:
        """The time of which a fact speaks, such as ``2026-05-03`` or ``2026-05``; ``None`` for other memories."""
        if self.event_from is None or self.event_to is None or self.level.startswith("summary"):
            return None
        return describe(Span(self.event_from, self.event_to))


@dataclass(frozen=True, kw_only=True)
class Citation(Document):
    """One source of a memory. The source is another memory."""

    id: int  # the source's memory id
    external_id: str | None  # the producer's own id of the source, when the source is a message
    # derived_from, reinforces, contradicts, insight_support, digested_from, supersedes or duplicate_of; `repeats` in a
    # search hit for a memory that says the same as the hit
    role: str


@dataclass(frozen=True, kw_only=True)
class SupportedMemory(Document):
    """A memory that has another memory as its source."""

    id: int
    role: str  # one of the roles of `Citation`


@dataclass(frozen=True, kw_only=True)
class MemoryInfo(Document, _Dated):
    """A memory without its evidence."""

    id: int  # a citation of the memory has the form [m<id>]
    external_id: str | None  # the producer's own id of a message; None for other memories
    level: Level
    content: str
    author: str | None  # the author of a message; for another memory its subject, or None
    role: Role | None  # the role of a message; None for other memories
    observer: str | None  # the holder of the memory; None for messages and digests
    subject: str | None  # the person or thing that the memory is about; None for messages and digests
    session_key: str | None  # the session of a message or a digest; for a fact the session of its earliest source
    category: str | None  # the category of a fact; None for other memories
    labels: tuple[str, ...]  # further words by which a search finds a fact; empty for other memories
    confidence: float  # 0 to 1, as stored; the confidence of a search hit is lower for an older memory
    times_reinforced: int  # how often a message has repeated the memory or a reflection has confirmed it
    occurred_at: datetime  # the time when the memory's text was said
    # The time of which a fact speaks, from `event_from` to just before `event_to`, in the speaker's time zone; for a
    # digest the times of the first and the last message that it covers. None when the fact names no time.
    event_from: datetime | None
    event_to: datetime | None
    claimed_at: datetime | None  # the time that a message gave, if it lay in the future
    time_zone: str  # of the speaker of a message, or of a fact's earliest source; UTC for other memories
    stored_at: datetime
    valid_from: datetime | None  # the time from which the memory is valid
    valid_to: datetime | None  # the time from which the memory is no longer valid; None while it is valid
    superseded_by: int | None  # id of the memory that replaced this memory
    expires_at: datetime | None  # the time from which the memory counts as superseded; None: it does not expire
    erase_expired: bool  # whether the memory is erased when it has expired
    pinned: bool  # whether the memory was pinned: see `Nexus.pin`
    made_by: str | None  # the model that wrote the memory; None for messages
    # Whose words the memory rests on: self, other, assistant, tool or import. None when it is unknown.
    standing: Standing | None
    reflection: int | None  # number of the reflection that made the memory; `undo` takes this number
    data: Mapping[str, Any] | None = None  # the data of a message, see `Message`; None for other memories


@dataclass(frozen=True, kw_only=True)
class MemoryDetails(MemoryInfo):
    """A memory with its sources, and with the memories that it supports or superseded."""

    evidence: tuple[Citation, ...]  # the memory's earliest sources, at most 1,000
    supports: tuple[SupportedMemory, ...]  # the first memories that have this memory as a source, at most 1,000
    superseded: tuple[int, ...]  # ids of the first memories that this memory replaced, at most 1,000
    more_evidence: int = 0  # number of the sources that are not in `evidence`


@dataclass(frozen=True, kw_only=True)
class SourcedFact(MemoryInfo):
    """A fact with the messages that it rests on."""

    sources: tuple[int, ...]  # memory ids of the first messages of the asked range, at most 100


@dataclass(frozen=True, kw_only=True)
class PerspectiveInfo(Document):
    """What one observer holds about one subject, in numbers."""

    observer: str
    subject: str
    memories: int  # number of facts and conclusions that are valid now
    unreflected: int  # number of facts that no reflection has read


@dataclass(frozen=True, kw_only=True)
class TopicInfo(Document):
    """A topic (a file of knowledge) without its content."""

    filename: str  # unique in the namespace
    name: str
    description: str  # one line
    type: str  # user, feedback, project or reference
    made_by: str  # the model that wrote the topic, `import`, or the author that `write_topic` was given
    created_at: datetime
    updated_at: datetime
    characters: int  # of its content
    revision: int  # how often the topic was written; `write_topic` compares it


@dataclass(frozen=True, kw_only=True)
class TopicDetails(TopicInfo):
    """A topic with its content."""

    content: str  # Markdown
    sources: tuple[int, ...]  # ids of the earliest messages that the topic was written from, at most 1,000
    more_sources: int = 0  # number of the messages that are not in `sources`


@dataclass(frozen=True, kw_only=True)
class Recall(Document, _Dated):
    """One search hit."""

    id: int
    external_id: str | None
    level: Level
    content: str
    score: float  # orders the hits of one search; the scores of two searches cannot be compared
    # The parts of the score: `words` (BM25), `neighbours` (a share of the scores of a message's neighbours or of a
    # fact's messages) and `vector` (the cosine of the query's vector and the memory's vector). For facts and
    # conclusions also the `standing`.
    why: Mapping[str, float | str]
    confidence: float  # 0 to 1: the stored confidence minus 0.01 for each day of the memory's age
    occurred_at: datetime
    session_key: str | None
    observer: str | None
    subject: str | None
    evidence: tuple[Citation, ...] = ()
    # The time of which a fact speaks, from `event_from` to just before `event_to`, in the speaker's time zone; for a
    # digest the times of the first and the last message that it covers. None when the fact names no time.
    event_from: datetime | None = None
    event_to: datetime | None = None
    claimed_at: datetime | None = None  # the time that a message gave, if it lay in the future
    # Whose words the memory rests on: self (a person's about themselves), other (another person's), assistant, tool or
    # import. None when it is unknown.
    standing: Standing | None = None
    more_evidence: int = 0  # number of the sources that are not in `evidence`, which has at most 100


class Recalls(list[Recall]):
    """Search hits, best first."""

    # The number of memories of the namespace that have no vector. A search finds such a memory only by its words.
    missing_embeddings: int = 0
