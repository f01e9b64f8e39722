"""Reconcile: enqueues again the jobs that rows in storage (Postgres) ask for and that Redis has lost.

Such a row is called a wanted row. One worker at a time does a round of reconcile, every 10 s.

A round reads each kind's newest 10,000 wanted rows, then the next 25,000 of the older rows. Redis keeps the cursor at
which the next round goes on, so that any worker can do the next round. In this way each of a million rows is read
within 10 minutes. For a row whose job has a claim (a record in Redis), a round computes one hash and sends one EXISTS
to Redis.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from celery import Celery
from redis.exceptions import LockError

from nexus_tasks.errors import NexusError, StorageUnavailable
from nexus_tasks.idempotency.claim import Claimed
from nexus_tasks.idempotency.claim_index import ClaimIndex
from nexus_tasks.idempotency.claims import answering
from nexus_tasks.idempotency.engine import JobEngine, engine_of
from nexus_tasks.idempotency.kind import Arguments, JobKind
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker.background import BackgroundStep

log = logging.getLogger(__name__)

# The lost claim of one of the newest rows is found within 20 s. The lock lasts 8 s after a round's last page, each
# worker tries to take the lock every 2 s, and a round takes about 2 s when each of its rows has a claim.
EVERY, TRY_EVERY = 8.0, 2.0
NEWEST = 10_000  # how many of the newest rows of a kind every round reads
FURTHER = 25_000  # how many older rows of a kind a round reads
PAGE = 500  # rows that are read in one transaction, and claimed in one script
LOCK = "reconciling"


class Reconciler:
    """Enqueues the jobs that wanted rows ask for and that have no claim."""

    def __init__(self, engine: JobEngine) -> None:
        self.engine, self.claims, self.storage = engine, engine.claims, engine.storage
        self._lock = self.claims.lock(LOCK, seconds=EVERY)
        self._cut_short = False

    def tick(self) -> int:
        """Do a round, unless one was done in the last 8 s or another worker does one. Returns how many jobs it made."""
        with answering():
            # The lock is not released, so that no worker begins a round until the lock expires.
            return self.round() if self._lock.acquire() else 0

    def round(self) -> int:
        """Enqueue lost jobs of the newest wanted rows of each kind, then of some older rows. Returns the jobs' number.

        Raises:
            StorageUnavailable: storage does not answer, or the claims belong to another storage.
            QueueUnavailable: Redis does not answer.
        """
        made = 0
        kinds = [kind for kind in list(self.engine.kinds().values()) if kind.outbox is not None]
        try:
            self.storage.verify()
            for wakeups in self.storage.release_ended_runs():
                self.engine.publisher.publish(wakeups)
            newest = {kind.name: self._newest(kind) for kind in kinds}
            for kind in kinds:
                since = newest[kind.name]
                made += 0 if since is None else sum(asked for _, asked in self._look(kind, since))
            for kind in kinds:
                made += self._look_further(kind, newest[kind.name])
        except StorageUnavailable as error:
            if error.outage:
                self.engine.breaker.trip(error)
            raise
        if made:
            log.info("Reconcile enqueued %d jobs that storage wanted.", made)
        return made

    def _newest(self, kind: JobKind) -> int | None:
        """The cursor behind which the kind's newest wanted rows are; ``None`` when the cursor cannot be found."""
        try:
            return self.storage.newest(kind, NEWEST)
        except NexusError as error:
            if not isinstance(error, StorageUnavailable) or error.outage:
                raise
            log.warning("The newest wanted rows of %s could not be found: %s", kind.name, error)
            return None
        except Exception:  # an error in the SQL of one kind must not stop the other kinds
            log.exception("The newest wanted rows of %s could not be found.", kind.name)
            return None

    def _look_further(self, kind: JobKind, newest: int | None) -> int:
        """Enqueue lost jobs of older rows, from the shared cursor on. After the last row, the cursor returns to 0.

        After a page that could not be read, the cursor stays.
        """
        if newest == 0:
            return 0  # there are no older rows
        last = float("inf") if newest is None else newest
        cursor, looked, made = self.claims.cursor(kind.name), 0, 0
        for reached, asked in self._look(kind, cursor if cursor < last else 0):
            cursor, made, looked = reached, made + asked, looked + PAGE
            if cursor >= last or looked >= FURTHER:
                break
        else:
            cursor = cursor if self._cut_short else 0
        self.claims.move_cursor(kind.name, cursor)
        return made

    def _look(self, kind: JobKind, cursor: int) -> Iterator[tuple[int, int]]:
        """Enqueue lost jobs of the rows behind a cursor. Yields each page's next cursor and number of jobs.

        Afterwards ``_cut_short`` says whether a page could not be read.
        """
        self._cut_short = True
        while True:
            try:
                page = self.storage.wanted(kind, cursor, PAGE)
                made = self._ask(kind, [row for _, row in page if row is not None])
            except NexusError as error:
                if not isinstance(error, StorageUnavailable) or error.outage:
                    raise
                log.warning("The wanted rows of %s behind %d could not be read: %s", kind.name, cursor, error)
                return
            except Exception:
                log.exception("The wanted rows of %s behind %d could not be asked for.", kind.name, cursor)
                return
            with suppress(LockError), answering():
                self._lock.reacquire()
            if page:
                cursor = page[-1][0]
                yield cursor, made
            if len(page) < PAGE:
                self._cut_short = False
                return

    def _ask(self, kind: JobKind, rows: Sequence[Request | Arguments]) -> int:
        scopes = [row.scope if isinstance(row, Request) else kind.scope_of(row) for row in rows]
        missing = [rows[i] for i in self.claims.missing(kind.name, scopes)]
        requests = [row if isinstance(row, Request) else kind.request_for(row) for row in missing]
        if kind.gathers:  # jobs of such a kind can be very many. A run takes siblings along that have no claim yet
            named = {request.namespace for request in requests}
            full = ClaimIndex(self.claims).full(named, self.engine.kinds().values())
            requests = [request for request in requests if request.namespace not in full]
        tickets = self.engine.publisher.enqueue([request.renewed() for request in requests])
        made = sum(ticket.outcome is Claimed.ENQUEUED for ticket in tickets)
        if made:
            self.claims.count({f"restored|{kind.name}": made})
        return made


class ReconcileStep(BackgroundStep):
    """Reconciles in every worker. It has a thread of its own, so that a slow database does not hold up the sweep."""

    thread_name = "nexus-reconcile"

    def work(self, app: Celery) -> None:
        """Try to do a round every 2 s until the worker ends. An error does not end the thread."""
        reconciler: Reconciler | None = None
        silent_until = 0.0
        while True:
            try:
                reconciler = reconciler or Reconciler(engine_of(app))
                reconciler.tick()
            except NexusError as error:
                # One line a minute while a server is away. The next round tries again.
                if time.monotonic() >= silent_until:
                    log.warning("Reconcile failed, it tries again: %s", error)
                    silent_until = time.monotonic() + 60
            except Exception:
                log.exception("Reconcile failed, it tries again.")
            if self.ends_within(TRY_EVERY):
                return
