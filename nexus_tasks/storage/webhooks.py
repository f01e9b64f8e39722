"""Storing webhooks, and the events that they are to be told.

An event is written by the transaction that makes it happen. So it is told when the transaction commits, also after a
crash, and never after a rollback.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import any_, delete, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import JSONB

from nexus_tasks.errors import NotFound
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Namespace, WebhookDelivery, WebhookRow
from nexus_tasks.types import WebhookEvent


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


def tell(tx: Transaction, namespace_id: int, event: WebhookEvent, about: Mapping[str, Any]) -> None:
    """Let each webhook of the namespace that wants ``event`` be told of it. ``about`` has names and ids alone.

    The webhooks are locked, so that one which is deleted meanwhile does not fail the transaction of the event.
    """
    values = (WebhookRow.namespace_id, WebhookRow.id, literal(event), literal(dict(about), JSONB))
    wanting = select(*values).where(WebhookRow.namespace_id == namespace_id, literal(event) == any_(WebhookRow.events))
    wanting = wanting.with_for_update(read=True, key_share=True)
    tx.execute(insert(WebhookDelivery).from_select(["namespace_id", "webhook_id", "event", "about"], wanting))


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


def mark(tx: Transaction, namespace_id: int, delivery_id: int, *, dead: bool) -> None:
    """Set a delivery to ``dead`` when its job gives up, or back to ``wanted`` when the job is retried."""
    set_state(tx, namespace_id, delivery_id, "dead" if dead else "wanted")


def set_state(tx: Transaction, namespace_id: int, delivery_id: int, state: str) -> None:
    """Set the state of a delivery."""
    which = (WebhookDelivery.namespace_id == namespace_id, WebhookDelivery.id == delivery_id)
    tx.execute(update(WebhookDelivery).where(*which).values(state=state))


_IS_WANTED = text("webhook_deliveries.state = 'wanted'")  # a literal, so that Postgres can use the partial index


def wanted(tx: Transaction, after: int, limit: int) -> list[tuple[int, str, int]]:
    """At most ``limit`` wanted deliveries with ids above ``after``, as (id, namespace, id)."""
    query = (
        select(WebhookDelivery.id, Namespace.name)
        .join(Namespace, Namespace.id == WebhookDelivery.namespace_id)
        .where(_IS_WANTED, WebhookDelivery.id > after)
        .order_by(WebhookDelivery.id)
        .limit(limit)
    )
    return [(delivery_id, name, delivery_id) for delivery_id, name in tx.execute(query)]
