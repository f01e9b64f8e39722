"""deliver_webhook: the job that tells a webhook of one event, with a signature.

A webhook is told at least once: after a crash between the answer and the commit it is told again, with the same id.

A webhook that fails is not called by every job that has something to tell it. The jobs end, and their deliveries stay
wanted. When the webhook's wait is over, the outbox asks for one of them, and after a success for the others.

Webhooks that answer slowly do not hold all runs of their namespace. The outbox asks for the two oldest deliveries of
each webhook, and for as many of a namespace as a quarter of its runs. Each delivery that ends asks for the next one.

The webhooks of many namespaces may hang at the same time, for example when one receiver of all of them is ill. They do
not hold all threads of a worker: a quarter of them is left to other jobs.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from nexus_tasks.calling_out import post
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import Permanent, Transient
from nexus_tasks.idempotency.kind import Arguments, Outbox
from nexus_tasks.idempotency.worker.run import Wait
from nexus_tasks.storage import webhooks
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import WebhookRow
from nexus_tasks.storage.webhooks import Due
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import MemoryId, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome, iso

# A call that has lasted for so many seconds is slow. When the calls are slow and no place is free, a delivery waits for
# so many seconds without a thread. Both chosen by hand, not measured.
SLOW, NO_PLACE = 1.0, 5.0
# So many seconds the last place is kept for a namespace that was refused. It comes back after NO_PLACE and a sweep or
# two. A call longer ago than LONG_AGO does not count. Chosen by hand.
KEPT, LONG_AGO = 3 * NO_PLACE, 60.0


class DeliverWebhook(Arguments):
    """One event for one webhook."""

    scope: ClassVar = ("namespace", "delivery_id")
    namespace: NamespaceName
    delivery_id: MemoryId


def _page(deployment: Deployment, tx: Transaction, after: int, limit: int) -> list[tuple[int, Arguments | None]]:
    rows = webhooks.wanted(tx, after, limit, runs=deployment.settings.namespace_concurrency)
    return [(delivery_id, DeliverWebhook(namespace=name, delivery_id=delivery_id)) for delivery_id, name in rows]


def _mark(tx: Transaction, namespace_id: int, arguments: Mapping[str, Any], *, dead: bool) -> None:
    webhooks.set_state(tx, namespace_id, arguments["delivery_id"], "dead" if dead else "wanted")


@job(
    arguments=DeliverWebhook,
    queue="maintenance",
    outbox=Outbox(page=_page, mark=_mark),
    announced=False,  # else the webhook that does not answer would be told that it does not answer
    run_limit=120,
)
@in_namespace
def deliver_webhook(work: NamespaceRun, arguments: DeliverWebhook) -> JobOutcome:
    """Tell a webhook of an event."""
    threads = work.deployment.threads
    most = max(threads - max(threads // 4, 1), 1) if threads else None
    with work.deployment.local(_Places).one(most, arguments.namespace):
        return _deliver(work, arguments)


class _Places:
    """The calls of webhooks that this process makes at a time.

    While calls are slow, the last free place is for a namespace that was refused and has had no place since. Otherwise
    the next deliveries of slow webhooks, which are asked for when a call ends, would take each free place before
    another namespace comes back. While calls are quick, a place that is kept would only stay empty.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._began = dict[object, float]()  # the moment at which each call began
        self._last = 0.0  # seconds that the last call took which has ended
        self._served = dict[str, float]()  # namespace → the moment of its last call
        self._refused = dict[str, float]()  # namespace without a call since it was last refused → that moment

    @contextmanager
    def one(self, most: int | None, namespace: str) -> Iterator[None]:
        """Take a place for the block.

        Args:
            most: the number of places; ``None``: any number.
            namespace: whose webhook is called.

        Raises:
            Wait: all places are taken by slow calls, or the last one is kept for another namespace. While the calls are
                quick, the next place is waited for, and none is kept.
        """
        call = object()
        with self._changed:
            if most is not None:
                self._changed.wait_for(lambda: len(self._began) < most or self._are_slow(), SLOW)
                if len(self._began) + self._others_first(namespace) >= most:
                    self._refused[namespace] = time.monotonic()
                    raise Wait("webhooks", NO_PLACE, f"{len(self._began)} webhooks of this worker have not answered")
            self._refused.pop(namespace, None)
            self._began[call] = self._served[namespace] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._last = time.monotonic() - self._began.pop(call)
                self._changed.notify_all()

    def _others_first(self, namespace: str) -> bool:
        """Whether calls are slow, and a namespace waits that had its last call before this one."""
        now = time.monotonic()
        # A namespace that does not come back has been served by another worker.
        self._refused = {name: at for name, at in self._refused.items() if now - at < KEPT}
        self._served = {name: at for name, at in self._served.items() if now - at < LONG_AGO}
        own = self._served.get(namespace, 0.0)
        # Without a call now, the last one says whether calls are slow.
        slow = self._are_slow() if self._began else self._last > SLOW
        return slow and any(self._served.get(name, 0.0) < own for name in self._refused)

    def _are_slow(self) -> bool:
        now = time.monotonic()
        slow = sum(now - began > SLOW for began in self._began.values())
        return self._last > SLOW or 2 * slow >= len(self._began)


