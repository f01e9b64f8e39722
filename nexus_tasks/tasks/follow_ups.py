"""Follow-ups: jobs that are asked for after a commit. If such a job is lost, reconcile asks for the job again.

``derive_memory._follow_up`` asks for the jobs that follow a derivation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import BudgetHeld, QueueUnavailable
from nexus_tasks.idempotency.claim import Ticket
from nexus_tasks.idempotency.claim_index import STATES, ClaimIndex
from nexus_tasks.idempotency.request import Request
from nexus_tasks.silence import Silence
from nexus_tasks.storage import dreams
from nexus_tasks.storage.namespaces import NamespaceSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

DREAM = "dream"  # the wait reason of the job that closes a dream: it waits for the dream's digests and reflections
_SILENCE = 60.0  # seconds between two warnings
_REDIS = "Redis"


class _Warnings:
    """Logs at most one warning a minute. While Redis is away, every ingested session causes several warnings."""

    def __init__(self) -> None:
        self._warned_at = float("-inf")

    def warn(self, message: str, *values: object) -> None:
        if time.monotonic() - self._warned_at >= _SILENCE:
            self._warned_at = time.monotonic()
            log.warning(message, *values)


def _ask_redis(deployment: Deployment, call: Callable[[], T]) -> T:
    """While Redis is silent, one caller at a time waits for it, and the others do not ask.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    silence = deployment.local(Silence)

    def ask_and_note() -> T:
        begun = time.monotonic()
        try:
            found = call()
        except QueueUnavailable as error:
            silence.note(_REDIS, begun, error)
            raise
        silence.note(_REDIS, begun, None)
        return found

    return silence.ask(_REDIS, ask_and_note)


def ask(deployment: Deployment, requests: Sequence[Request]) -> list[Ticket]:
    """Ask for jobs. Returns a ticket for each job, or an empty list while Redis is away."""
    if not requests:
        return []
    try:
        return _ask_redis(deployment, lambda: deployment.engine.publisher.enqueue(requests))
    except QueueUnavailable as error:
        message = "%d follow-up jobs were not queued; reconcile asks for them again: %s"
        deployment.local(_Warnings).warn(message, len(requests), error)
        return []


def has_room(deployment: Deployment, namespace: str) -> bool:
    """Whether further derivations of a namespace may get jobs now. If not, reconcile asks for these jobs later."""
    try:
        index, kinds = ClaimIndex(deployment.claims), deployment.engine.kinds().values()
        return not _ask_redis(deployment, lambda: index.full([namespace], kinds))
    except QueueUnavailable as error:
        message = "Derivations of %s were not queued; reconcile asks for them again: %s"
        deployment.local(_Warnings).warn(message, namespace, error)
        return False


def ask_for(deployment: Deployment, kind: str, **arguments: object) -> None:
    """Ask for a job by the name of its kind, for callers to which an import of the kind would be circular."""
    declared = deployment.engine.kind(kind)
    ask(deployment, [declared.request_for(declared.load(arguments))])


def hurry(deployment: Deployment, reason: str, requests: Sequence[Request]) -> None:
    """Wake those jobs of ``requests`` that wait for ``reason``."""
    try:
        deployment.engine.publisher.publish(deployment.claims.hurry(reason, requests=requests))
    except QueueUnavailable as error:
        _warn_of_sleepers(deployment, reason, error)


def hurry_all(deployment: Deployment, reason: str, namespace: str, *, most: float = float("inf")) -> None:
    """Wake the jobs of a namespace that wait for ``reason``, at most ``most`` of them."""
    try:
        for wakeups in deployment.claims.hurry_all(reason, namespace, most=most):
            deployment.engine.publisher.publish(wakeups)
    except QueueUnavailable as error:
        _warn_of_sleepers(deployment, reason, error)


def wake_held(deployment: Deployment, namespace: str, *, reserved: bool = False) -> None:
    """Wake jobs that wait until other model calls free a part of the budget: as many as may run at a time.

    Those that still find too little money wait again. The next call that ends wakes them.

    Args:
        reserved: also wake all jobs that did not fit beside what message batches held.
    """
    if reserved:
        hurry_all(deployment, BudgetHeld.reserved_reason, namespace)
    hurry_all(deployment, BudgetHeld.wait_reason, namespace, most=max(deployment.cap(namespace), 1))


def forget_errors(deployment: Deployment, namespace: str) -> None:
    """Delete the text of the last error of each job of a namespace. Such a text may quote an erased memory or topic."""
    try:
        index = ClaimIndex(deployment.claims)
        deployment.claims.forget_errors(claim.key for state in STATES for claim in index.every(state, namespace))
    except QueueUnavailable as error:
        log.warning("Redis is away, so the last errors of the jobs of %s stay: %s", namespace, error)


def hurry_dream(deployment: Deployment, namespace: NamespaceSettings) -> None:
    """Wake the job that closes an open dream, if all jobs that the dream waits for have ended.

    Jobs that digest or reflect call this function at their end.
    """
    with deployment.database.reading() as tx:
        ready = dreams.ready_dream(tx, namespace.id) is not None
    if ready:
        hurry_all(deployment, DREAM, namespace.name)


def _warn_of_sleepers(deployment: Deployment, reason: str, error: QueueUnavailable) -> None:
    message = "Jobs that wait for %s were not woken; the sweep wakes them when they are due: %s"
    deployment.local(_Warnings).warn(message, reason, error)
