"""Jobs: the outcome of one job, and the records of queued jobs, dead letters and finished runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from nexus_tasks.types.document import Document
from nexus_tasks.types.names import Status

# A queued job waits, is pending or runs. A dead letter is dead, retried or dropped. A run has ended with a `Status`.
JOB_STATUSES: tuple[str, ...] = tuple(dict.fromkeys(("waiting", "pending", "running", *get_args(Status), "retried")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker(Document):
    """The process that runs a job, or ran it last: the name of its Celery worker, its host and its process id.

    ``node`` is empty when the job ran in the producer's process (``task_always_eager``, ``apply()``).
    """

    node: str
    host: str
    pid: int

    @classmethod
    def of(cls, known: Mapping[str, Any] | None) -> Worker | None:
        """From :meth:`to_dict`; ``None`` when no worker has begun the job, or a worker of an earlier release has."""
        return cls(node=known["node"], host=known["host"], pid=known["pid"]) if known else None

    @classmethod
    def parse(cls, text: str) -> Worker | None:
        """From a claim's field."""
        return cls.of(json.loads(text) if text else None)

    def as_json(self) -> str:
        """The text of a claim's field."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        return f"{self.node or self.host} (process {self.pid})"


@dataclass(frozen=True, kw_only=True)
class JobOutcome(Document):
    """How a job ended."""

    status: Status
    job_id: str = ""  # of the job that did the work
    reasons: tuple[str, ...] = ()  # why it was asked for
    details: Mapping[str, Any] = field(default_factory=dict)  # figures that the job kind reports, such as ``facts``


_ASKED = ("force", "reasons", "urgency")
# By source, the fields that not every source has. A job in the queue is waiting, pending or running.
_FIELDS_OF = {
    "queue": frozenset({"reason", "detail", "error", "args", "errors", "crashes", *_ASKED}),
    "dead_letters": frozenset({"error", "args", "error_type", "traceback", "errors", "crashes", "resolution", *_ASKED}),
    "runs": frozenset({"reasons", "details", "model_calls", "cost_usd"}),
}
_FIELDS_OF_SOME = frozenset().union(*_FIELDS_OF.values())


@dataclass(frozen=True, kw_only=True)
class JobInfo(Document):
    """A job: queued or running, a dead letter, or a finished run (``source`` says which)."""

    source: Literal["queue", "dead_letters", "runs"]  # left out of ``to_dict()``
    id: str
    namespace: str
    kind: str
    scope: str  # JSON: the arguments that two requests for the same work share
    # A queued job: waiting, pending or running. A dead letter: dead, retried or dropped. A run: JobOutcome.status.
    status: str
    attempts: int  # runs so far, including the present run
    reason: str | None = None  # of a waiting job: why it waits
    detail: str | None = None  # of a waiting job: more about the reason, such as "312 of 512 tokens"
    error: str | None = None  # of a queued job that has failed, or a dead letter: the last error
    worker: Worker | None = None  # that runs the job, or ran it last
    queued_at: datetime | None  # of a dead letter: the first failure
    started_at: datetime | None
    finished_at: datetime | None  # of a dead letter: the last failure

    def _left_out(self) -> Collection[str]:
        return {"source"} | (_FIELDS_OF_SOME - _FIELDS_OF[self.source])


@dataclass(frozen=True, kw_only=True)
class JobDetails(JobInfo):
    """Everything that is known of a job."""

    args: Mapping[str, Any] = field(default_factory=dict)  # of a queued job or a dead letter: its arguments
    error_type: str | None = None  # of a dead letter: the last error's class
    traceback: str | None = None  # of a dead letter
    errors: int = 0  # of a queued job or a dead letter: runs that raised
    crashes: int = 0  # of a queued job or a dead letter: runs whose worker died
    resolution: str | None = None  # of a dead letter: retried or dropped; None while it is open
    force: bool = False  # of a queued job or a dead letter: whether it runs below its threshold too
    reasons: tuple[str, ...] = ()  # why it was asked for
    urgency: str | None = None  # of a queued job or a dead letter: live or dream
    details: Mapping[str, Any] = field(default_factory=dict)  # of a run: figures that the job kind reports
    model_calls: int = 0  # of a run
    cost_usd: float = 0.0  # of a run: what its model calls cost, US dollars


@dataclass(frozen=True, kw_only=True)
class QuarantinedMessage(Document):
    """A message that no worker can read. A worker has moved it from its queue to the quarantine."""

    id: str  # in the quarantine; the message itself may have none
    queue: str
    fault: str  # why it cannot be read
    at: datetime  # when it was moved
    headers: str  # JSON, at most 65,536 characters
    body: str  # at most 65,536 characters


@dataclass(frozen=True, kw_only=True)
class MendedCounter(Document):
    """A counter of a namespace's jobs that was wrong."""

    namespace: str
    counter: str  # waiting, pending, running or slots
    old: int
    new: int


@dataclass(frozen=True, kw_only=True)
class JobRepair(Document):
    """What :meth:`Nexus.repair_jobs` has mended."""

    counters: tuple[MendedCounter, ...]
    entries_put_back: int  # entries of jobs that an index had lost


@dataclass(frozen=True, kw_only=True)
class DroppedJob(Document):
    """A job that :meth:`Nexus.drop_job` has dropped."""

    id: str
    kind: str
    status: Literal["dropped"] = "dropped"


@dataclass(frozen=True, kw_only=True)
class DroppedJobs(Document):
    """What :meth:`Nexus.drop_jobs` has dropped."""

    dropped: int


@dataclass(frozen=True, kw_only=True)
class RetriedJobs(Document):
    """What :meth:`Nexus.retry_jobs` has done."""

    retried: int
    refused: Mapping[str, str]  # job id -> why its dead letter stays open


@dataclass(frozen=True, kw_only=True)
class FinishedJobs(Document):
    """How many jobs have finished in a time, by kind and by how they ended."""

    since: datetime
    until: datetime
    counts: Mapping[str, Mapping[str, int]]  # kind -> status -> jobs
