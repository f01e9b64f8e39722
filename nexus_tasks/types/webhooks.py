"""Webhooks: addresses that are told of events in a namespace."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from nexus_tasks.types.document import Document

# A session has a new digest; a dream has ended; a reflection found a contradiction; a job gave up.
WebhookEvent = Literal["session.digested", "dream.finished", "contradiction.found", "job.dead"]
WEBHOOK_EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)


@dataclass(frozen=True, kw_only=True)
class WebhookInfo(Document):
    """A webhook without its secret."""

    id: str
    namespace: str
    url: str
    events: tuple[WebhookEvent, ...]
    created_at: datetime
    waiting: int = 0  # events that it is still to be told
    failures: int = 0  # calls that failed since the last one that did not
    retry_at: datetime | None = None  # it failed, and is not called before this time
    paused_at: datetime | None = None  # it failed 15 times in a row, and is not called before it is resumed
    last_error: str | None = None  # why the last call failed


@dataclass(frozen=True, kw_only=True)
class NewWebhook(WebhookInfo):
    """A webhook that was created. Only this value contains the secret; no later call returns it."""

    secret: str = field(repr=False)  # the key of the signatures
