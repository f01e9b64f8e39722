"""The state of a deployment: what waits, runs and is dead, why it waits, and what it cost today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from nexus_tasks.types.document import Document
from nexus_tasks.types.jobs import Worker
from nexus_tasks.types.sessions import ObservationStats


@dataclass(frozen=True, kw_only=True)
class JobCounts(Document):
    """Jobs of a namespace by state."""

    waiting: int  # for a time or a condition
    pending: int  # in a Celery queue
    running: int
    dead: int  # open dead letters


@dataclass(frozen=True, kw_only=True)
class WaitingJob(Document):
    """A job that waits, and why."""

    kind: str
    scope: str  # JSON: the arguments that two requests for the same work share
    reason: str  # such as ripeness, retry, budget or pause
    detail: str | None  # more about the reason, such as "312 of 512 tokens"
    due_in_seconds: float | None  # the longest time until the job is due; 0 when overdue; None: an event wakes the job


@dataclass(frozen=True, kw_only=True)
class RunningJob(Document):
    """A job that runs now."""

    id: str
    kind: str
    scope: str  # JSON: the arguments that two requests for the same work share
    for_seconds: float  # since the begin of the run
    worker: Worker | None  # None: a worker of an earlier release runs it


@dataclass(frozen=True, kw_only=True)
class HeldReflection(Document):
    """A reflection that changes too much at once: it waits for a person to release or drop it."""

    job_id: str  # for `nexus jobs retry` (release) and `nexus jobs drop`
    observer: str
    subject: str
    facts: int  # new facts that it has read
    supersedes: int  # facts that it would supersede
    since: str  # when it was held: ISO 8601
    released: bool  # a person has released it, and the next run carries it out


@dataclass(frozen=True, kw_only=True)
class PausedKind(Document):
    """A job kind whose jobs wait until an operator has corrected the cause."""

    kind: str
    reason: str
    since: datetime


@dataclass(frozen=True, kw_only=True)
class HeldThreads(Document):
    """A worker with threads that are held by runs over their limit: code that does not return."""

    worker: str  # the name of the Celery worker
    held: int
    threads: int  # of the worker, the held ones included


@dataclass(frozen=True, kw_only=True)
class PausedNamespace(Document):
    """Since when and why an operator has paused a namespace."""

    since: datetime
    reason: str


@dataclass(frozen=True, kw_only=True)
class NamespaceStatus(Document):
    """The state of a namespace."""

    namespace: str
    jobs: JobCounts
    memories: Mapping[str, int]  # active memories by level; every level is named
    underived: int  # messages whose facts are wanted
    digests_wanted: int  # sessions whose digest is wanted
    oldest_underived_seconds: float | None  # age of the oldest wanted derivation; None when none is wanted
    paused: PausedNamespace | None  # while it is paused, none of its jobs begins
    waiting_for: Mapping[str, int]  # waiting jobs by the reason of their wait
    waits: tuple[WaitingJob, ...]  # at most 20, the soonest due
    runs: tuple[RunningJob, ...]  # at most 20, the longest running first
    reviews: tuple[HeldReflection, ...]
    observation: tuple[ObservationStats, ...]  # of at most 50 observed sessions, the last changed first
    spend_today_usd: float  # US dollars since midnight UTC
    model_calls_today: int  # since midnight UTC


@dataclass(frozen=True, kw_only=True)
class StatusReport(Document):
    """The state of one namespace or of a deployment, and the paused job kinds."""

    namespaces: tuple[NamespaceStatus, ...]  # sorted by name; of many namespaces only those with the most jobs
    left_out: int  # how many namespaces are not in `namespaces`
    jobs: JobCounts  # of all namespaces, those that are left out too
    paused: tuple[PausedKind, ...]
    held_threads: tuple[HeldThreads, ...]  # by worker; a worker with half of its threads held ends
