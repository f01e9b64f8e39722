"""Beat's ticks: short Celery tasks on a schedule (``beat_schedule`` in ``config.py``).

Each tick is done once per slot of its schedule, so two beats that run at once do no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from celery.signals import beat_init
from celery.utils.time import maybe_make_aware

from nexus_tasks.cognition import erasure
from nexus_tasks.config import beat_schedule
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NexusError, StorageUnavailable
from nexus_tasks.idempotency.claims import answering
from nexus_tasks.idempotency.kind import OURS
from nexus_tasks.idempotency.request import Request
from nexus_tasks.storage import audit, dreams, embeddings, pruning
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.erasure import vacuum
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.tasks import derive_memory, digest_session, finish_dream, follow_ups
from nexus_tasks.tasks.registry import tick

log = logging.getLogger(__name__)

ERASE_SECONDS = 3_000.0  # for expired memories in one run of `prune`, which comes every hour


def _once_per_slot(nothing: Callable[[], Any]) -> Callable[[Callable[[Deployment], Any]], Callable[[Deployment], Any]]:
    """Make a tick return ``nothing()`` when it is done already for the present slot of its schedule."""

    def guard(function: Callable[[Deployment], Any]) -> Callable[[Deployment], Any]:
        def guarded(deployment: Deployment) -> Any:
            return function(deployment) if _first_in_slot(deployment, function.__name__) else nothing()

        guarded.__name__, guarded.__doc__ = function.__name__, function.__doc__
        return guarded

    return guard


@tick
@_once_per_slot(list)
def dream_due(deployment: Deployment) -> list[str]:
    """Start the dreams that are due. Returns their namespaces."""
    with deployment.database.transaction() as tx:
        due = dreams.due_namespaces(tx)
    started = []
    for namespace in due:
        try:
            if finish_dream.start(deployment, namespace).opened:
                started.append(namespace)
        except StorageUnavailable:
            raise
        except NexusError as error:  # for example, the namespace was erased meanwhile, or is moving
            log.warning("The dream of %s was not started: %s", namespace, error)
    return started


@tick
@_once_per_slot(dict)
def prune(deployment: Deployment) -> dict[str, int]:
    """Delete runs, closed dead letters, saved answers and open questions after 30 days. Keep open dead letters.

    Also erase the memories that have expired and were stored with ``erase_expired``.
    """
    with deployment.database.transaction() as tx:
        pruned = pruning.prune(tx)
    return pruned | {"expired": _erase_expired(deployment)}


def _erase_expired(deployment: Deployment) -> int:
    """Erase the expired memories, each as ``forget`` does. Returns their number.

    One process at a time erases them, for at most ``ERASE_SECONDS``. Otherwise, when very many expire, each hour's tick
    would take another thread of the workers for hours.
    """
    touched, erased, found = set[str](), 0, -1
    end = time.monotonic() + ERASE_SECONDS
    with pruning.alone(deployment.database) as is_alone:
        while is_alone and found and time.monotonic() < end:
            found = _erase_listed(deployment, touched, end)
            erased += found
    for namespace in sorted(touched):
        # The erasure releases the money of requests that it deletes.
        follow_ups.wake_held(deployment, namespace, reserved=True)
        follow_ups.forget_errors(deployment, namespace)
    if touched and (busy := vacuum.rewrite_tables(deployment.database, files=deployment.settings.embedded)):
        log.warning("Files of Postgres may still have expired memories, in the tables %s.", ", ".join(busy))
    return erased


def _erase_listed(deployment: Deployment, touched: set[str], end: float) -> int:
    """Erase memories that have expired by now, and add their namespaces to ``touched``. Returns how many are gone."""
    with deployment.database.transaction() as tx:
        due = pruning.expired(tx)
    listed = {memory_id for _, _, memory_ids in due for memory_id in memory_ids}
    erased, again, digests = 0, list[Request](), set[tuple[str, str]]()
    for namespace, namespace_id, memory_ids in due:
        touched.add(namespace)
        try:
            gone = deployment.database.commit(partial(_erase, namespace, namespace_id, memory_ids))
        except StorageUnavailable:
            raise
        except NexusError as error:  # for example, another transaction keeps a lock
            log.warning("Memories of %s have expired and are erased in an hour: %s", namespace, error)
            continue
        if gone is not None:
            erased += len(listed.intersection(gone.ids))
            again += [request.renewed() for request in derive_memory.requests(namespace, gone.again)]
            digests.update((namespace, key) for key in gone.digests)
        if time.monotonic() >= end:
            break
    # Not after each erasure: a session of which more is erased would be digested, and that be paid for, each time.
    again += [digest_session.request(namespace, key, "manual_rebuild") for namespace, key in sorted(digests)]
    follow_ups.ask(deployment, again)
    return erased


def _erase(
    namespace: str, namespace_id: int, memory_ids: Collection[int], tx: Transaction
) -> erasure.ErasureResult | None:
    # Since the memories were listed, a message may have said one of them again, so that it lasts.
    gone = erasure.forget_expired(tx, namespace_id, memory_ids)
    if gone is not None:
        audit.record(tx, "erase.expired", namespace, gone.deleted)
    return gone


@tick
@_once_per_slot(list)
def find_embedding_gaps(deployment: Deployment) -> list[str]:
    """Find memories without a vector of the present model. Reconcile then asks for jobs that make the vectors."""
    with deployment.database.transaction() as tx:
        return list(embeddings.record_all_gaps(tx, deployment.embedder.name))


@tick
@_once_per_slot(dict)
def keep_search_fast(deployment: Deployment) -> dict[str, Any]:
    """Merge the totals of search, count common words, and index the vectors of large namespaces. Returns the counts."""
    return asdict(upkeep.run(deployment.database))


def _first_in_slot(deployment: Deployment, schedule: str) -> bool:
    """Whether no other process has done this schedule's tick for the present slot."""
    seconds = _slot_seconds(deployment.app.conf.beat_schedule, schedule)
    claims = deployment.claims
    with answering():
        slot = int(claims.now() // seconds)
        key = f"{claims.prefix}:tick:{schedule}:{slot}"
        return bool(claims.redis.set(key, "1", nx=True, ex=int(2 * seconds)))


def beat_ticked(deployment: Deployment) -> bool:
    """Whether a tick of ``dream_due`` was done in this slot of its schedule or the one before: whether beat runs.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    claims, name = deployment.claims, dream_due.__name__
    slot = int(claims.now() // _slot_seconds(deployment.app.conf.beat_schedule, name))
    with answering():
        return bool(claims.redis.exists(*(f"{claims.prefix}:tick:{name}:{n}" for n in (slot, slot - 1))))


def _slot_seconds(entries: Mapping[str, Mapping[str, Any]], schedule: str) -> float:
    """The seconds between two runs of a tick: from the application's first entry for its task, else from our schedule.

    The entry's name does not matter, because an application may use the tick's name for another task. An entry whose
    schedule is not a number of seconds (a crontab) does not count.
    """
    for entry in entries.values():
        if entry.get("task") == OURS + schedule and isinstance(entry["schedule"], int | float):
            return float(entry["schedule"])
    return float(beat_schedule[schedule]["schedule"])  # type: ignore[arg-type]


def _tick_at_once(sender: Any, **_: Any) -> None:
    """Let the first tick of ``dream_due`` come when beat starts, and not a minute later: it shows that beat runs."""
    for entry in sender.scheduler.schedule.values():
        if entry.task == OURS + dream_due.__name__ and not entry.total_run_count:
            entry.last_run_at -= timedelta(seconds=_slot_seconds(sender.app.conf.beat_schedule, dream_due.__name__))


beat_init.connect(_tick_at_once, weak=False)


def _bear_clock_that_goes_back(sender: Any, **_: Any) -> None:
    """Let ticks come although the clock of beat's machine was ahead at their last runs.

    Celery would wait until the clock shows those times again, also after a restart: it keeps the times in a file.
    """
    from celery.beat import PersistentScheduler  # only beat needs it

    scheduler: Any = sender.scheduler
    if not isinstance(scheduler, PersistentScheduler):
        return
    latest: datetime | None = None
    plain = scheduler.tick

    def tick(*args: Any, **options: Any) -> Any:
        nonlocal latest
        now = sender.app.now()
        # In UTC: Python compares two times of one time zone by what its clocks show, and these go back in autumn.
        moment = now.astimezone(UTC)
        if latest is None or moment < latest:
            for entry in scheduler.schedule.values():
                if entry.task.startswith(OURS) and maybe_make_aware(entry.last_run_at).astimezone(UTC) > moment:
                    entry.last_run_at = now
            scheduler._heap = None  # it has the times at which the entries would be due; Celery makes it anew
        latest = moment
        return plain(*args, **options)

    scheduler.tick = tick


beat_init.connect(_bear_clock_that_goes_back, weak=False)
