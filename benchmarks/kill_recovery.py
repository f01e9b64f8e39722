"""How long a job that a kill has hit took to run again.

A kill hits a job in one of two ways: it was *cut off* (the killed worker had begun it), or its *message* was lost on
the way (the worker had taken it from the queue, and not begun). The clock runs from the kill to the moment at which the
job runs again, its place in the queue and its turn in a process of its own included. A job that is hit again before it
has run has its clock set back: the second kill is another crash. How often that happened is counted.

Nothing recovers while no worker is up. On a machine where workers take long to start, kills may leave none for a while;
so each recovery also bears the seconds of it during which that was so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Kill(NamedTuple):
    """A worker's end."""

    at: float  # seconds since the epoch, as all times here
    group: int  # its process group


class Touch(NamedTuple):
    """What a worker did with a job: it ``started`` to run it, or has only begun its claim and lets it wait its turn."""

    at: float
    group: int
    started: bool


class Hit(NamedTuple):
    """A kill that a job suffered from: ``cut off``, or its ``message``."""

    at: float
    how: str


class Recovery(NamedTuple):
    """A job that ran again ``seconds`` after the last of ``hits``; in ``deserted`` of these no worker was up."""

    job: str
    hits: Sequence[Hit]
    seconds: float
    deserted: float


class Life(NamedTuple):
    """From when to when a worker took jobs."""

    ready: float
    end: float


def recoveries(
    touches: Mapping[str, Sequence[Touch]],
    kills: Sequence[Kill],
    lost: Iterable[tuple[str, float]],
    lives: Sequence[Life],
) -> list[Recovery]:
    """Every recovery of every job; ``lost`` are jobs whose message a kill has taken along, and when."""
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
    """The process group that had touched a job last at that time."""
    return next((touch.group for touch in reversed(touches) if touch.at <= at), None)


def _deserted(start: float, end: float, lives: Sequence[Life]) -> float:
    """Seconds between two moments at which no worker was up; ``lives`` are in order of their begin."""
    seconds, seen = 0.0, start
    for ready, over in lives:
        if ready >= end:
            break
        seconds += max(ready - seen, 0.0)
        seen = max(seen, over)
    return seconds + max(end - seen, 0.0)
