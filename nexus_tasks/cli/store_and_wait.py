"""Storing conversations, and waiting until everything they ask for is done."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nexus_tasks.cli.show import words
from nexus_tasks.cli.show.progress import Meter, meter
from nexus_tasks.types import Receipt

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus
    from nexus_tasks.integrations.importers import Conversation

_FIRST_LOOK, _LONGEST_PAUSE = 0.05, 0.5
_MOST_LETTERS = 1_000


@dataclass(frozen=True, kw_only=True)
class Settled:
    """How a wait ended. ``dead`` are the jobs that gave up meanwhile; ``left`` messages are not derived in time."""

    receipt: Receipt
    dead: tuple[dict[str, Any], ...] = ()
    left: int = 0
    late: bool = False

    @property
    def well(self) -> bool:
        """Whether everything is done, and nothing gave up."""
        return not self.dead and not self.late


def load(
    nexus: Nexus,
    conversations: Sequence[Conversation],
    *,
    end: bool,
    observe: bool | None = None,
    worker: AbstractContextManager[None] | None = None,
    timeout: float = 0.0,
) -> Settled:
    """Store each conversation as a session, ended unless it is to stay open. With a ``worker``, wait while it runs.

    ``observe`` is whether the sessions are observed; ``None`` leaves that as it is.

    The wait is over when nothing of the conversations' namespaces is underived, undigested or queued, or after
    ``timeout`` seconds.
    """
    before = _letters(nexus, {one.namespace for one in conversations}) if worker else {}
    with meter("stored") as progress:
        receipt = _store(nexus, conversations, end=end, observe=observe, meter=progress)
    if worker is None:
        return Settled(receipt=receipt)
    with worker, meter("derived") as progress:
        return _settle(nexus, receipt, before, timeout=timeout, meter=progress)


def _store(
    nexus: Nexus, conversations: Sequence[Conversation], *, end: bool, observe: bool | None, meter: Meter
) -> Receipt:
    total = Receipt(namespaces=(), session_keys=(), messages=0, stored=0, duplicates=0, enqueued=0)
    for number, one in enumerate(conversations):
        meter.at(number, len(conversations), f"session {one.session_key}")
        total = _sum(total, nexus.ingest(one.namespace, one.session_key, one.messages, end=end, observe=observe))
    meter.at(len(conversations), len(conversations))
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


def _letters(nexus: Nexus, namespaces: Collection[str]) -> dict[str, dict[str, Any]]:
    """The open dead letters of those namespaces that exist, by job id."""
    known = {one["namespace"] for one in nexus.namespaces()}
    return {
        job["id"]: job
        for namespace in sorted(known.intersection(namespaces))
        for job in nexus.jobs(namespace=namespace, status="dead", limit=_MOST_LETTERS)
    }


@dataclass(frozen=True)
class _Look:
    underived: int
    jobs: int
    waits: tuple[dict[str, Any], ...]
    paused: tuple[dict[str, Any], ...]
    digests: int

    @property
    def settled(self) -> bool:
        return not (self.underived or self.jobs or self.digests)

    @property
    def note(self) -> str:
        soonest = f" ({words.wait(self.waits[0])})" if self.waits and len(self.waits) == self.jobs else ""
        return f"{words.count(self.jobs, 'job')} left{soonest}"


def _settle(nexus: Nexus, receipt: Receipt, known: Collection[str], *, timeout: float, meter: Meter) -> Settled:
    deadline = time.monotonic() + timeout
    pause, total = _FIRST_LOOK, receipt.stored
    warned: set[str] = set()
    while True:
        look = _look(nexus, receipt.namespaces)
        for paused in look.paused:
            if look.jobs and paused["kind"] not in warned:
                meter.warn(f"{paused['kind']} is paused: {words.line(paused['reason'])}")
                warned.add(paused["kind"])
        total = max(total, look.underived)
        meter.at(total - look.underived, total, look.note)
        if look.settled or time.monotonic() >= deadline:
            break
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    dead = [job for id, job in _letters(nexus, receipt.namespaces).items() if id not in known]
    lost = {json.loads(job["scope"])["memory_id"] for job in dead if job["kind"] == "derive_memory"}
    derived = max(receipt.stored - look.underived - len(lost), 0)
    return Settled(
        receipt=replace(receipt, derived=derived), dead=tuple(dead), left=look.underived, late=not look.settled
    )


def _look(nexus: Nexus, namespaces: Sequence[str]) -> _Look:
    found = [nexus.status(namespace) for namespace in namespaces]
    spaces = [one["namespaces"][0] for one in found]
    return _Look(
        underived=sum(one["underived"] for one in spaces),
        jobs=sum(one["jobs"][state] for one in spaces for state in ("waiting", "pending", "running")),
        waits=tuple(waiting for one in spaces for waiting in one["waits"]),
        paused=tuple(found[0]["paused"]) if found else (),
        digests=sum(one["digests_wanted"] for one in spaces),
    )
