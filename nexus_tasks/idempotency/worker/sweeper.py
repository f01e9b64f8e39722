"""The sweep: every 2 s it queues the jobs of dead workers again, publishes due jobs and sends lost messages again.

The sweep works on claims, the records of jobs in Redis. Every worker has a sweeper. A lock in Redis lets one sweeper
work at a time. ``orphans.py`` has the steps for the jobs of dead workers and for due jobs.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError
from redis.exceptions import LockError

from nexus_tasks.errors import DamagedKey, NexusError, QueueUnavailable
from nexus_tasks.idempotency.claims import answering
from nexus_tasks.idempotency.engine import JobEngine, engine_of
from nexus_tasks.idempotency.key_types import check_alone
from nexus_tasks.idempotency.repair import CHECK_EVERY, check, log_mended, repair
from nexus_tasks.idempotency.worker.background import BackgroundStep
from nexus_tasks.idempotency.worker.orphans import AT_ONCE, give_back, publish_due, return_orphans
from nexus_tasks.idempotency.worker.reserved import report_reserved
from nexus_tasks.idempotency.worker.retry_policy import PROBE_EVERY

log = logging.getLogger(__name__)

# After a process is killed, another worker of the same machine publishes the jobs of the killed process again, because
# it sees the death within 0.5 s (LOOK_EVERY). Workers of other machines must wait until the lease of each job has
# ended. They run the job again within 20 s of the kill. The worst case is 18.8 s, the sum of five times:
#   10 s until the lease ends
#    2 s (LOCK_SECONDS) during which a sweeper that was killed in a tick still has the lock
#  2.4 s until the next tick, which takes the claim from the dead run
#    2 s (JITTER) until the job is due
#  2.4 s until one more tick, if the sweeper of the previous tick was killed too
# A lost message is sent again after at most 14.4 s: 10 s (GRACE), 2 s for the lock and 2.4 s until the next tick. A
# message that a killed process of this machine had received is sent again within 3.5 s: REPORTED and LOOK_EVERY.
EVERY, GIVE_OR_TAKE = 2.0, 0.2
JITTER = 2.0  # seconds; a job that is queued again is due after a random part of this time
LOOK_EVERY = 0.5  # seconds between two searches for dead processes of this machine; a search reads a folder
GRACE, LONGEST_GRACE = 10.0, 600.0
REPORTED = 3.0  # seconds within which every living worker has reported the messages that it has received and not begun
MEND_EVERY = 60.0  # seconds between two repairs after a key of a wrong type was met
LINES_AT_ONCE = 100  # namespaces per tick
SET_BACK = 10_000  # after the clock of Redis was set back: how many times per index are corrected at the most
LOCK = "sweeping"
LOCK_SECONDS = 2.0  # renewed after every step of a tick; two sweepers at once do no harm


class Sweeper:
    """Returns jobs to the queue after a worker died, a message was lost or Redis was flushed."""

    def __init__(self, engine: JobEngine) -> None:
        self.engine, self.claims = engine, engine.claims
        self._lock = self.claims.lock(LOCK, seconds=LOCK_SECONDS)
        self._answered: float | None = None  # when Redis last answered, by its clock; -inf when it did not
        self._hold_leases_until = 0.0
        self._probed_at = self._checked_at = float("-inf")
        self._resend_at: list[float] = []  # when to send again what a dead process had received, by time.monotonic()
        self.next_tick_in = EVERY  # seconds after the last tick

    def look_for_dead(self) -> None:
        """Give back the claims of processes of this machine that have ended, and the messages that they had received.

        This method needs no lock. It asks Redis only after it has found such a process.
        """
        try:
            now = time.monotonic()
            for holder in self.engine.holder.dead():
                give_back(self.engine, holder)
                self._resend_at = [now, now + REPORTED]
            if self._resend_at and now >= self._resend_at[0] and self.engine.breaker.closed():
                for step in self._lost_of_each_queue(age=REPORTED):
                    step()
                del self._resend_at[0]
        except QueueUnavailable:
            self._answered = float("-inf")
            raise

    def tick(self) -> None:
        """Do all steps of the sweep once. Does nothing while another worker's tick is under way."""
        self.next_tick_in = EVERY * random.uniform(1 - GIVE_OR_TAKE, 1 + GIVE_OR_TAKE)
        try:
            self.outlive_damage(self._note_answer)
            if not self._has_lock():
                return
            try:
                for step in self._steps():
                    self.outlive_damage(step)
                    if not self._has_lock():
                        break  # a step took longer than the lock, and another worker sweeps
            finally:
                self._unlock()
            self._answered = self.claims.now()
        except DamagedKey:
            self._mend_soon()
            raise
        except QueueUnavailable:
            self._answered = float("-inf")
            raise

    def outlive_damage(self, step: Callable[[], object]) -> None:
        """Do a step. When it meets a key of a wrong type, let the other steps go on and a repair begin."""
        try:
            step()
        except DamagedKey as error:
            log.warning("A step of the sweep failed, the others go on: %s", error)
            self._mend_soon()

    def _mended(self) -> None:
        """Log the counters that scripts have set right, and correct them by a repair."""
        if log_mended(self.claims):
            self._mend_soon()

    def _mend_soon(self) -> None:
        # In a thread of its own, because a repair reads every key and must not hold up the sweep. The lock is left to
        # expire, so that at most one repair a minute begins.
        if self.claims.lock("repairing", seconds=MEND_EVERY).acquire():
            threading.Thread(target=self._mend, name="nexus-repair", daemon=True).start()

    def _mend(self) -> None:
        try:
            repair(self.claims)
        except QueueUnavailable as error:
            log.warning("The records of jobs could not be repaired: %s", error)

    def _has_lock(self) -> bool:
        """Take the lock, or keep it for LOCK_SECONDS from now; ``False`` while another worker has it."""
        with answering():
            try:
                return self._lock.reacquire()
            except LockError:
                return bool(self._lock.acquire())

    def _unlock(self) -> None:
        # A sweeper that stalled has lost the lock. When another sweeper has the lock now, `release` raises an error.
        with suppress(LockError), answering():
            self._lock.release()

    def _steps(self) -> Iterator[Callable[[], object]]:
        works = self.engine.breaker.closed()  # otherwise no message is sent, because workers begin no job
        if works:
            yield self._half_resumed
            yield self.wake_versions
            yield self._due
        yield self._leases
        if works:
            yield self._lines
        now = time.monotonic()
        if now - self._checked_at >= CHECK_EVERY:
            self._checked_at = now
            yield partial(check, self.claims)
            yield self._mended
            yield partial(self.claims.note_pauses, list(self.engine.kinds()))
            yield partial(check_alone, self.claims)
        if now - self._probed_at >= PROBE_EVERY:
            yield self._probe_paused
        if works:
            yield from self._lost_of_each_queue()

    def _probe_paused(self) -> None:
        if self.claims.paused():
            self._probed_at = time.monotonic()
            # In a thread of its own, because a probe of a model may hang and must not hold up the sweep.
            threading.Thread(target=self.probe_in_background, name="nexus-probe", daemon=True).start()

    def probe_in_background(self) -> None:
        """Call :meth:`probe`, and log an outage of Redis. The next probe, a minute later, may then lift the pauses."""
        try:
            self.probe()
        except QueueUnavailable as error:
            log.warning("The causes of the pauses could not be probed: %s", error)

    def probe(self) -> None:
        """Lift each pause whose cause is gone."""
        for kind in self.claims.paused():
            try:
                self.engine.storage.probe(kind)
            except NexusError as error:
                log.warning("%s stays paused: %s", kind, error)
            except Exception:  # of an application's probe; the other kinds are probed too
                log.exception("%s stays paused, its probe failed.", kind)
            else:
                self.resume(kind)

    def resume(self, kind: str) -> None:
        """Lift the pause of ``kind``, and wake the claims that waited for its end."""
        self.engine.publisher.publish(self.claims.resume(kind))

    def _note_answer(self) -> None:
        """After an outage of Redis, take no claim for its ended lease until the length of a lease has passed.

        No process could renew its leases during the outage. The clock of the Redis server shows how long the outage
        was, because the clock goes on while the Redis process or this whole machine is suspended.
        """
        uptime, lease = self.claims.uptime(), self.engine.limits.lease
        now, back = self.claims.sweep_clock(lease=lease, lock=LOCK, lock_seconds=LOCK_SECONDS, limit=SET_BACK)
        if back:
            log.warning("The clock of Redis went back by %.0f s: the times of leases and waits were corrected.", back)
        away = self._answered is not None and now - self._answered > EVERY + lease / 2
        if away or uptime < lease:
            until = time.monotonic() + lease - (0 if away else uptime)
            self._hold_leases_until = max(self._hold_leases_until, until)
        self._answered = now

    def _due(self) -> None:
        publish_due(self.engine)

    def _lines(self) -> None:
        self.engine.publisher.publish(self.claims.sweep_lines(LINES_AT_ONCE, every=GRACE))

    def wake_versions(self, *, try_all: bool = False) -> None:
        """Wake the claims that other workers did not understand and that this worker understands.

        Args:
            try_all: wake every such claim of the kinds that this worker knows.
        """
        dialects = {name: kind.dialect for name, kind in self.engine.kinds().items()}
        for wakeups in self.claims.understood(dialects, try_all=try_all):
            self.engine.publisher.publish(wakeups)

    def _half_resumed(self) -> None:
        for kind in self.claims.half_resumed():
            self.resume(kind)

    def _leases(self) -> None:
        if time.monotonic() < self._hold_leases_until:
            return
        due_in = JITTER * random.random()
        if return_orphans(self.engine, due_in=due_in, seconds=EVERY):
            self.next_tick_in = min(self.next_tick_in, due_in)

    def _lost_of_each_queue(self, *, age: float = GRACE) -> Iterator[Callable[[], object]]:
        queues = self.claims.queues()
        empty = self._empty(queues)
        for queue in queues:
            yield partial(self._lost, queue, empty=queue in empty, age=age)

    def _lost(self, queue: str, *, empty: bool, age: float) -> None:
        ages = {"age": age, "grace": GRACE, "longest": LONGEST_GRACE}
        wakeups = self.claims.sweep_lost(queue, AT_ONCE, empty=empty, **ages)
        if wakeups:
            log.warning("%d messages of queue %s were lost and are sent again.", len(wakeups), queue)
        self.engine.publisher.publish(wakeups)
        settling = self.claims.sweep_settle(queue, AT_ONCE, empty=empty, **ages)
        self.engine.publisher.publish(settling)

    def _empty(self, queues: Sequence[str]) -> set[str]:
        """The queues without a message; an empty set while the broker does not answer."""
        empty, left = set[str](), list(queues)
        with self.engine.app.connection_for_read() as connection:
            while left:
                try:
                    with connection.channel() as channel:
                        while left:
                            queue = left.pop(0)
                            declared = self.engine.app.amqp.queues.get(queue) or Queue(queue)
                            # The declaration is not passive, because kombu would then say that an empty queue in Redis,
                            # or one with a key prefix, does not exist.
                            if declared(channel).queue_declare().message_count == 0:
                                empty.add(queue)
                except (OperationalError, *connection.connection_errors) as error:
                    log.warning("The broker does not say which queues are empty: %s", error)
                    break
                except connection.channel_errors as error:
                    # For example, another application has made the queue in RabbitMQ, with other arguments. RabbitMQ
                    # closes the channel. The other queues are asked for on a new one.
                    log.warning("The broker does not say whether the queue %s is empty: %s", queue, error)
        return empty


