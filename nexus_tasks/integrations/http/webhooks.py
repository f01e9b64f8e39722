"""Webhooks: addresses that are told of events in a namespace. Only for the operator."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import Field

from nexus_tasks.integrations.http.access import NamedSpaceBody
from nexus_tasks.integrations.http.caller import ChangingOperator, Operator
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import WebhookPage, next_offset
from nexus_tasks.integrations.http.parameters import Entries, Limit, Offset
from nexus_tasks.integrations.http.repeats import repeat
from nexus_tasks.types import WEBHOOK_EVENTS, NewWebhook, WebhookEvent, WebhookInfo

router = routes("webhooks")

WebhookId = Annotated[str, Path(description="The webhook's id.")]


class WebhookBody(NamedSpaceBody):
    """An address, and the events that it is told of."""

    url: str = Field(description="It begins with https://. Addresses of private networks are not called.")
    events: Entries[WebhookEvent] = Field(default=list(WEBHOOK_EVENTS))


@router.post("/webhooks", status_code=201)
@repeat("refused")
async def create_webhook(caller: ChangingOperator, body: WebhookBody) -> NewWebhook:
    """Let an address be told of events. Only this answer contains the secret of the signatures."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.acreate_webhook(name, **body.given())


@router.get("/webhooks")
async def list_webhooks(caller: Operator, namespace: str, limit: Limit = 100, offset: Offset = 0) -> WebhookPage:
    """List the webhooks of a namespace without their secrets, newest first."""
    nexus, name = await caller.space(namespace)
    found = await nexus.awebhooks(name, limit=limit, offset=offset)
    return WebhookPage(webhooks=tuple(found), next_offset=next_offset(found, limit, offset))


@router.post("/webhooks/{webhook_id}/resume")
@repeat("anew")
async def resume_webhook(caller: ChangingOperator, webhook_id: WebhookId, body: NamedSpaceBody) -> WebhookInfo:
    """Let a webhook be told again that is paused, or that waits after a failure."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.aresume_webhook(name, webhook_id)


@router.delete("/webhooks/{webhook_id}")
async def delete_webhook(caller: ChangingOperator, webhook_id: WebhookId, namespace: str) -> WebhookInfo:
    """Delete a webhook, and what it was still to be told."""
    nexus, name = await caller.space(namespace)
    return await nexus.adelete_webhook(name, webhook_id)