def _deliver(work: NamespaceRun, arguments: DeliverWebhook) -> JobOutcome:
    settings, namespace_id = work.deployment.settings, work.namespace.id
    with work.database.transaction() as tx:
        found = webhooks.due(tx, namespace_id, arguments.delivery_id)
        if found is None:  # the webhook was deleted, or an earlier run has told it
            return work.commit(tx, JobOutcome(status="gone"))
        if not webhooks.may_call(tx, found.hook.id):
            return work.commit(tx, JobOutcome(status="skipped", details={"why": "the webhook failed: it waits"}))
    now = int(work.deployment.claims.now())
    body = _body(found, work.namespace.name)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "nexus-tasks",
        "Nexus-Delivery": str(found.delivery.id),
        "Nexus-Signature": f"t={now},v1={signature(found.hook.secret, now, body)}",
    }
    try:
        try:
            status = post(found.hook.url, body, headers, private=settings.webhook_private)
        except Permanent as error:  # its name leads to a private network, and may lead to a public one later
            raise Transient(" ".join(filter(None, (error.message, error.remedy)))) from error
        _check(status)
    except Transient as error:
        with work.database.transaction() as tx:
            webhooks.failed(tx, found.hook, error.message)
            return work.commit(tx, JobOutcome(status="skipped", details={"why": error.message}))
    except Permanent:  # the webhook answers, and refuses this event
        with work.database.transaction() as tx:
            following = webhooks.following(tx, found.delivery, runs=settings.namespace_concurrency)
            webhooks.succeeded(tx, found.hook)
        _go_on(work, found.hook, following)
        raise
    with work.database.transaction() as tx:
        following = webhooks.following(tx, found.delivery, runs=settings.namespace_concurrency)
        webhooks.succeeded(tx, found.hook)
        webhooks.set_state(tx, namespace_id, found.delivery.id, "sent")
        outcome = work.commit(tx, JobOutcome(status="completed", details={"event": found.delivery.event}))
    _go_on(work, found.hook, following)
    return outcome


def _go_on(work: NamespaceRun, hook: WebhookRow, following: Sequence[int]) -> None:
    """Ask for the next deliveries of the namespace. If the webhook had failed, the outbox asks for them."""
    for delivery_id in following if hook.failures == 0 else ():
        follow_ups.ask_for(work.deployment, "deliver_webhook", namespace=work.namespace.name, delivery_id=delivery_id)


def signature(secret: str, at: int, body: bytes) -> str:
    """The HMAC-SHA256 of ``<seconds since the epoch>.<body>``, in hexadecimal digits."""
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()


def _body(found: Due, namespace: str) -> bytes:
    delivery = found.delivery
    told = {"id": delivery.id, "event": delivery.event, "namespace": namespace, "at": iso(delivery.created_at)}
    return json.dumps({**told, "about": delivery.about}).encode()


def _check(status: int) -> None:
    """Decide by the status of the answer whether the webhook was told, is called again, or the job gives up."""
    if 200 <= status < 300:
        return
    if status in (408, 425, 429) or status >= 500:
        raise Transient(f"The webhook answered {status}.")
    raise Permanent(f"The webhook answered {status}.", remedy="Mend the receiver, then `nexus jobs retry JOB`.")