class SweepStep(BackgroundStep):
    """Runs the sweep in every worker."""

    thread_name = "nexus-sweep"

    def __init__(self, worker: object, **options: object) -> None:
        super().__init__(worker, **options)
        self._silent_until = 0.0

    def work(self, app: Celery) -> None:
        """Tick until the worker ends. After an error the next tick follows as usual."""
        sweeper: Sweeper | None = None
        tick_at = 0.0
        while True:
            with self._logging_errors():
                sweeper = sweeper or _first_look(app)
                sweeper.look_for_dead()
            if sweeper and time.monotonic() >= tick_at:
                tick_at = time.monotonic() + EVERY  # also when the tick fails
                with self._logging_errors():
                    report_reserved(sweeper.claims)
                    sweeper.tick()
                    tick_at = time.monotonic() + sweeper.next_tick_in
            pause = tick_at - time.monotonic()
            if self.ends_within(pause if 0 < pause < LOOK_EVERY else LOOK_EVERY):
                return

    @contextmanager
    def _logging_errors(self) -> Iterator[None]:
        try:
            yield
        except NexusError as error:
            # One line a minute while a server is away. The next tick tries again.
            if time.monotonic() >= self._silent_until:
                log.warning("The sweep failed, it tries again: %s", error)
                self._silent_until = time.monotonic() + 60
        except Exception:
            log.exception("The sweep failed, it tries again.")


def _first_look(app: Celery) -> Sweeper:
    """The sweeper of a worker that starts. The new worker may bring a remedy.

    Therefore it lifts every pause, and wakes every claim that earlier workers did not understand.
    """
    sweeper = Sweeper(engine_of(app))
    for kind in sweeper.engine.kinds():
        sweeper.outlive_damage(partial(sweeper.resume, kind))
    sweeper.outlive_damage(partial(sweeper.wake_versions, try_all=True))
    return sweeper
