"""How long a job that was hit by a kill took to run again.

A kill hits a job in one of two ways. The job was *cut off*: the killed worker had begun it. Or its *message* was lost:
the worker had taken it from the queue and not begun the job. The recovery lasts from the kill to the moment at which
the job runs again, including its wait in the queue and for a process of its own. When a job is hit again before it
runs, its recovery starts anew, because the second kill is another crash. The hits are counted.

No job recovers while no worker is ready. On a machine where workers take long to start, that may last a while. So each
recovery also has the number of its seconds without a ready worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Kill(NamedTuple):
    """A worker that was killed, and when."""

    at: float  # seconds since the epoch, as all times here
    group: int  # its process group


class Touch(NamedTuple):
    """A worker has begun a job: it ``started`` to run it, or lets it wait for a process of its own."""

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
    """The time from ready to killed of a worker."""

    ready: float
    end: float


def recoveries(
    touches: Mapping[str, Sequence[Touch]],
    kills: Sequence[Kill],
    lost: Iterable[tuple[str, float]],
    lives: Sequence[Life],
) -> list[Recovery]:
    """Every recovery of every job. ``lost``: the jobs whose message a kill has lost, and when."""
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
    """The process group of the worker that had begun a job last at that time."""
    return next((touch.group for touch in reversed(touches) if touch.at <= at), None)


def _deserted(start: float, end: float, lives: Sequence[Life]) -> float:
    """Seconds between two moments at which no worker was ready; ``lives`` are in the order of their beginnings."""
    seconds, seen = 0.0, start
    for ready, over in lives:
        if ready >= end:
            break
        seconds += max(ready - seen, 0.0)
        seen = max(seen, over)
    return seconds + max(end - seen, 0.0)
