"""What the kill loop says about one system: what became of its jobs, and how soon those that were hit ran again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.kill_recovery import Kill, Recovery, Touch
from benchmarks.machine import table

MEDIAN, LONGEST = 13.0, 20.0  # seconds: the bounds
SHOWN = 5  # recoveries that took longer


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of the jobs."""

    name: str
    jobs: int
    lost: int
    dead: int
    effects_twice: int
    touches: Mapping[str, Sequence[Touch]]
    kills: Sequence[Kill]
    recoveries: Sequence[Recovery]
    started: Mapping[int, float]  # workers, by process group
    seconds: float

    @property
    def run_twice(self) -> int:
        """Jobs that were started more than once."""
        return sum(sum(touch.started for touch in what) > 1 for what in self.touches.values())


def show(result: Result) -> None:
    """Print the tables of one system."""
    headings = ["jobs", "kills", "lost", "dead letters", "run twice", "effects twice", "seconds"]
    row: list[object] = [result.jobs, len(result.kills), result.lost, result.dead]
    print(f"\n{result.name}\n")
    print(table(headings, [[*row, result.run_twice, result.effects_twice, f"{result.seconds:.0f}"]]))
    print()
    print(table(["a kill →", "jobs", "run again, p50", "p95", "max", "hit again before"], list(_rows(result))))
    late = sorted((one for one in result.recoveries if one.seconds > LONGEST), key=lambda one: -one.seconds)
    print(f"\nfrom a worker's start to its first job: {_spread(_first_jobs(result))}; later than 20 s: {len(late)}")
    for one in late[:SHOWN]:
        print(_story(one, result))
    print(flush=True)


def _rows(result: Result) -> list[list[object]]:
    rows = []
    for title, how in (("cut the run off", "cut off"), ("lost the message", "message"), ("either", "")):
        found = [one for one in result.recoveries if one.hits[-1].how.startswith(how)]
        seconds = sorted(one.seconds for one in found)
        rows.append([title, len(found), *_figures(seconds), sum(len(one.hits) > 1 for one in found)])
    return rows


def _figures(seconds: Sequence[float]) -> list[str]:
    if not seconds:
        return ["", "", ""]
    p95 = seconds[int(len(seconds) * 0.95)]
    return [f"{statistics.median(seconds):.1f} s", f"{p95:.1f} s", f"{seconds[-1]:.1f} s"]


def _first_jobs(result: Result) -> list[float]:
    first: dict[int, float] = {}
    for what in result.touches.values():
        for touch in what:
            first[touch.group] = min(touch.at, first.get(touch.group, touch.at))
    return sorted(at - result.started[group] for group, at in first.items() if group in result.started)


def _spread(seconds: Sequence[float]) -> str:
    return "p50 {}, p95 {}, max {}".format(*_figures(seconds)) if seconds else "never"


def _story(one: Recovery, result: Result) -> str:
    """All that happened to a job, in seconds from the first kill that hit it, and by the clock for the log."""
    start = one.hits[0].at
    events = [(hit.at, f"killed ({hit.how})") for hit in one.hits]
    events += [
        (touch.at, f"{'runs' if touch.started else 'waits'} in {touch.group}") for touch in result.touches[one.job]
    ]
    told = ", ".join(f"{at - start:.1f} {what}" for at, what in sorted(events))
    return f"  {one.seconds:.1f} s: job {one.job} from {time.strftime('%H:%M:%S', time.gmtime(start))}: {told}"
