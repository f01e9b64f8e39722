"""A run: a worker's hold on a claim, and on those of the siblings it takes along."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.worker.heartbeat import heartbeat
from nexus_tasks.types import JobOutcome

# Crashes and unknown errors after which a job runs without siblings.
ALONE_FROM = 2


class Superseded(Exception):
    """The run lost its claim (a lease that ran out, a drop, a sibling that took it): it stops and changes nothing."""


class Wait(Exception):
    """The job cannot go on now, by nobody's fault: it is due again in ``seconds``, for a reason people can read."""

    def __init__(self, reason: str, seconds: float, detail: str = "") -> None:
        self.reason, self.seconds, self.detail = reason, seconds, detail
        super().__init__(f"{reason} ({seconds:.1f} s) {detail}")


def new_token() -> str:
    """A fencing token. Unique rather than counted: Redis counters do not survive a flush."""
    return uuid.uuid4().hex


@dataclass(kw_only=True)
class Run:
    """What a job's function gets beside its arguments. ``claims`` holds the lead first, then its siblings."""

    store: Claims
    lease: float
    claims: list[Claim]  # replaced, never changed in place: the heartbeat's thread reads it
    requests: list[Request]
    settle: Callable[[Sequence[Claim], JobOutcome], None]
    eager: bool = False
    delivery: str = ""  # the canvas delivery that started it, and is completed by whoever performs it
    lost: threading.Event = field(default_factory=threading.Event)

    @property
    def lead(self) -> Claim:
        """The claim this run was started for."""
        return self.claims[0]

    @property
    def flags(self) -> Flags:
        """The merged flags of every request that this run serves."""
        return self.lead.flags

    @property
    def isolated(self) -> bool:
        """Whether the job has failed twice, no one knows why: it runs without siblings then, and harms none."""
        return self.lead.crashes + self.lead.errors >= ALONE_FROM

    def check(self) -> None:
        """Raise :class:`Superseded` when the run has lost a claim; called before anything is committed."""
        if self.lost.is_set():
            raise Superseded

    def take(self, siblings: Sequence[Request], *, again: bool = False) -> list[Claim]:
        """Take siblings into this run (see :meth:`Claims.take`); returns those that came along.

        Raises:
            Superseded: a sibling's run took this one first.
        """
        taken = self.store.take(self.lead, siblings, lease=self.lease, again=again)
        if taken is None:
            raise Superseded
        asked = {self.store.key(request): request for request in siblings}
        self.claims = [*self.claims, *taken]
        self.requests = [*self.requests, *(asked[claim.key] for claim in taken)]
        heartbeat().hold(self, taken)
        return taken

    def part_done(self, claims: Sequence[Claim], outcome: JobOutcome) -> None:
        """End some of the run's claims now; whatever the run does next concerns only the rest."""
        keys = {claim.key for claim in claims}
        rest = [(c, r) for c, r in zip(self.claims, self.requests, strict=True) if c.key not in keys]
        self.claims, self.requests = [c for c, _ in rest], [r for _, r in rest]
        self.settle(claims, outcome)
