"""Store conversations, and wait until all jobs for them are done."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nexus_tasks.cli import words
from nexus_tasks.cli.backlog import backlog_of
from nexus_tasks.cli.progress import Meter, explain_interrupt, meter
from nexus_tasks.errors import NexusError, NotFound
from nexus_tasks.types import JobInfo, Receipt

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus
    from nexus_tasks.integrations.importers import Conversation

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5  # seconds between two polls of the status
_MOST_DEAD_LETTERS = 1_000
_STORED_SO_FAR = "What is stored stays. The same command stores the rest, and no message twice."


@dataclass(frozen=True, kw_only=True)
class WaitResult:
    """The result of :func:`store_and_wait`: what was stored, and which work did not end well or in time."""

    receipt: Receipt
    dead: tuple[JobInfo, ...] = ()  # jobs that became dead letters during the wait
    underived: int = 0  # messages that were not derived when the wait ended
    late: bool = False  # whether the time was over before all jobs were done

    @property
    def done(self) -> bool:
        """Whether all jobs ended in time, and no job became a dead letter."""
        return not self.dead and not self.late


def store_and_wait(
    nexus: Nexus,
    conversations: Sequence[Conversation],
    *,
    end: bool,
    observe: bool | None = None,
    replace: bool = False,
    worker: AbstractContextManager[str] | None = None,
    timeout: float = 0.0,
) -> WaitResult:
    """Store each conversation as a session. With a ``worker``, also wait for the jobs of the namespaces.

    The wait ends when all messages are derived, no digest is wanted, and no job waits or runs. It also ends after
    ``timeout`` seconds.

    Args:
        nexus: the client.
        conversations: the sessions to store.
        end: end each session after its last message.
        observe: whether the sessions are observed. ``None`` changes nothing.
        replace: whether changed messages replace the stored ones.
        worker: a context manager that lets a worker run during the wait. Its value says what becomes of the jobs when
            Ctrl-C ends the wait. With ``None`` the call does not wait.
        timeout: the longest wait, seconds.

    Returns:
        What was stored, and how the wait ended.
    """
    before = _dead_letters(nexus, {one.namespace for one in conversations}) if worker else {}
    with meter("stored") as progress, explain_interrupt(lambda: _STORED_SO_FAR):
        receipt = _store(nexus, conversations, end=end, observe=observe, replace=replace, meter=progress)
    if worker is None:
        return WaitResult(receipt=receipt)
    with worker as fate, meter("derived") as progress, explain_interrupt(lambda: fate):
        return _wait(nexus, receipt, before, timeout=timeout, meter=progress)


def _store(
    nexus: Nexus, conversations: Sequence[Conversation], *, end: bool, observe: bool | None, replace: bool, meter: Meter
) -> Receipt:
    total = Receipt(namespaces=(), session_keys=(), messages=0, stored=0, duplicates=0, enqueued=0)
    for number, one in enumerate(conversations):
        meter.at(number, len(conversations), f"session {one.session_key}")
        try:
            stored = nexus.ingest(
                one.namespace, one.session_key, one.messages, end=end, observe=observe, replace=replace
            )
        except NexusError:
            if total.stored:
                meter.warn(f"{words.count(total.stored, 'message')} of earlier sessions stored. {_STORED_SO_FAR}")
            raise
        total = _sum(total, stored)
    meter.at(len(conversations), len(conversations))
    from nexus_tasks.storage import statistics

    if total.stored >= statistics.MANY and nexus.cells is None:  # in cells, upkeep comes within a minute
        statistics.analyze(nexus.deployment.database, ("memories", "sessions", "derivations", *statistics.BY_TRIGGERS))
    return total


def _sum(first: Receipt, second: Receipt) -> Receipt:
    return Receipt(
        namespaces=tuple(dict.fromkeys(first.namespaces + second.namespaces)),
        session_keys=tuple(dict.fromkeys(first.session_keys + second.session_keys)),
        messages=first.messages + second.messages,
        stored=first.stored + second.stored,
        duplicates=first.duplicates + second.duplicates,
        enqueued=first.enqueued + second.enqueued,
        buffered=first.buffered + second.buffered,
    )


def _dead_letters(nexus: Nexus, namespaces: Collection[str]) -> dict[str, JobInfo]:
    """The open dead letters of the namespaces, by job id. A namespace that does not exist yet has none."""
    found = dict[str, JobInfo]()
    for namespace in sorted(namespaces):
        with suppress(NotFound):
            letters = nexus.jobs(namespace=namespace, status="dead", limit=_MOST_DEAD_LETTERS)
            found |= {job.id: job for job in letters}
    return found


def _wait(nexus: Nexus, receipt: Receipt, known: Collection[str], *, timeout: float, meter: Meter) -> WaitResult:
    """Poll the namespaces until no work is left or time is up.

    ``known`` has the job ids of earlier dead letters. The result leaves them out.
    """
    deadline = time.monotonic() + timeout
    pause, total = _FIRST_PAUSE, receipt.stored
    warned: set[str] = set()
    while True:
        backlog = backlog_of(nexus, receipt.namespaces)
        for paused in backlog.paused:
            if backlog.jobs and paused.kind not in warned:
                meter.warn(f"{paused.kind} is paused: {words.line(paused.reason)}")
                warned.add(paused.kind)
        total = max(total, backlog.underived)
        meter.at(total - backlog.underived, total, backlog.note)
        if backlog.empty or time.monotonic() >= deadline:
            break
        # Other machines' workers do the jobs, and nothing tells this process when they end.
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    dead = [job for id, job in _dead_letters(nexus, receipt.namespaces).items() if id not in known]
    given_up = {json.loads(job.scope)["memory_id"] for job in dead if job.kind == "derive_memory"}
    derived = max(receipt.stored - backlog.underived - len(given_up), 0)
    return WaitResult(
        receipt=replace(receipt, derived=derived),
        dead=tuple(dead),
        underived=backlog.underived,
        late=not backlog.empty,
    )
