"""The answers that are not a type of the client: pages of a list, hits, and a job that was asked for."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.types import (
    AuditEntry,
    Document,
    JobInfo,
    MemoryInfo,
    NamespaceInfo,
    PerspectiveInfo,
    QuarantinedMessage,
    Recall,
    SessionInfo,
    SourcedFact,
    TokenInfo,
    TopicInfo,
    WebhookInfo,
)


@dataclass(frozen=True, kw_only=True)
class _Page(Document):
    """A page of a list."""

    next_offset: int | None  # the `offset` of the next page, which may be empty; None: this page is the last one


def next_offset(found: Sized, limit: int, offset: int) -> int | None:
    """The ``offset`` of the page behind the found one; ``None`` when there is no such page."""
    return offset + limit if limit and len(found) == limit else None


@dataclass(frozen=True, kw_only=True)
class AccessInfo(Document):
    """What a token may do."""

    namespace: str | None  # the only namespace that it opens; None: all
    scopes: tuple[str, ...]  # read, write, erase
    operator: bool  # whether it is the operator's own


@dataclass(frozen=True, kw_only=True)
class MemoryPage(_Page):
    """A page of memories, newest first."""

    namespace: str
    memories: tuple[MemoryInfo, ...]


@dataclass(frozen=True, kw_only=True)
class PerspectivePage(_Page):
    """A page of perspectives, sorted by observer and subject."""

    namespace: str
    perspectives: tuple[PerspectiveInfo, ...]


@dataclass(frozen=True, kw_only=True)
class FactPage(_Page):
    """A page of the facts that rest on a session's messages, in the order of the messages."""

    namespace: str
    session_key: str
    facts: tuple[SourcedFact, ...]


@dataclass(frozen=True, kw_only=True)
class SessionPage(_Page):
    """A page of sessions, newest first."""

    namespace: str
    sessions: tuple[SessionInfo, ...]


@dataclass(frozen=True, kw_only=True)
class TopicPage(_Page):
    """A page of topics, the most recently changed first."""

    namespace: str
    topics: tuple[TopicInfo, ...]


@dataclass(frozen=True, kw_only=True)
class NamespacePage(_Page):
    """A page of namespaces, sorted by name."""

    namespaces: tuple[NamespaceInfo, ...]


@dataclass(frozen=True, kw_only=True)
class JobPage(_Page):
    """A page of jobs: running ones, waiting and pending ones, then those that have ended."""

    jobs: tuple[JobInfo, ...]


@dataclass(frozen=True, kw_only=True)
class TokenPage(_Page):
    """A page of tokens without their secrets, newest first."""

    tokens: tuple[TokenInfo, ...]


@dataclass(frozen=True, kw_only=True)
class AuditPage(_Page):
    """A page of the audit log, newest first."""

    entries: tuple[AuditEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Quarantine(_Page):
    """A page of the messages that no worker could read, newest first."""

    messages: tuple[QuarantinedMessage, ...]


@dataclass(frozen=True, kw_only=True)
class SearchResults(Document):
    """The hits of a search, best first."""

    query: str
    namespace: str
    results: tuple[Recall, ...]
    missing_embeddings: int  # memories of the namespace without a vector, which a search finds only by their words


@dataclass(frozen=True, kw_only=True)
class RequestedJob(Document):
    """A job that was asked for. Its state is at ``/v1/jobs/{job_id}``."""

    job_id: str  # of the job that does the work, which an earlier request may have made
    kind: str
    created: bool  # whether this request made the job

    @classmethod
    def of(cls, job: Any) -> RequestedJob:
        """What to tell of the job that a method of the client returned."""
        assert isinstance(job, JobResult)
        return cls(job_id=job.job_id, kind=job.kind, created=job.created)


@dataclass(frozen=True, kw_only=True)
class EndedSession(Document):
    """A session that was ended."""

    namespace: str
    session_key: str
    job: RequestedJob | None  # the job that digests the session; None when it has no new message


@dataclass(frozen=True, kw_only=True)
class Resumed(Document):
    """What runs again."""

    resumed: tuple[str, ...]  # names of the namespaces or kinds that were paused


@dataclass(frozen=True, kw_only=True)
class ClearedTask(Document):
    """The result of clearing a session's current task."""

    cleared: bool  # whether there was a task or a suggested response


@dataclass(frozen=True, kw_only=True)
class DroppedMessages(Document):
    """The result of emptying the quarantine."""

    dropped: int  # number of deleted messages


@dataclass(frozen=True, kw_only=True)
class DeletedTopic(Document):
    """A topic that was deleted."""

    namespace: str
    filename: str


@dataclass(frozen=True, kw_only=True)
class WebhookPage(_Page):
    """A page of webhooks without their secrets, newest first."""

    webhooks: tuple[WebhookInfo, ...]
