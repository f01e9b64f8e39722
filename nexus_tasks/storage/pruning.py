"""Pruning: deleting old job runs, resolved dead letters, saved answers, open questions and earlier observation logs.

Saved answers, answers of message batches and open questions let the next run of a job reuse an earlier model call. How
old a row is goes by the clock of Postgres, because a worker's clock may be wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, text

from nexus_tasks.storage.engine import Database, Transaction
from nexus_tasks.storage.many import parts
from nexus_tasks.storage.models import (
    Base,
    BatchRequest,
    BudgetHold,
    DeadLetter,
    JobRun,
    ObservationGeneration,
    OpenQuestion,
    SavedAnswer,
    WebhookDelivery,
    WebhookRow,
)

LOG_DAYS = 7  # for which a condensation of an observation log can be undone
MOST_EXPIRED = 10_000  # expired memories of a namespace that are listed at a time
# Expired memories of a session that one transaction erases. It takes about 0.5 s, and longer among very many facts.
EXPIRED_AT_ONCE = 100
_LOCK = 0x6E65787570  # the number of the advisory lock of their erasure, "nexup" in ASCII


def prune(tx: Transaction, *, days: int = 30) -> dict[str, int]:
    """Delete job runs, resolved dead letters, saved answers and open questions that are older than ``days`` days.

    Answers of message batches that no job has taken are deleted too.

    Texts that condensations of observation logs have replaced are deleted after seven days.

    Open dead letters stay. A saved answer or an open question that is older than ``days`` days is of no use, because
    its job would now make another request.

    Returns:
        The number of deleted rows of the tables ``job_runs``, ``dead_letters`` and ``saved_answers``.
    """
    before = func.now() - timedelta(days=days)
    pruned = {
        "job_runs": _delete(tx, JobRun, JobRun.finished_at < before),
        "dead_letters": _delete(tx, DeadLetter, DeadLetter.resolved_at < before),
        "saved_answers": _delete(tx, SavedAnswer, SavedAnswer.created_at < before),
    }
    tx.execute(delete(OpenQuestion).where(OpenQuestion.created_at < before))
    # No job takes the answer when the job has asked something else since, for example after an upgrade.
    ended = BatchRequest.state.in_(("answered", "failed"))
    tx.execute(delete(BatchRequest).where(BatchRequest.created_at < before, ended))
    # A process that dies in a call without a job, such as the plan of a dream, leaves its hold.
    tx.execute(delete(BudgetHold).where(BudgetHold.expires_at < before))
    paused = select(WebhookRow.id).where(WebhookRow.paused_at.is_not(None))
    told = (WebhookDelivery.state != "wanted") | WebhookDelivery.webhook_id.in_(paused)
    tx.execute(delete(WebhookDelivery).where(WebhookDelivery.created_at < before, told))
    since = func.now() - timedelta(days=LOG_DAYS)
    tx.execute(delete(ObservationGeneration).where(ObservationGeneration.created_at < since))
    return pruned


def _delete(tx: Transaction, model: type[Base], which: ColumnElement[bool]) -> int:
    """Delete rows, and return their number. They are not listed: after months without beat there are millions."""
    result: Any = tx.execute(delete(model).where(which).execution_options(synchronize_session=False))
    return int(result.rowcount)


@contextmanager
def alone(database: Database) -> Iterator[bool]:
    """Hold the lock of the erasure of expired memories. The value is ``False`` when another process holds the lock.

    Postgres frees the lock when this process dies.
    """
    with database.dedicated_connection() as connection:
        yield bool(connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}))


# Of each namespace some memories, so that one with very many keeps no other waiting.
_EXPIRED = text(
    """
    SELECT n.name, due.namespace_id, due.session_id, array_agg(due.id ORDER BY due.id)
    FROM (
        SELECT m.namespace_id, m.session_id, m.id,
               row_number() OVER (PARTITION BY m.namespace_id ORDER BY m.session_id, m.id) AS place
        FROM memories AS m WHERE m.expires_at <= now() AND m.erase_expired
    ) AS due
    JOIN namespaces AS n ON n.id = due.namespace_id
    WHERE n.residence = 'here' AND due.place <= :most
    GROUP BY n.name, due.namespace_id, due.session_id ORDER BY due.namespace_id, due.session_id
    """
)


def expired(tx: Transaction) -> list[tuple[str, int, list[int]]]:
    """Memories to erase, because they have expired: (namespace, namespace id, memory ids), by session.

    Of a namespace at most ``MOST_EXPIRED``. Namespaces take turns.
    """
    due, turns = list[tuple[int, tuple[str, int, list[int]]]](), Counter[str]()
    for name, namespace_id, _, ids in tx.execute(_EXPIRED, {"most": MOST_EXPIRED}):
        for part in parts(ids, EXPIRED_AT_ONCE):
            due.append((turns[name], (name, namespace_id, part)))
            turns[name] += 1
    return [found for _, found in sorted(due, key=itemgetter(0))]
