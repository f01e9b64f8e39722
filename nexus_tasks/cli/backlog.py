"""The work that is left in the namespaces of a wait: what runs, and what waits and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_tasks.cli import words
from nexus_tasks.types import PausedKind, RunningJob, WaitingJob

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The work that is left in the namespaces of a wait."""

    underived: int
    jobs: int
    pending: int
    running: int
    runs: tuple[RunningJob, ...]
    waits: tuple[WaitingJob, ...]
    waiting: int
    paused: tuple[PausedKind, ...]
    digests: int

    @property
    def empty(self) -> bool:
        """Whether no message is to be derived, no session is to be digested, and no job is left."""
        return not (self.underived or self.jobs or self.digests)

    @property
    def note(self) -> str:
        """What runs, and what waits and why: ``derive_memory runs for 9 s; digest_session waits until …``."""
        parts = [self._running] if self.running else []
        if self.pending:
            parts.append(f"{words.count(self.pending, 'job')} queued")
        if self.waiting:
            parts.append(self._waiting)
        if not parts and not self.empty:  # Postgres wants work that no claim stands for yet
            parts.append("waits for a worker to queue the work that is left")
        return "; ".join(parts)

    @property
    def _running(self) -> str:
        if not self.runs:
            return f"{words.count(self.running, 'job')} running"
        kinds = Counter(run.kind for run in self.runs)
        longest = max(run.for_seconds for run in self.runs)
        named = ", ".join(f"{number} {kind}" if number > 1 else kind for kind, number in kinds.items())
        return f"{named} {'runs' if self.running == 1 else 'run'} for {words.span(max(longest, 1))}"

    @property
    def _waiting(self) -> str:
        if not self.waits:
            return f"{words.count(self.waiting, 'job')} waiting"
        more = f" and {words.count(self.waiting - 1, 'more job')}" if self.waiting > 1 else ""
        why = words.wait(self.waits[0])
        return f"{self.waits[0].kind}{more}: {words.line(why)}"


def backlog_of(nexus: Nexus, namespaces: Sequence[str]) -> Backlog:
    """The work that is left in the namespaces, with at most 20 runs and waits of each."""
    found = [nexus.status(namespace, memories=False) for namespace in namespaces]
    spaces = [one.namespaces[0] for one in found]
    return Backlog(
        underived=sum(one.underived for one in spaces),
        jobs=sum(one.jobs.waiting + one.jobs.pending + one.jobs.running for one in spaces),
        pending=sum(one.jobs.pending for one in spaces),
        running=sum(one.jobs.running for one in spaces),
        runs=tuple(run for one in spaces for run in one.runs),
        waits=tuple(waiting for one in spaces for waiting in one.waits),
        waiting=sum(one.jobs.waiting for one in spaces),
        paused=found[0].paused if found else (),
        digests=sum(one.digests_wanted for one in spaces),
    )
