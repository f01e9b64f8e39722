"""A run: a worker's hold on the claim of a job (its record in Redis), and on the claims of jobs that it takes along.

Jobs that a run takes along are called siblings, for example the jobs of other messages of the same session.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.claim import Claim, Wakeup
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.kind import RUN_LIMIT
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.worker.heartbeat import Heartbeat
from nexus_tasks.types import JobOutcome

# From this many crashes and unknown errors on, a job runs without siblings. From this many crashes on, the job also
# gets its own process.
ISOLATED_FROM = 2


class Superseded(Exception):
    """The run has lost its claim: its lease ran out, or the claim was dropped or taken. The run must change nothing."""


class Wait(Exception):
    """The job cannot go on now, and nothing has failed. It is due again in ``seconds``.

    Example: ``raise Wait("no-paper", 9.0, "3 pages to go")``. ``nexus status`` shows the reason and the detail.
    """

    def __init__(self, reason: str, seconds: float, detail: str = "") -> None:
        self.reason, self.seconds, self.detail = reason, seconds, detail
        super().__init__(f"{reason} ({seconds:.1f} s) {detail}")

    def __reduce__(self) -> tuple[object, ...]:  # a prefork pool pickles the error of a message
        return Wait, (self.reason, self.seconds, self.detail)


def new_token(holder: str) -> str:
    """A fencing token of a run in the process ``holder``, whose id is the token's first part.

    The rest is random. A counter in Redis is not used, because a flush would reset it.
    """
    return f"{holder}-{uuid.uuid4().hex}"


@dataclass(kw_only=True)
class Run:
    """One run of a job. A handler gets it beside the arguments."""

    deployment: Any  # the job's nexus_tasks.deployment.Deployment; `idempotency/` only passes it on
    store: Claims
    heartbeat: Heartbeat
    lease: float  # seconds
    # The primary claim first. Each change makes a new list, because the heartbeat's thread reads the list.
    claims: list[Claim]
    requests: list[Request]  # the request of each claim in `claims`, in the same order
    settle: Callable[[Sequence[Claim], JobOutcome], None]  # ends the run of some claims with an outcome
    publish: Callable[[Sequence[Wakeup]], object]  # sends wake-ups
    company: str = ""  # the wait reason of siblings that may be taken along
    limit: float = RUN_LIMIT  # seconds; a longer run gives up its claims
    # Called with this run when it is over its limit; its claims then wait or end. The run is an argument, because a
    # function that refers to the run would keep its memory until the next full garbage collection.
    give_up: Callable[[Run], None] = lambda _run: None
    began: float = field(default_factory=time.monotonic)
    thread: int = field(default_factory=threading.get_ident)  # the id of the thread that performs the run
    own_process: bool = False  # a child of the fork server performs the run, and this process waits for the child
    eager: bool = False  # performed in the producer, without a worker
    # The time when the message that started the run was published: seconds since the epoch, by the clock of Redis.
    published_at: float = 0.0
    delivery: str = ""  # the canvas delivery that started the run; the worker of the run completes it
    took: Callable[[Sequence[Claim]], None] = lambda _claims: None  # called with siblings that the run has taken along
    lost: threading.Event = field(default_factory=threading.Event)
    given_up: bool = False  # the run was over its limit, and `give_up` ends its claims
    error: BaseException | None = None  # what the handler raised
    ends: dict[str, JobOutcome] = field(default_factory=dict)  # by claim key: outcomes of claims that left the run

    @property
    def primary(self) -> Claim:
        """The claim that this run was started for."""
        return self.claims[0]

    @property
    def flags(self) -> Flags:
        """The merged flags of all requests that this run serves."""
        return self.primary.flags

    @property
    def isolated(self) -> bool:
        """Whether the job has had two crashes or unknown errors. Then it runs alone, to spare its siblings."""
        return self.primary.crashes + self.primary.errors >= ISOLATED_FROM

    @property
    def over_limit(self) -> bool:
        """Whether the run has lasted longer than its limit."""
        return time.monotonic() - self.began > self.limit

    def check(self) -> None:
        """Raise :class:`Superseded` when the run has lost a claim. Call it before a commit.

        The leases are renewed here too, because the heartbeat notices a loss only with its next renewal. While Redis
        does not answer, the heartbeat alone decides.
        """
        if not self.lost.is_set():
            with suppress(QueueUnavailable):
                if self.store.renew(self.claims, lease=self.lease):
                    self.lost.set()
        if self.lost.is_set():
            raise Superseded

    def take(self, siblings: Sequence[Request], *, again: bool = False, despite_errors: bool = False) -> list[Claim]:
        """Take siblings (other messages of a session) into this run; see :meth:`Claims.take`. Returns the taken claims.

        Raises:
            Superseded: this run has lost its primary claim.
        """
        answer = self.store.take(
            self.primary, siblings, lease=self.lease, company=self.company, again=again, despite_errors=despite_errors
        )
        if answer is None:
            raise Superseded
        taken, wakeups = answer
        asked = {self.store.key(request): request for request in siblings}
        self.claims = [*self.claims, *taken]
        self.requests = [*self.requests, *(asked[claim.key] for claim in taken)]
        self.hold(taken)
        self.took(taken)
        self.publish(wakeups)
        return taken

    def hold(self, claims: Sequence[Claim]) -> None:
        """Have the heartbeat renew ``claims`` until they leave the run."""
        self.heartbeat.hold(claims, self._on_lost)

    def part_done(self, claims: Sequence[Claim], outcome: JobOutcome) -> None:
        """End the run for some of its claims now. The run goes on with the other claims."""
        self.leave(claims)
        self.ends.update((claim.key, replace(outcome, job_id=claim.job_id)) for claim in claims)
        self.settle(claims, outcome)

    def leave(self, claims: Sequence[Claim]) -> None:
        """Take claims out of the run. The caller moves them into their next state."""
        keys = {claim.key for claim in claims}
        rest = [(c, r) for c, r in zip(self.claims, self.requests, strict=True) if c.key not in keys]
        self.claims, self.requests = [c for c, _ in rest], [r for _, r in rest]
        self.heartbeat.let_go(claims)

    def _on_lost(self, claim: Claim) -> None:
        if claim in self.claims:  # otherwise the claim has left the run meanwhile
            self.lost.set()
