"""Pruning: deleting old job runs, resolved dead letters, saved answers, open questions and earlier observation logs.

Saved answers, answers of message batches and open questions let the next run of a job reuse an earlier model call. How
old a row is goes by the clock of Postgres, because a worker's clock may be wrong.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, func, select, text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import (
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
    runs = tx.execute(delete(JobRun).where(JobRun.finished_at < before).returning(JobRun.id)).all()
    letters = tx.execute(delete(DeadLetter).where(DeadLetter.resolved_at < before).returning(DeadLetter.id)).all()
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
    answers = delete(SavedAnswer).where(SavedAnswer.created_at < before).returning(SavedAnswer.request_hash)
    return {"job_runs": len(runs), "dead_letters": len(letters), "saved_answers": len(tx.execute(answers).all())}


_EXPIRED = text(
    """
    SELECT n.name, m.namespace_id, m.id FROM memories AS m JOIN namespaces AS n ON n.id = m.namespace_id
    WHERE m.expires_at <= now() AND m.erase_expired AND n.residence = 'here' ORDER BY m.namespace_id, m.id
    """
)


def expired(tx: Transaction) -> list[tuple[str, int, int]]:
    """The memories to erase, because they have expired: (namespace, namespace id, memory id)."""
    return [(name, namespace_id, memory_id) for name, namespace_id, memory_id in tx.execute(_EXPIRED)]
