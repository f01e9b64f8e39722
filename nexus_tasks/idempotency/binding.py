"""What claims need from the rest: where they live, and the storage behind the jobs. Bound once, in ``tasks/``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nexus_tasks.errors import ConfigurationError
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.producer.wire_format import Template
from nexus_tasks.idempotency.request import Request
from nexus_tasks.types import JobOutcome


class Storage(Protocol):
    """The durable side of jobs."""

    def dead_letter(self, claim: Claim, error: BaseException | None) -> None:
        """Commit that ``claim`` gave up (``error`` is ``None`` when its worker died); again changes nothing."""
        ...

    def withdraw(self, claim: Claim) -> None:
        """Commit that nobody wants the work of ``claim`` any more, before the claim is dropped."""
        ...

    def is_dead(self, job_id: str) -> bool:
        """Whether an open dead letter of this job is committed."""
        ...

    def outcome(self, job_id: str, kind: str, scope: str, since: float) -> JobOutcome | None:
        """How the job ended: its own run, its dead letter, or else the latest run of the same work that has begun
        ``since`` (seconds since the epoch, of the Redis server).
        """
        ...

    def wanted(self, limit: int) -> Sequence[Request]:
        """Work that storage wants done, a page of at most ``limit``; each call goes on where the last one ended."""
        ...

    def cap(self, namespace: str) -> int:
        """How many runs the namespace may have at a time."""
        ...

    def answers(self) -> bool:
        """Whether storage can be reached now."""
        ...

    def probe(self, kind: str) -> None:
        """Check what made ``kind`` pause; raises while it lasts."""
        ...


@dataclass(frozen=True, kw_only=True)
class Binding:
    """One process's way to its claims and storage, with the settings that decide about runs."""

    claims: Claims
    heartbeat_claims: Claims  # a client of its own, with a socket timeout shorter than a third of a lease
    storage: Storage
    lease: float
    max_attempts: int
    retry_for: float
    templates: dict[str, Template | None] = field(default_factory=dict)  # of messages, by kind


_factory: Callable[[], Binding] | None = None
_load: Callable[[], None] | None = None
_bound: tuple[int, Binding] | None = None


def bind(factory: Callable[[], Binding], *, load: Callable[[], None] | None = None) -> None:
    """Set how a process gets its binding; called on first use, and again in a forked child.

    ``load`` loads what jobs need and children may share: libraries, but no thread and no connection.
    """
    global _factory, _load, _bound
    _factory, _load, _bound = factory, load, None


def preload() -> None:
    """Load what jobs need, in a process that is about to fork for them."""
    if _load:
        _load()


def binding() -> Binding:
    """This process's binding."""
    global _bound
    if _bound is None or _bound[0] != os.getpid():
        if _factory is None:
            raise ConfigurationError("No storage is bound to the jobs.", remedy="Import nexus_tasks.tasks first.")
        _bound = os.getpid(), _factory()
    return _bound[1]
