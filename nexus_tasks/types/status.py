"""The state of a deployment: how many jobs wait, run or are dead letters, why jobs wait, and today's cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from nexus_tasks.types.document import Document
from nexus_tasks.types.jobs import Worker
from nexus_tasks.types.sessions import ObservationStats


@dataclass(frozen=True, kw_only=True)
class JobCounts(Document):
    """Jobs of a namespace by state."""

    waiting: int  # jobs that wait for a time or a condition
    pending: int  # jobs in a Celery queue
    running: int
    dead: int  # open dead letters


@dataclass(frozen=True, kw_only=True)
class WaitingJob(Document):
    """A waiting job, and the reason of its wait."""

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
    for_seconds: float  # seconds since the run began
    worker: Worker | None  # None when a worker of an earlier release runs the job


@dataclass(frozen=True, kw_only=True)
class HeldReflection(Document):
    """A reflection that would change too many facts at once. It waits until a person releases or drops it."""

    job_id: str  # the argument for `nexus jobs retry` (release the reflection) and `nexus jobs drop`
    observer: str
    subject: str
    facts: int  # number of new facts that the reflection has read
    supersedes: int  # number of facts that the reflection would supersede
    since: str  # the time from which the reflection waits, ISO 8601
    released: bool  # whether a person has released the reflection; the next run then makes the changes


@dataclass(frozen=True, kw_only=True)
class PausedKind(Document):
    """A job kind whose jobs wait until an operator has corrected the cause."""

    kind: str
    reason: str
    since: datetime


@dataclass(frozen=True, kw_only=True)
class HeldThreads(Document):
    """A worker with held threads. A held thread runs a job beyond its time limit, because the code does not return."""

    worker: str  # the name of the Celery worker
    held: int  # number of held threads
    threads: int  # number of all threads of the worker, with the held threads


@dataclass(frozen=True, kw_only=True)
class PausedNamespace(Document):
    """The time and the reason of a namespace's pause, which an operator has begun."""

    since: datetime
    reason: str


@dataclass(frozen=True, kw_only=True)
class NamespaceStatus(Document):
    """The state of a namespace."""

    namespace: str
    jobs: JobCounts
    memories: Mapping[str, int]  # level → number of memories valid now; every level, or none if not counted
    underived: int  # number of messages whose facts are still to be derived
    digests_wanted: int  # number of sessions that are still to be digested
    oldest_underived_seconds: float | None  # age of the oldest derivation that is still to be done, or None
    paused: PausedNamespace | None  # while the namespace is paused, none of its jobs begins
    waiting_for: Mapping[str, int]  # reason of the wait → number of waiting jobs
    waits: tuple[WaitingJob, ...]  # at most 20 waiting jobs, the job that is due soonest first
    runs: tuple[RunningJob, ...]  # at most 20 running jobs, the longest running first
    reviews: tuple[HeldReflection, ...]
    observation: tuple[ObservationStats, ...]  # at most 50 observed sessions, the last changed first
    spend_today_usd: float  # US dollars since midnight UTC
    model_calls_today: int  # since midnight UTC


@dataclass(frozen=True, kw_only=True)
class StatusReport(Document):
    """The state of one namespace or of a deployment, and the paused job kinds."""

    namespaces: tuple[NamespaceStatus, ...]  # sorted by name; of many namespaces only those with the most jobs
    left_out: int  # number of namespaces that are not in `namespaces`
    jobs: JobCounts  # the jobs of all namespaces, also of the namespaces that are left out
    paused: tuple[PausedKind, ...]
    held_threads: tuple[HeldThreads, ...]  # one entry per worker; a worker ends when half of its threads are held
    quarantined: int  # messages that no worker could read, of all queues
    away: Mapping[str, str] = field(default_factory=dict)  # cells that are missing in the report: cell → why

    def _left_out(self) -> Collection[str]:
        return () if self.away else ("away",)
