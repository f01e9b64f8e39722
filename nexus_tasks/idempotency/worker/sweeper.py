"""The sweep: every worker looks every two seconds for what got stuck; one at a time does the work."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError
from redis.exceptions import LockError

from nexus_tasks.errors import NexusError, QueueUnavailable, StorageUnavailable
from nexus_tasks.idempotency.claim import Claim, Claimed
from nexus_tasks.idempotency.claims import answering
from nexus_tasks.idempotency.engine import JobEngine, engine_of
from nexus_tasks.idempotency.worker.background import BackgroundStep
from nexus_tasks.idempotency.worker.reserved import report_reserved
from nexus_tasks.idempotency.worker.retry_policy import PROBE_EVERY
from nexus_tasks.idempotency.worker.run import new_token

log = logging.getLogger(__name__)

# Whatever is killed, a job runs again within 20 s. Its lease has at most 10 s to go. A sweeper that is killed too, in
# the very tick that would have seen it, keeps the others off for LOCK_SECONDS more; their next look is 2.4 s away at
# most. It makes the job due within JITTER, and looks again just then; should it be killed before, another one's look
# comes in 2.4: 10 + 2 + 2.4 + 2 + 2.4 = 18.8 s. A lost message is seen after GRACE, and sent at once: 14.4 s.
EVERY, GIVE_OR_TAKE = 2.0, 0.2
JITTER = 2.0
RECONCILE_EVERY = 10.0
GRACE, LONGEST_GRACE = 10.0, 600.0
AT_ONCE = 500  # claims per step of a tick
LOCK = "sweeping"
LOCK_SECONDS = 2.0  # it is taken anew after every step of a tick; each step is safe beside another sweeper's


class Sweeper:
    """Returns to the queue what a dead worker, a lost message or a flushed Redis left behind."""

    def __init__(self, engine: JobEngine) -> None:
        self.engine, self.claims = engine, engine.claims
        self.token = new_token()
        self._lock = self.claims.lock(LOCK, seconds=LOCK_SECONDS)
        self._answered: float | None = None  # when Redis last did, by its own clock; -inf while it does not
        self._hold_leases_until = 0.0
        self._reconciled_at = self._probed_at = float("-inf")
        self.next_tick_in = EVERY  # seconds after the last tick

    def tick(self) -> None:
        """One look at everything; does nothing while another worker's tick is under way."""
        self.next_tick_in = EVERY * random.uniform(1 - GIVE_OR_TAKE, 1 + GIVE_OR_TAKE)
        try:
            self._note_answer()
            if not self._has_lock():
                return
            try:
                for step in self._steps():
                    step()
                    if not self._has_lock():
                        break  # a step took long, and somebody else looks
            finally:
                self._unlock()
            self._answered = self.claims.now()
        except QueueUnavailable:
            self._answered = float("-inf")
            raise

    def _has_lock(self) -> bool:
        """Take the lock, or keep it for LOCK_SECONDS from now; ``False`` while another worker has it."""
        with answering():
            try:
                return self._lock.reacquire()
            except LockError:
                return bool(self._lock.acquire())

    def _unlock(self) -> None:
        with suppress(LockError), answering():  # a sweeper that stalled has lost it: the next one's lock stays
            self._lock.release()

    def _steps(self) -> Iterator[Callable[[], object]]:
        works = self.engine.breaker.closed()  # else no message is sent: workers begin nothing
        if works:
            yield self._due
        yield self._leases
        if works:
            queues = self.claims.queues()
            empty = self._empty(queues)
            for queue in queues:
                yield partial(self._lost, queue, empty=queue in empty)
        now = time.monotonic()
        if now - self._probed_at >= PROBE_EVERY and self.claims.paused():
            self._probed_at = now
            # In a thread of its own: a model that hangs must not keep crashed jobs waiting.
            yield threading.Thread(target=self.probe, name="nexus-probe", daemon=True).start
        if now - self._reconciled_at >= RECONCILE_EVERY:
            self._reconciled_at = now
            yield self.reconcile

    def reconcile(self) -> int:
        """Enqueue what storage wants and no claim stands for; returns how many jobs that made."""
        try:
            wanted = self.engine.storage.wanted(AT_ONCE)
        except StorageUnavailable:
            self.engine.breaker.trip()
            raise
        exist = self.claims.exist(wanted) if wanted else []
        missing = [request.renewed() for request, there in zip(wanted, exist, strict=True) if not there]
        made = sum(ticket.outcome is Claimed.ENQUEUED for ticket in self.engine.publisher.enqueue(missing))
        if made:
            log.info("Reconcile enqueued %d jobs that storage wanted.", made)
        return made

    def probe(self) -> None:
        """Lift the pause of every kind whose cause is gone."""
        for kind in self.claims.paused():
            try:
                self.engine.storage.probe(kind)
            except NexusError as error:
                log.warning("%s stays paused: %s", kind, error)
            else:
                self.resume(kind)

    def resume(self, kind: str) -> None:
        """Lift the pause of ``kind`` and wake what waited for it."""
        self.engine.publisher.publish(self.claims.resume(kind))

    def _note_answer(self) -> None:
        """After Redis was away nobody could renew: no lease is expired until one full lease has passed.

        By the time of Redis, which also shows that it, or the whole machine, stood still.
        """
        now, uptime, lease = self.claims.now(), self.claims.uptime(), self.engine.limits.lease
        away = self._answered is not None and now - self._answered > EVERY + lease / 2
        if away or uptime < lease:
            until = time.monotonic() + lease - (0 if away else uptime)
            self._hold_leases_until = max(self._hold_leases_until, until)
        self._answered = now

    def _due(self) -> None:
        enough = time.monotonic() + EVERY
        while wakeups := self.claims.sweep_due(AT_ONCE):
            sent = self.engine.publisher.publish(wakeups)
            if len(wakeups) < AT_ONCE or sent < len(wakeups) or time.monotonic() > enough:
                break

    def _leases(self) -> None:
        if time.monotonic() < self._hold_leases_until:
            return
        due_in = JITTER * random.random()
        returned, dead, wakeups = self.claims.sweep_leases(
            AT_ONCE,
            attempts=self.engine.limits.max_attempts,
            token=self.token,
            lease=self.engine.limits.lease,
            due_in=due_in,
        )
        if returned:
            self.next_tick_in = min(self.next_tick_in, due_in)
            log.warning("%d jobs lost their worker and go back to the queue.", returned)
        self.engine.publisher.publish(wakeups)
        self._bury(dead)

    def _lost(self, queue: str, *, empty: bool) -> None:
        dead, wakeups = self.claims.sweep_lost(
            queue,
            AT_ONCE,
            empty=empty,
            attempts=self.engine.limits.max_attempts,
            token=self.token,
            lease=self.engine.limits.lease,
            grace=GRACE,
            longest=LONGEST_GRACE,
        )
        if wakeups:
            log.warning("%d messages of queue %s were lost and are sent again.", len(wakeups), queue)
        self.engine.publisher.publish(wakeups)
        self._bury(dead)
        settling = self.claims.sweep_settle(queue, AT_ONCE, empty=empty, grace=GRACE, longest=LONGEST_GRACE)
        self.engine.publisher.publish(settling)

    def _empty(self, queues: Sequence[str]) -> set[str]:
        """Those of ``queues`` that hold no message; none of them while the broker does not answer."""
        empty = set()
        with self.engine.app.connection_for_read() as connection:
            try:
                for queue in queues:
                    declared = self.engine.app.amqp.queues.get(queue) or Queue(queue)
                    with connection.channel() as channel:
                        # Not passively: kombu takes a Redis list that is empty, or has a key prefix, for none at all.
                        if declared(channel).queue_declare().message_count == 0:
                            empty.add(queue)
            except (OperationalError, *connection.connection_errors, *connection.channel_errors) as error:
                log.warning("The broker does not say which queues are empty: %s", error)
        return empty

    def _bury(self, dead: Sequence[Claim]) -> None:
        for claim in dead:
            try:
                self.engine.storage.dead_letter(claim, None)
            except NexusError as error:
                # Postgres is away, for the others too. Their leases end, and the sweep comes by again.
                log.warning("%d dead letters could not be written: %s", len(dead), error)
                return
            except Exception:  # a letter that cannot be written must not keep the others from being
                log.exception("The dead letter of job %s (%s) could not be written.", claim.job_id, claim.kind)
                continue
            log.error("Job %s (%s) is a dead letter: its worker died every time.", claim.job_id, claim.kind)
            self.engine.publisher.publish(self.claims.finish([claim], ["dead"]))


class SweepStep(BackgroundStep):
    """Runs the sweep in every worker."""

    thread_name = "nexus-sweep"

    def work(self, app: Celery) -> None:
        """Tick until the worker ends, whatever fails."""
        sweeper: Sweeper | None = None
        silent_until = 0.0
        while True:
            try:
                sweeper = sweeper or _first_look(app)
                report_reserved(sweeper.claims)
                sweeper.tick()
            except NexusError as error:
                # One line a minute while something is away: the next tick tries again.
                if time.monotonic() >= silent_until:
                    log.warning("The sweep could not look: %s", error)
                    silent_until = time.monotonic() + 60
            except Exception:
                log.exception("The sweep failed; it goes on.")
            if self.ends_within(sweeper.next_tick_in if sweeper else EVERY):
                return


def _first_look(app: Celery) -> Sweeper:
    """The sweeper of a worker that starts. It lifts every pause: the worker may bring the remedy."""
    sweeper = Sweeper(engine_of(app))
    for kind in sweeper.engine.kinds():
        sweeper.resume(kind)
    return sweeper
