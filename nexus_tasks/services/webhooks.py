"""Create, list, resume and delete webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from nexus_tasks import calling_out
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, Permanent
from nexus_tasks.storage import audit, namespaces, webhooks
from nexus_tasks.storage.models import WebhookRow
from nexus_tasks.transcripts.scrubbing import scrub
from nexus_tasks.types import WEBHOOK_EVENTS, NewWebhook, WebhookInfo, check_namespace

LONGEST_URL = 2_000  # characters


def create_webhook(deployment: Deployment, namespace: str, url: str, *, events: Sequence[str]) -> NewWebhook:
    """See :meth:`nexus_tasks.client.Nexus.create_webhook`."""
    check_namespace(namespace)
    _check_url(url, private=deployment.settings.webhook_private)
    wanted = [event for event in WEBHOOK_EVENTS if event in events]
    if not wanted or len(set(events)) > len(wanted):
        raise InvalidInput(f"events must be some of {', '.join(WEBHOOK_EVENTS)}.")
    with deployment.database.transaction() as tx:
        row = webhooks.create(tx, namespaces.get(tx, namespace).id, url, wanted)
        audit.record(tx, "webhook.create", namespace)
        return NewWebhook(**vars(_info(row, namespace)), secret=row.secret)


def list_webhooks(deployment: Deployment, namespace: str, *, limit: int, offset: int) -> list[WebhookInfo]:
    """See :meth:`nexus_tasks.client.Nexus.webhooks`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        rows = webhooks.listed(tx, known.id, limit=limit, offset=offset)
        waiting = webhooks.waiting(tx, [row.id for row in rows])
        return [_info(row, known.name, waiting=waiting.get(row.id, 0)) for row in rows]


def resume_webhook(deployment: Deployment, namespace: str, webhook_id: str) -> WebhookInfo:
    """See :meth:`nexus_tasks.client.Nexus.resume_webhook`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        row = webhooks.resume(tx, known.id, webhook_id)
        audit.record(tx, "webhook.resume", known.name)
        return _info(row, known.name, waiting=webhooks.waiting(tx, [row.id]).get(row.id, 0))


def delete_webhook(deployment: Deployment, namespace: str, webhook_id: str) -> WebhookInfo:
    """See :meth:`nexus_tasks.client.Nexus.delete_webhook`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        removed = webhooks.remove(tx, known.id, webhook_id)
        audit.record(tx, "webhook.delete", known.name)
        return _info(removed, known.name)


def _check_url(url: str, *, private: bool) -> None:
    # These checks come before urlsplit, because it takes quadratic time for combining marks in the host.
    fine = len(url) <= LONGEST_URL and url.isascii() and url.isprintable() and " " not in url
    try:
        parts = urlsplit(url if fine else "")
        fine = fine and bool((parts.hostname or "").encode("idna")) and parts.port != 0  # no label above 63 characters
    except ValueError:
        fine = False
    if not fine:
        raise InvalidInput(f"url must be an address such as https://example.org/hook, at most {LONGEST_URL:,} ASCII.")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("url has a user or a password.", remedy="Check the signature of what is sent instead.")
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise InvalidInput(
            "url must begin with https://.",
            remedy="Use TLS. NEXUS_WEBHOOK_PRIVATE=true allows http:// and private addresses on a network of your own.",
        )
    if not private:
        try:
            calling_out.check_public(url)
        except Permanent as error:
            raise InvalidInput(f"url: {error.message}", remedy=error.remedy) from None


def _info(row: WebhookRow, namespace: str, *, waiting: int = 0) -> WebhookInfo:
    return WebhookInfo(
        id=row.id,
        namespace=namespace,
        url=scrub(row.url),  # some receivers, such as Slack's and Zapier's, know a caller by a key in the address
        events=tuple(row.events),  # type: ignore[arg-type]
        created_at=row.created_at,
        waiting=waiting,
        failures=row.failures,
        retry_at=row.retry_at,
        paused_at=row.paused_at,
        last_error=row.last_error,
    )
