"""The types of memories, topics and search hits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from nexus_tasks.types.document import Document
from nexus_tasks.types.names import Level, Role


@dataclass(frozen=True, kw_only=True)
class Citation(Document):
    """A source of a memory: a memory that it rests on."""

    id: int  # of the source
    external_id: str | None  # of the source: the producer's own id of a message
    role: str  # derived_from, reinforces, contradicts, insight_support, digested_from or supersedes


@dataclass(frozen=True, kw_only=True)
class SupportedMemory(Document):
    """A memory that rests on another one."""

    id: int
    role: str  # as in Citation


@dataclass(frozen=True, kw_only=True)
class MemoryInfo(Document):
    """A memory without its evidence."""

    id: int  # cited as [m<id>]
    external_id: str | None  # the producer's own id of a message
    level: Level
    content: str
    author: str | None  # of a message: who said it; of other memories: their subject, or None
    role: Role | None  # of a message only
    observer: str | None  # the holder of the memory; None for messages and digests
    subject: str | None  # the person or thing that it is about; None for messages and digests
    session_key: str | None  # the session of a message, of a fact's earliest source, or of a digest
    category: str | None  # of a fact only
    labels: tuple[str, ...]  # of a fact: further words by which a search finds it
    confidence: float  # 0 to 1, as stored; a search lowers it with age
    times_reinforced: int  # how often it was said again or confirmed by a reflection
    occurred_at: datetime  # when it was said
    stored_at: datetime
    valid_from: datetime | None  # the time from which it holds
    valid_to: datetime | None  # the time at which it ceased to hold; None while it holds
    superseded_by: int | None  # id of the memory that replaced it
    made_by: str | None  # the model that wrote it; None for messages
    reflection: int | None  # number of the reflection that made it, for `undo`


@dataclass(frozen=True, kw_only=True)
class MemoryDetails(MemoryInfo):
    """A memory with its evidence, what rests on it, and what it superseded."""

    evidence: tuple[Citation, ...]
    supports: tuple[SupportedMemory, ...]
    superseded: tuple[int, ...]  # ids of the memories that it replaced


@dataclass(frozen=True, kw_only=True)
class TopicInfo(Document):
    """A topic (a file of knowledge) without its content."""

    filename: str  # unique in the namespace
    name: str
    description: str  # one line
    type: str  # user, feedback, project or reference
    made_by: str  # the model that wrote it, or import
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class TopicDetails(TopicInfo):
    """A topic with its content."""

    content: str  # Markdown
    sources: tuple[int, ...]  # ids of the messages that it was written from


@dataclass(frozen=True, kw_only=True)
class Recall(Document):
    """One search hit."""

    id: int
    external_id: str | None
    level: Level
    content: str
    score: float  # orders the hits of one search; not a probability, not comparable between searches
    # The parts of the score: words (BM25), neighbours (a share of the scores of adjacent messages), vector (cosine).
    why: Mapping[str, float]
    confidence: float  # 0 to 1: the stored confidence less 0.01 for each day of age
    occurred_at: datetime
    session_key: str | None
    observer: str | None
    subject: str | None
    evidence: tuple[Citation, ...] = ()


class Recalls(list[Recall]):
    """Search hits, best first."""

    missing_embeddings: int = 0  # memories of the namespace without a vector; a search finds them by words only
