"""The types that ``claims.py`` returns: the outcomes of requests, the claim in Redis, and the wake-ups to publish."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kombu.utils.json import loads as read_json

from nexus_tasks.idempotency.request import Flags
from nexus_tasks.types import Worker

log = logging.getLogger(__name__)

# Fields that `renew.lua` writes by itself when it makes a claim again.
_OF_THE_LEASE = frozenset(("state", "token", "lease_until", "open"))


_MOST = 1_000_000  # of a count, which another program may have written and Postgres must store


class Claimed(StrEnum):
    """What a request found in Redis."""

    ENQUEUED = "enqueued"  # there was no claim, so the request made a new job
    MERGED = "merged"  # a job has not started, and serves this request too
    RERUN = "rerun"  # a job runs, and one more run follows for this request
    RUNNING = "running"  # a job runs and serves this request too: its input cannot change, or `anew` is set
    DONE = "done"  # a job whose input cannot change has ended, and serves this request too


class Begun(StrEnum):
    """What a worker finds when a message wakes it."""

    RUN = "run"
    SUPERSEDED = "superseded"  # another live run has the claim
    STALE = "stale"  # the claim is done, or was dropped
    EARLY = "early"  # the claim waits


@dataclass(frozen=True, kw_only=True)
class Wakeup:
    """The message that wakes a worker for a claim. Losing it or receiving it twice does no harm.

    The wake-up of a canvas delivery has the delivery's id and its ``options`` (chord, links). When the runs that the
    delivery waits for have ended, it also has the ``outcome``: the status and the id of the job that did the work.
    """

    key: str
    job_id: str
    kind: str
    queue: str
    args: Mapping[str, Any]
    published_at: str
    namespace: str
    trace: Mapping[str, Any] = field(default_factory=dict)  # `root_id`, `parent_id` and `headers` of the message
    options: Mapping[str, Any] | None = None
    outcome: tuple[str, str] | None = None

    @classmethod
    def parse(cls, row: list[str]) -> Wakeup:
        """Read a wake-up from the list that ``to_pending`` or ``settlement`` in ``common.lua`` returns."""
        key, job_id, kind, queue, args, published_at, namespace, trace, *canvas = row
        read, traced = json.loads(args), json.loads(trace) if trace else {}
        if not isinstance(read, dict) or not isinstance(traced, dict):
            raise TypeError("Another program has written the arguments or the trace.")
        return cls(
            key=key,
            job_id=job_id,
            kind=kind,
            queue=queue,
            args=read,
            published_at=published_at,
            namespace=namespace,
            trace=traced,
            options=read_json(canvas[0]) if canvas else None,
            outcome=(canvas[1], canvas[2]) if canvas else None,
        )


@dataclass(frozen=True, kw_only=True)
class Messages:
    """The messages that the script ``claim.lua`` pushes itself for new jobs."""

    tag: str  # no other call has this text; the messages' delivery tags begin with it
    # by kind and queue: the key of the queue's Redis list, and the text of a message with slots
    templates: Mapping[tuple[str, str], tuple[str, str]]
    bodies: Sequence[str]  # for each request the body of its message in base64, or "" for no message


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """The answer to a request: its outcome, the id of the job that will do the work, and the time of the request."""

    outcome: Claimed
    job_id: str
    asked_at: float  # seconds since the epoch, by the Redis server's clock
    wakeup: Wakeup | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim (the record of a job), as it was read from Redis. Times are seconds since the epoch, by Redis' clock."""

    key: str
    job_id: str
    also: tuple[str, ...]  # ids of reruns that this job serves too; each id gets a run row
    rerun_id: str
    kind: str
    namespace: str
    queue: str
    scope: str
    args: Mapping[str, Any]
    state: str
    flags: Flags  # of the current run
    errors: int
    crashes: int
    retries: int
    failing_since: float | None
    enqueued_at: float
    started_at: float | None
    due_at: float | None
    wait_reason: str
    wait_detail: str
    token: str  # its first part names the process that holds the lease
    worker: Worker | None  # of the current run, or of the last one
    error: str  # type and text of the error for which the job is tried again; empty when the last run did not fail
    fields: Mapping[str, str] = field(repr=False, compare=False)  # all fields of the hash in Redis

    @classmethod
    def parse(cls, key: str, fields: Mapping[str, str]) -> Claim:
        """Read a claim from its hash in Redis."""
        read = fields.get
        return cls(
            key=key,
            job_id=fields["id"],
            also=tuple(filter(None, read("also", "").split(","))),
            rerun_id=read("rerun_id", ""),
            kind=fields["kind"],
            namespace=fields["namespace"],
            queue=fields["queue"],
            scope=fields["scope"],
            args=json.loads(fields["args"]),
            state=fields["state"],
            flags=_flags(fields, "run_"),
            errors=min(int(read("errors", 0)), _MOST),
            crashes=min(int(read("crashes", 0)), _MOST),
            retries=min(int(read("retries", 0)), _MOST),
            failing_since=_seconds(read("failing_since")),
            enqueued_at=_seconds(read("enqueued_at")) or 0.0,
            started_at=_seconds(read("started_at")),
            due_at=_seconds(read("due_at")),
            wait_reason=read("wait_reason", ""),
            wait_detail=read("wait_detail", ""),
            token=read("token", ""),
            worker=Worker.parse(read("worker", "")),
            error=read("error", ""),
            fields=fields,
        )

    @classmethod
    def read(cls, key: str, fields: Mapping[str, str]) -> Claim | None:
        """As :meth:`parse`. ``None`` for a hash that no release writes: some other program has written to Redis."""
        try:
            claim = cls.parse(key, fields)
            if isinstance(json.loads(claim.scope), dict) and isinstance(claim.args, dict):
                return claim
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
            pass
        log.warning("The claim %.200r is damaged and is left out. Delete it in Redis.", key)
        return None

    @property
    def asked(self) -> Flags:
        """The flags of the current run, or of the next run while the claim does not run."""
        return self.flags if self.state == "running" else _flags(self.fields, "")

    @property
    def remade(self) -> bool:
        """Whether ``begin`` made the claim from a message, because Redis had lost it with its counts of failures."""
        return "published_at" not in self.fields

    def as_json(self) -> str:
        """The fields from which ``renew`` makes the claim again when Redis was flushed during the run."""
        return json.dumps({name: text for name, text in self.fields.items() if name not in _OF_THE_LEASE})

    @property
    def attempts(self) -> int:
        """How many runs the job has had, the current one included."""
        return self.retries + self.crashes + 1


def log_fields(claim: Claim) -> dict[str, str]:
    """The fields that name the claim's job in a log line, for lines that another thread than the run's may log."""
    return {"job": claim.job_id, "kind": claim.kind, "namespace": claim.namespace}


def _flags(fields: Mapping[str, str], prefix: str) -> Flags:
    return Flags(
        force=fields.get(f"{prefix}force") == "1",
        reasons=tuple(sorted(filter(None, fields.get(f"{prefix}reasons", "").split(",")))),
        urgency=fields.get(f"{prefix}urgency", ""),
    )


def _seconds(milliseconds: str | None) -> float | None:
    return int(milliseconds) / 1000 if milliseconds else None
