"""What one job makes due: more jobs, asked for after the commit. What gets lost here reconcile finds in Postgres."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import cast

from nexus_tasks.celery import app
from nexus_tasks.cognition.derive import FollowUps
from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.claim import Ticket
from nexus_tasks.idempotency.producer.publisher import enqueue, publish
from nexus_tasks.idempotency.request import Request
from nexus_tasks.storage import dreams
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.tasks.runtime import runtime

log = logging.getLogger(__name__)
# A reflection waits this long for more facts, unless somebody asks for it: while an import or a long conversation is
# derived, one reflects on what a dozen would have, and nothing reflects on what the next derivation adds to.
GATHER_SECONDS = 5.0
_complained_at = float("-inf")


def _complain(message: str, *values: object) -> None:
    """One line a minute: a Redis that is away would otherwise cost several for every session that is ingested."""
    global _complained_at
    if time.monotonic() - _complained_at >= 60:
        _complained_at = time.monotonic()
        log.warning(message, *values)


def ask(requests: Sequence[Request]) -> list[Ticket]:
    """Claim and publish; with Redis away nothing is asked for, and a line is logged."""
    try:
        return enqueue(app, requests)
    except QueueUnavailable as error:
        _complain("%d follow-up jobs were not queued, reconcile will: %s", len(requests), error)
        return []


def hurry(reason: str, requests: Sequence[Request]) -> None:
    """Wake those of ``requests`` that wait for ``reason``."""
    try:
        publish(app, runtime().claims.hurry(reason, requests=requests))
    except QueueUnavailable as error:
        _complain("Jobs that wait for %s were not woken, they will be when due: %s", reason, error)


def hurry_all(reason: str, namespace: str) -> None:
    """Wake everything in a namespace that waits for ``reason``."""
    try:
        while wakeups := runtime().claims.hurry(reason, whose=namespace):
            publish(app, wakeups)
    except QueueUnavailable as error:
        _complain("Jobs that wait for %s were not woken, they will be when due: %s", reason, error)


def after_derivation(namespace: str, observer: str, due: FollowUps, *, eager: bool) -> None:
    """Ask for the reflections and the digest that a derivation made due; ``eager`` ones wait for no company."""
    from nexus_tasks.tasks import digest_session, reflect_perspective  # both import this module

    gather = 0.0 if eager else min(GATHER_SECONDS, runtime().settings.derive_max_wait)
    requests = [reflect_perspective.request(namespace, observer, subject, delay=gather) for subject in due.reflect]
    if due.digest:
        reason = cast(digest_session.Reason, due.digest.reason)
        digest = digest_session.request(namespace, due.digest.session_key, reason)
        ask([*requests, digest])
        hurry("derivation", [digest])
    elif requests:
        ask(requests)


def dream_goes_on(namespace: NamespaceSettings) -> None:
    """A digest or a reflection has ended: when an open dream waited for the last of these, it is due now."""
    from nexus_tasks.tasks import finish_dream  # it imports this module

    with runtime().database.reading() as tx:
        dream_id = dreams.ready_dream(tx, namespace.id)
    if dream_id is not None:
        hurry(finish_dream.REASON, [finish_dream.request(namespace.name, dream_id)])
