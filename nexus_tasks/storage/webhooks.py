"""Storing webhooks, and the events that they are to be told.

An event is written by the transaction that makes it happen. So it is told when the transaction commits, also after a
crash, and never after a rollback.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import delete, func, select, text, update

from nexus_tasks.errors import NotFound
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import WebhookDelivery, WebhookRow
from nexus_tasks.types import WebhookEvent

log = logging.getLogger(__name__)

# A webhook that fails is called again after 10 s, 20 s, 40 s and so on, at the longest after an hour. After so many
# failures in a row, which take about eight hours, it is paused. Chosen by hand: a night's outage must not pause it.
FIRST_WAIT, LONGEST_WAIT, PAUSE_AFTER = 10.0, 3_600.0, 15
# How many deliveries of a webhook are asked for at a time. A receiver that takes 9 s for each answer then holds 2 of
# the 16 runs that a namespace may have. Chosen by hand: with 1, a receiver would be idle between two calls.
AT_A_TIME = 2
# The webhooks of a namespace together hold one of so many of its runs: 4 of 16. Chosen by hand: memory jobs have most.
SHARE = 4
_CALLING = 60.0  # seconds in which no second job calls a webhook that failed; a call takes at most 15 s


_IS_WANTED = text("webhook_deliveries.state = 'wanted'")  # a literal, so that Postgres can use the partial index


def create(tx: Transaction, namespace_id: int, url: str, events: Sequence[str]) -> WebhookRow:
    """Store a webhook with a new id and a new secret of 256 random bits."""
    row = WebhookRow(
        id=secrets.token_hex(8),
        namespace_id=namespace_id,
        url=url,
        events=list(events),
        secret=f"whsec_{secrets.token_urlsafe(32)}",
    )
    tx.add(row)
    tx.flush()
    return row


def listed(tx: Transaction, namespace_id: int, *, limit: int, offset: int) -> Sequence[WebhookRow]:
    """The webhooks of a namespace, newest first."""
    query = select(WebhookRow).where(WebhookRow.namespace_id == namespace_id)
    return tx.scalars(query.order_by(WebhookRow.created_at.desc(), WebhookRow.id).limit(limit).offset(offset)).all()


def waiting(tx: Transaction, webhook_ids: Sequence[str]) -> dict[str, int]:
    """The number of wanted deliveries of each of these webhooks that has some."""
    query = select(WebhookDelivery.webhook_id, func.count().label("waiting")).where(_IS_WANTED)
    query = query.where(WebhookDelivery.webhook_id.in_(webhook_ids)).group_by(WebhookDelivery.webhook_id)
    return {row.webhook_id: row.waiting for row in tx.execute(query)}


def remove(tx: Transaction, namespace_id: int, webhook_id: str) -> WebhookRow:
    """Delete a webhook, and what it was still to be told. Returns the deleted row.

    Raises:
        NotFound: the namespace has no such webhook.
    """
    which = (WebhookRow.namespace_id == namespace_id, WebhookRow.id == webhook_id)
    row = tx.scalar(select(WebhookRow).where(*which))
    if row is None:
        raise NotFound(f"There is no webhook {webhook_id!r:.80}.", remedy="List the webhooks of the namespace.")
    tx.execute(delete(WebhookRow).where(*which))
    return row


_TELL = text(
    """
    INSERT INTO webhook_deliveries (namespace_id, webhook_id, event, about)
    SELECT namespace_id, id, CAST(:event AS text), CAST(:about AS jsonb) FROM webhooks
    WHERE namespace_id = :namespace_id AND CAST(:event AS text) = ANY (events) FOR KEY SHARE
    """
)


def tell(tx: Transaction, namespace_id: int, event: WebhookEvent, about: Mapping[str, Any]) -> None:
    """Let each webhook of the namespace that wants ``event`` be told of it. ``about`` has names and ids alone.

    The webhooks are locked, so that one which is deleted meanwhile does not fail the transaction of the event.
    """
    values = {"namespace_id": namespace_id, "event": event, "about": json.dumps(dict(about))}
    tx.execute(_TELL, values)


def resume(tx: Transaction, namespace_id: int, webhook_id: str) -> WebhookRow:
    """Let a webhook be called at once, as if it had never failed.

    Raises:
        NotFound: the namespace has no such webhook.
    """
    row = tx.scalar(select(WebhookRow).where(WebhookRow.namespace_id == namespace_id, WebhookRow.id == webhook_id))
    if row is None:
        raise NotFound(f"There is no webhook {webhook_id!r:.80}.", remedy="List the webhooks of the namespace.")
    row.failures, row.retry_at, row.paused_at, row.last_error = 0, None, None, None
    tx.flush()
    return row


class Due(NamedTuple):
    """What a webhook is to be told."""

    delivery: WebhookDelivery
    hook: WebhookRow


def due(tx: Transaction, namespace_id: int, delivery_id: int) -> Due | None:
    """A delivery that is still wanted, with its webhook."""
    query = (
        select(WebhookDelivery, WebhookRow)
        .join(WebhookRow, WebhookRow.id == WebhookDelivery.webhook_id)
        .where(
            WebhookDelivery.namespace_id == namespace_id,
            WebhookDelivery.id == delivery_id,
            WebhookDelivery.state == "wanted",
        )
    )
    found = tx.execute(query).first()
    return Due(*found) if found else None


def may_call(tx: Transaction, webhook_id: str) -> bool:
    """Whether a webhook may be called now. One job at a time calls a webhook that failed, when its wait is over."""
    query = select(WebhookRow).where(WebhookRow.id == webhook_id).with_for_update(key_share=True)
    # The row is read again after the wait for its lock: another job may be calling the webhook.
    row = tx.scalar(query.execution_options(populate_existing=True))
    if row is None or row.paused_at is not None:
        return False
    if row.failures == 0:
        return True
    now = tx.scalar(select(func.now()))
    assert now is not None
    if row.retry_at is not None and row.retry_at > now:
        return False
    row.retry_at = now + timedelta(seconds=_CALLING)
    return True


def succeeded(tx: Transaction, hook: WebhookRow) -> None:
    """Forget the failures of a webhook that answered."""
    which = (WebhookRow.id == hook.id, WebhookRow.failures > 0)
    tx.execute(update(WebhookRow).where(*which).values(failures=0, retry_at=None, last_error=None))


def failed(tx: Transaction, hook: WebhookRow, why: str) -> None:
    """Count a failure of a webhook. It is called later again, or paused.

    Of the calls that ran at the same time, one counts.
    """
    row = tx.scalar(select(WebhookRow).where(WebhookRow.id == hook.id).with_for_update(key_share=True))
    if row is None or row.failures != hook.failures or row.paused_at is not None:
        return
    row.failures += 1
    row.last_error = why
    wait = min(FIRST_WAIT * 2.0 ** (row.failures - 1), LONGEST_WAIT)
    now = tx.scalar(select(func.now()))
    assert now is not None
    row.retry_at = now + timedelta(seconds=wait)
    if row.failures >= PAUSE_AFTER:
        row.paused_at = now
        log.error(
            "Webhook %s is paused, because it failed %d times in a row: %s When it is mended, run"
            " `nexus webhooks resume %s --namespace NAMESPACE`.",
            *(row.id, row.failures, why, row.id),
        )


def set_state(tx: Transaction, namespace_id: int, delivery_id: int, state: str) -> None:
    """Set the state of a delivery."""
    which = (WebhookDelivery.namespace_id == namespace_id, WebhookDelivery.id == delivery_id)
    tx.execute(update(WebhookDelivery).where(*which).values(state=state))


# Places are given to the first deliveries of all webhooks, oldest first, and then to the second ones.
_WANTED = text(
    """
    SELECT id, name FROM (
        SELECT oldest.id, namespaces.name, GREATEST(1, COALESCE(namespaces.concurrency, :runs) / :share) AS places,
            row_number() OVER (PARTITION BY namespaces.id ORDER BY oldest.number, oldest.id) AS place
        FROM webhooks
        JOIN namespaces ON namespaces.id = webhooks.namespace_id
        CROSS JOIN LATERAL (
            SELECT id, row_number() OVER (ORDER BY id) AS number FROM webhook_deliveries
            WHERE webhook_id = webhooks.id AND state = 'wanted' AND id <> :without
            ORDER BY id LIMIT CASE WHEN webhooks.failures = 0 THEN CAST(:at_a_time AS int) ELSE 1 END
        ) AS oldest
        WHERE webhooks.paused_at IS NULL AND (failures = 0 OR retry_at <= now())
            AND (CAST(:only AS bigint) IS NULL OR namespaces.id = :only)
    ) AS candidates
    WHERE place <= places AND id > :after
    ORDER BY id LIMIT :limit
    """
)


def wanted(
    tx: Transaction, after: int, limit: int, *, runs: int, namespace_id: int | None = None, without: int = 0
) -> list[tuple[int, str]]:
    """At most ``limit`` wanted deliveries with ids above ``after`` that may be told now, with their namespaces.

    Of each webhook there are at most the :data:`AT_A_TIME` oldest ones, and of a namespace at most a :data:`SHARE` of
    its runs. Of a webhook that failed there is the oldest one, when its wait is over. Those of a paused webhook are
    left out.

    Args:
        tx: a transaction.
        after: the cursor.
        limit: the largest number of deliveries.
        runs: how many runs a namespace without a setting of its own may have at a time.
        namespace_id: only deliveries of this namespace.
        without: a delivery to leave out, as if it were done.
    """
    values = {"after": after, "limit": limit, "runs": runs, "only": namespace_id, "without": without}
    rows = tx.execute(_WANTED, {**values, "share": SHARE, "at_a_time": AT_A_TIME})
    return [(row.id, row.name) for row in rows]


def following(tx: Transaction, delivery: WebhookDelivery, *, runs: int) -> list[int]:
    """The deliveries of the namespace that may be told when ``delivery`` is done, and not before.

    The webhooks are locked, so that of two deliveries that end at the same time the second one sees the end of the
    first one.
    """
    locked = select(WebhookRow.id).where(WebhookRow.namespace_id == delivery.namespace_id).order_by(WebhookRow.id)
    tx.execute(locked.with_for_update(key_share=True))
    before, then = (
        wanted(tx, 0, 1_000, runs=runs, namespace_id=delivery.namespace_id, without=left_out)
        for left_out in (0, delivery.id)
    )
    return [one[0] for one in then if one not in before]
