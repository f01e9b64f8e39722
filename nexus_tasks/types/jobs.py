"""Jobs: the outcome of one job, and the records of queued jobs, dead letters and finished runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from nexus_tasks.types.document import Document
from nexus_tasks.types.names import Status

# A queued job is waiting (for a time or a condition), pending (in a Celery queue) or running. A dead letter is dead
# (still open), retried or dropped. A finished run has one of the values of `Status`.
JOB_STATUSES: tuple[str, ...] = tuple(dict.fromkeys(("waiting", "pending", "running", *get_args(Status), "retried")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker(Document):
    """The process that runs a job or has run it last: the Celery worker's name, the host and the process id.

    ``node`` is empty when the job ran in the producer's process (``task_always_eager``, ``apply()``).
    """

    node: str
    host: str
    pid: int

    @classmethod
    def of(cls, known: Mapping[str, Any] | None) -> Worker | None:
        """Make a worker from the document of :meth:`to_dict`.

        ``None`` gives ``None``. There is no document when no worker has begun the job yet, or when the job's worker was
        of an earlier release, which wrote none.
        """
        return cls(node=known["node"], host=known["host"], pid=known["pid"]) if known else None

    @classmethod
    def parse(cls, text: str) -> Worker | None:
        """Read the field ``worker`` of a claim in Redis. An empty field gives ``None``."""
        return cls.of(json.loads(text) if text else None)

    def as_json(self) -> str:
        """The text for the field ``worker`` of a claim in Redis."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        return f"{self.node or self.host} (process {self.pid})"


@dataclass(frozen=True, kw_only=True)
class JobOutcome(Document):
    """How a job ended."""

    status: Status
    job_id: str = ""  # the id of the job that did the work
    reasons: tuple[str, ...] = ()  # why the job was requested
    details: Mapping[str, Any] = field(default_factory=dict)  # figures that the job kind reports, such as ``facts``


_ASKED = ("force", "reasons", "urgency")
# `JobInfo.source` → the optional fields that jobs of this source have. Fields that all jobs have are not in this table.
_FIELDS_OF = {
    "queue": frozenset({"reason", "detail", "error", "args", "errors", "crashes", *_ASKED}),
    "dead_letters": frozenset({"error", "args", "error_type", "traceback", "errors", "crashes", "resolution", *_ASKED}),
    "runs": frozenset({"reasons", "details", "model_calls", "cost_usd"}),
}
_FIELDS_OF_SOME = frozenset().union(*_FIELDS_OF.values())


@dataclass(frozen=True, kw_only=True)
class JobInfo(Document):
    """A job. ``source`` says whether it is queued or running (``queue``), a dead letter, or a finished run."""

    source: Literal["queue", "dead_letters", "runs"]  # left out of ``to_dict()``
    id: str
    namespace: str
    kind: str
    scope: str  # JSON: the arguments that two requests for the same work share
    # A queued job: waiting, pending or running. A dead letter: dead, retried or dropped. A run: JobOutcome.status.
    status: str
    attempts: int  # runs so far, including the present run
    reason: str | None = None  # why a waiting job waits
    detail: str | None = None  # more about the reason, such as "312 of 512 tokens"
    error: str | None = None  # the last error of a dead letter, or of a queued job that has failed
    worker: Worker | None = None  # the process that runs the job or has run it last
    queued_at: datetime | None  # for a dead letter, the time of its first failure
    started_at: datetime | None
    finished_at: datetime | None  # for a dead letter, the time of its last failure

    def _left_out(self) -> Collection[str]:
        return {"source"} | (_FIELDS_OF_SOME - _FIELDS_OF[self.source])


@dataclass(frozen=True, kw_only=True)
class JobDetails(JobInfo):
    """All that is known about a job. A field keeps its default when jobs of this ``source`` do not have it."""

    # Queued jobs and dead letters have these fields, except for three fields that only dead letters have. A finished
    # run has only one of these fields: `reasons`.
    args: Mapping[str, Any] = field(default_factory=dict)
    error_type: str | None = None  # the class of the last error; dead letters only
    traceback: str | None = None  # the traceback of the last error; dead letters only
    errors: int = 0  # number of errors that count toward a dead letter; errors that pass by themselves do not
    crashes: int = 0  # number of runs whose worker died
    resolution: str | None = None  # `retried` or `dropped`; None while a dead letter is open; dead letters only
    force: bool = False  # whether the job also runs below its threshold of new messages or facts
    reasons: tuple[str, ...] = ()  # why the job was requested
    urgency: str | None = None  # `live`, `dream`, or `urgent` when a reader waits for the job
    # Finished runs have these fields.
    details: Mapping[str, Any] = field(default_factory=dict)  # figures that the job kind reports, such as ``facts``
    model_calls: int = 0
    cost_usd: float = 0.0  # the cost of the run's model calls, US dollars


@dataclass(frozen=True, kw_only=True)
class QuarantinedMessage(Document):
    """A message that no worker can read. A worker has moved the message from its queue to the quarantine."""

    id: str  # the message's id in the quarantine; the message itself may have no id
    queue: str
    fault: str  # why no worker can read the message
    at: datetime  # the time when a worker moved the message
    headers: str  # JSON, at most 65,536 characters
    body: str  # at most 65,536 characters


@dataclass(frozen=True, kw_only=True)
class MendedCounter(Document):
    """A counter of a namespace's jobs that was wrong and is corrected."""

    namespace: str
    counter: str  # waiting, pending, running, or slots (jobs that count against the namespace's concurrency)
    old: int  # the wrong number
    new: int  # the correct number


@dataclass(frozen=True, kw_only=True)
class JobRepair(Document):
    """What :meth:`Nexus.repair_jobs` has corrected."""

    counters: tuple[MendedCounter, ...]
    entries_put_back: int  # number of entries that were missing in an index of jobs
    set_aside: tuple[str, ...] = ()  # keys of Redis that had a wrong type and were renamed


@dataclass(frozen=True, kw_only=True)
class DroppedJob(Document):
    """A job that :meth:`Nexus.drop_job` has dropped."""

    id: str
    kind: str
    status: Literal["dropped"] = "dropped"


@dataclass(frozen=True, kw_only=True)
class DroppedJobs(Document):
    """The number of jobs that :meth:`Nexus.drop_jobs` has dropped."""

    dropped: int


@dataclass(frozen=True, kw_only=True)
class RetriedJobs(Document):
    """The result of :meth:`Nexus.retry_jobs`."""

    retried: int  # number of dead letters whose jobs run again
    refused: Mapping[str, str]  # job id → why the job's dead letter stays open


@dataclass(frozen=True, kw_only=True)
class FinishedJobs(Document):
    """How many jobs have finished in a period, by kind and by the status with which they ended."""

    since: datetime
    until: datetime
    counts: Mapping[str, Mapping[str, int]]  # kind → status → number of jobs
    away: Mapping[str, str] = field(default_factory=dict)  # cells that are missing in the counts: cell → why

    def _left_out(self) -> Collection[str]:
        return () if self.away else ("away",)
