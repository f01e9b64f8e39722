"""Asking every cell, and putting the answers together.

A list is read from each cell in pages, so that a listing of one page reads at most that many rows from each cell. When
a cell is away, a read returns the answers of the others, and says which cell is missing. A change is made in the cells
that answer, and then fails: calling it again makes it in the others.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import fields, replace
from itertools import islice
from typing import Any, TypeVar

from nexus_tasks import limits
from nexus_tasks.errors import (
    EmbeddedError,
    NamespaceMoving,
    NotFound,
    QueueUnavailable,
    StorageUnavailable,
    Transient,
)
from nexus_tasks.types import FinishedJobs, JobCounts, JobRepair, Listed, Spend, SpendReport, StatusReport

log = logging.getLogger(__name__)

_FIGURES = [one.name for one in fields(Spend) if one.name not in ("day", "purpose")]

T = TypeVar("T")
AWAY = (Transient, QueueUnavailable, EmbeddedError)


def ask(members: Mapping[str, T], call: Callable[[T], Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Call every cell at the same time. Returns the answers, and why a cell did not answer.

    Raises:
        NexusError: a cell refuses the call, or no cell answers.
    """
    answers, away = dict[str, Any](), dict[str, str]()
    with ThreadPoolExecutor(max_workers=len(members), thread_name_prefix="nexus-cells") as pool:
        # Each call gets the limit and the actor of this thread.
        running = {name: pool.submit(copy_context().run, call, member) for name, member in members.items()}
    for name, future in running.items():
        try:
            answers[name] = future.result()
        except AWAY as error:
            away[name] = error.message
            log.warning("The cell %s does not answer: %s", name, error.message)
    if not answers:
        raise StorageUnavailable(f"No cell answers. {'; '.join(f'{name}: {why}' for name, why in away.items())}")
    return answers, away


def change(members: Mapping[str, T], call: Callable[[T], Any]) -> dict[str, Any]:
    """Make a change in every cell. Returns the cells' answers.

    Raises:
        StorageUnavailable: a cell is away. The change is made in the others.
    """
    answers, away = ask(members, call)
    if away:
        done = ", ".join(sorted(answers))
        raise StorageUnavailable(
            f"Done in {done}, but not in {', '.join(sorted(away))}: {'; '.join(away.values())}",
            remedy="Call again when the cell is back; what is done stays done.",
        )
    return answers


def listed(
    members: Mapping[str, T],
    page: Callable[[T, int, int], Sequence[Any]],
    key: Callable[[Any], Any],
    *,
    limit: int,
    offset: int,
) -> Listed[Any]:
    """A page of the sorted lists of all cells, merged.

    Args:
        members: the cells.
        page: ``(cell, limit, offset)`` returns a page of one cell's list, which ``key`` sorts.
        key: what the lists are sorted by.
        limit: the largest number of rows.
        offset: the number of rows to leave out at the beginning.
    """
    size = max(min(limit + offset, limits.PAGE_ROWS), 1)
    first, away = ask(members, lambda member: page(member, size, 0))

    def rows(name: str) -> Iterator[Any]:
        found, read = first[name], 0
        while True:
            yield from found
            read += len(found)
            if len(found) < size:
                return
            found = page(members[name], size, read)

    merged = heapq.merge(*(rows(name) for name in first), key=key)
    return Listed(islice(merged, offset, offset + limit), away=away)


def one(members: Mapping[str, T], call: Callable[[T], Any]) -> Any:
    """The answer of the cell that finds what is asked for.

    Raises:
        NotFound: no cell finds it.
        NamespaceMoving: a cell finds it, and its namespace is moving to another cell.
        StorageUnavailable: no cell that answers finds it, and another one is away.
    """
    missing: NotFound | None = None
    away = dict[str, str]()
    for name, member in members.items():
        try:
            return call(member)
        except NotFound as error:
            missing = error
        except NamespaceMoving:  # this cell has it
            raise
        except AWAY as error:
            away[name] = error.message
    if away or missing is None:
        raise StorageUnavailable(
            f"No cell that answers has it, and {', '.join(sorted(away))} may have it: {'; '.join(away.values())}"
        )
    raise missing


# --- putting documents together ---------------------------------------------------------------------------------------
def status(answers: Mapping[str, StatusReport], away: Mapping[str, str], limit: int) -> StatusReport:
    """One report of all cells. A paused kind, and a worker with held threads, is named once per cell."""
    reports = list(answers.values())
    every = [found for report in reports for found in report.namespaces]
    busiest = sorted(every, key=lambda found: (-_jobs(found.jobs), found.namespace))
    shown = every if len(every) <= limit else busiest[:limit]
    return StatusReport(
        namespaces=tuple(sorted(shown, key=lambda found: found.namespace)),
        left_out=sum(report.left_out for report in reports) + len(every) - len(shown),
        jobs=JobCounts(
            **{
                state: sum(getattr(report.jobs, state) for report in reports)
                for state in ("waiting", "pending", "running", "dead")
            }
        ),
        paused=tuple(paused for report in reports for paused in report.paused),
        held_threads=tuple(held for report in reports for held in report.held_threads),
        quarantined=sum(report.quarantined for report in reports),
        away=away,
    )


def _jobs(counts: JobCounts) -> int:
    return counts.waiting + counts.pending + counts.running + counts.dead


def finished(answers: Mapping[str, FinishedJobs], away: Mapping[str, str]) -> FinishedJobs:
    """The sums of all cells."""
    reports = list(answers.values())
    counts = dict[str, Counter[str]]()
    for report in reports:
        for kind, by_status in report.counts.items():
            counts.setdefault(kind, Counter()).update(by_status)
    return FinishedJobs(since=reports[0].since, until=reports[0].until, counts=counts, away=away)


def spend(answers: Mapping[str, SpendReport], away: Mapping[str, str]) -> SpendReport:
    """The sums of all cells."""
    reports = list(answers.values())
    sums = dict[tuple[str, str], Spend]()
    for one in (entry for report in reports for entry in report.entries):
        known = sums.get((one.day, one.purpose))
        figures = {name: getattr(one, name) + getattr(known, name, 0) for name in _FIGURES}
        sums[one.day, one.purpose] = replace(one, **figures)
    entries = tuple(sums[key] for key in sorted(sums))
    total = sum(report.cost_usd for report in reports)
    return SpendReport(
        namespace=None,
        since=min(report.since for report in reports),
        until=max(report.until for report in reports),
        entries=entries,
        cost_usd=total,
        away=away,
    )


def repaired(answers: Mapping[str, JobRepair]) -> JobRepair:
    """What was corrected in all cells."""
    return JobRepair(
        counters=tuple(counter for report in answers.values() for counter in report.counters),
        entries_put_back=sum(report.entries_put_back for report in answers.values()),
        set_aside=tuple(key for report in answers.values() for key in report.set_aside),
    )
