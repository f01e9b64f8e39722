"""How long a job that was hit by a kill took to run again.

A kill hits a job in one of two ways. Either the job was *cut off*: the killed worker had begun the job. Or the job's
*message* was lost: the worker had taken the message from the queue but had not begun the job. A recovery lasts from the
kill until the job runs again. It includes the job's wait in the queue and for a process. When a second kill hits the
job before it runs, the recovery is measured from the second kill, and both hits are counted.

No job recovers while no worker is ready. That takes long on a machine where workers start slowly. So each recovery also
has the number of its seconds without a ready worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Kill(NamedTuple):
    """A worker that was killed, and when."""

    at: float  # seconds since the epoch, as all times here
    group: int  # its process group


class Touch(NamedTuple):
    """A worker has begun a job: the job has ``started`` to run, or waits for a process."""

    at: float
    group: int
    started: bool


class Hit(NamedTuple):
    """A kill that hit a job: the job was ``cut off``, or its ``message`` was lost."""

    at: float
    how: str


class Recovery(NamedTuple):
    """A job that ran again ``seconds`` after the last of ``hits``. For ``deserted`` seconds no worker was ready."""

    job: str
    hits: Sequence[Hit]
    seconds: float
    deserted: float


class Life(NamedTuple):
    """When a worker was ready, and when it was killed."""

    ready: float
    end: float


def recoveries(
    touches: Mapping[str, Sequence[Touch]],
    kills: Sequence[Kill],
    lost: Iterable[tuple[str, float]],
    lives: Sequence[Life],
) -> list[Recovery]:
    """Every recovery of every job. ``lost`` has the jobs whose message was lost, each with the time of the kill."""
    losses: dict[str, list[float]] = {}
    for job, at in lost:
        losses.setdefault(job, []).append(at)
    return [
        found
        for job, what in touches.items()
        for found in _of_one(job, sorted(what), kills, losses.get(job, ()), sorted(lives))
    ]


def _of_one(
    job: str, touches: Sequence[Touch], kills: Sequence[Kill], losses: Sequence[float], lives: Sequence[Life]
) -> Iterator[Recovery]:
    cut = [Hit(at, "cut off") for at, group in kills if _holder(touches, at) == group]
    hits = sorted([*cut, *(Hit(at, "message") for at in losses)])
    before = float("-inf")
    for touch in touches:
        if touch.started:
            if since := [hit for hit in hits if before <= hit.at < touch.at]:
                hit = since[-1].at
                yield Recovery(job, since, touch.at - hit, _deserted(hit, touch.at, lives))
            before = touch.at


def _holder(touches: Sequence[Touch], at: float) -> int | None:
    """The process group of the last worker that had begun the job by the time ``at``."""
    return next((touch.group for touch in reversed(touches) if touch.at <= at), None)


def _deserted(start: float, end: float, lives: Sequence[Life]) -> float:
    """Seconds without a ready worker from ``start`` to ``end``; ``lives`` must be sorted by their beginnings."""
    seconds, seen = 0.0, start
    for ready, over in lives:
        if ready >= end:
            break
        seconds += max(ready - seen, 0.0)
        seen = max(seen, over)
    return seconds + max(end - seen, 0.0)
