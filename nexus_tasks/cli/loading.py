"""Storing conversations, and waiting until everything they ask for is done."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nexus_tasks.cli.show import words
from nexus_tasks.cli.show.progress import Meter
from nexus_tasks.types import Receipt

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus
    from nexus_tasks.integrations.importers import Conversation

_FIRST_LOOK, _LONGEST_PAUSE = 0.05, 0.5
_MOST_LETTERS = 1_000


def store(nexus: Nexus, conversations: Sequence[Conversation], *, end: bool, meter: Meter) -> Receipt:
    """Store each conversation as a session, ended unless it is to stay open; returns what all of that did."""
    total = Receipt(namespaces=(), session_keys=(), messages=0, stored=0, duplicates=0, enqueued=0)
    for number, one in enumerate(conversations):
        meter.at(number, len(conversations), f"session {one.session_key}")
        total = _sum(total, nexus.ingest(one.namespace, one.session_key, one.messages, end=end))
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
        if self.paused:
            return f"{self.paused[0]['kind']} is paused: {words.line(self.paused[0]['reason'])}"
        soonest = f" ({words.wait(self.waits[0])})" if self.waits and len(self.waits) == self.jobs else ""
        return f"{words.count(self.jobs, 'job')} left{soonest}"


def letters(nexus: Nexus, namespaces: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The open dead letters of those namespaces that exist, by job id."""
    known = {one["namespace"] for one in nexus.namespaces()}
    return {
        job["id"]: job
        for namespace in namespaces
        if namespace in known
        for job in nexus.jobs(namespace=namespace, status="dead", limit=_MOST_LETTERS)
    }


def settle(nexus: Nexus, receipt: Receipt, known_dead: Sequence[str], *, timeout: float, meter: Meter) -> Settled:
    """Wait until nothing of the receipt's namespaces is underived, undigested or queued, or the time is up."""
    deadline = time.monotonic() + timeout
    pause, total = _FIRST_LOOK, receipt.stored
    while True:
        look = _look(nexus, receipt.namespaces)
        total = max(total, look.underived)
        meter.at(total - look.underived, total, look.note)
        if look.settled or time.monotonic() >= deadline:
            break
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    dead = [job for id, job in letters(nexus, receipt.namespaces).items() if id not in known_dead]
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
