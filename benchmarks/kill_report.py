"""The kill loop's report on one system: how its jobs ended, and how soon a job ran again after a kill hit it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.kill_recovery import Kill, Recovery, Touch
from benchmarks.machine import table

LONGEST = 20.0  # seconds: the bound of a recovery on any machine
SAME_MACHINE_MEDIAN, SAME_MACHINE_LONGEST = 2.0, 5.0  # seconds, for a run that was cut off while a worker was ready
SHOWN = 5  # recoveries that took longer


@dataclass(frozen=True, kw_only=True)
class Result:
    """How the jobs of one system ended."""

    name: str
    jobs: int
    lost: int
    dead: int
    effects_twice: int
    touches: Mapping[str, Sequence[Touch]]
    kills: Sequence[Kill]
    recoveries: Sequence[Recovery]
    starts: Sequence[float]  # how long workers took to start
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
    print(table(["a kill …", "jobs", "run again, p50", "p95", "max", "hit again first"], list(_rows(result))))
    print("\nto start, workers took {} (p50), {} (p95), {} (max)".format(*_figures(sorted(result.starts))))
    print(_same_machine(result))
    late = sorted((one for one in result.recoveries if one.seconds > LONGEST), key=lambda one: -one.seconds)
    print(f"later than {LONGEST:.0f} s: {len(late)}, {sum(not one.deserted for one in late)} of them with a worker up")
    for one in sorted(late, key=lambda one: one.deserted)[:SHOWN]:
        print(_story(one, result))
    print(flush=True)


def _same_machine(result: Result) -> str:
    """The recoveries that the lock files bound: all workers of this benchmark share a machine and a ``NEXUS_HOME``."""
    found = sorted(one.seconds for one in result.recoveries if one.hits[-1].how == "cut off" and not one.deserted)
    if not found:
        return "no run was cut off while another worker was ready"
    p50, _, longest = _figures(found)
    bounds = f"bound {SAME_MACHINE_MEDIAN:.0f} s", f"bound {SAME_MACHINE_LONGEST:.0f} s"
    within = statistics.median(found) <= SAME_MACHINE_MEDIAN and found[-1] <= SAME_MACHINE_LONGEST
    return (
        f"same machine, another worker ready, run cut off: {len(found)}, p50 {p50} ({bounds[0]}), "
        f"max {longest} ({bounds[1]}): {'kept' if within else 'MISSED'}"
    )


def _rows(result: Result) -> Iterator[list[object]]:
    def row(title: str, found: Sequence[Recovery]) -> list[object]:
        seconds = sorted(one.seconds for one in found)
        return [title, len(found), *_figures(seconds), sum(len(one.hits) > 1 for one in found)]

    whole = result.recoveries
    yield row("cut the run off", [one for one in whole if one.hits[-1].how == "cut off"])
    yield row("lost the message", [one for one in whole if one.hits[-1].how == "message"])
    yield row("either", whole)
    yield row("either, a worker always up", [one for one in whole if not one.deserted])


def _figures(seconds: Sequence[float]) -> list[str]:
    if not seconds:
        return ["", "", ""]
    p95 = seconds[int(len(seconds) * 0.95)]
    return [f"{statistics.median(seconds):.1f} s", f"{p95:.1f} s", f"{seconds[-1]:.1f} s"]


def _story(one: Recovery, result: Result) -> str:
    """The events of a job, in seconds from the first kill that hit it, and by the clock to find them in the log."""
    start = one.hits[0].at
    events = [(hit.at, f"killed ({hit.how})") for hit in one.hits]
    events += [
        (touch.at, f"{'runs' if touch.started else 'waits'} in {touch.group}") for touch in result.touches[one.job]
    ]
    told = ", ".join(f"{at - start:.1f} {what}" for at, what in sorted(events))
    when = time.strftime("%H:%M:%S", time.gmtime(start))
    return f"  {one.seconds:.1f} s, {one.deserted:.1f} of them without a worker: job {one.job} from {when}: {told}"
