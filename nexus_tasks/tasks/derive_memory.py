"""derive_memory: the job that derives facts from a message.

One model call answers the message and its siblings (other messages of the same session). After the commit,
``_follow_up`` asks for a ``reflect_perspective`` job for each subject with new facts, and for a ``digest_session`` job
when the session has grown enough. ``cognition/derive.py`` decides which of these jobs are due.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import ClassVar, Self, cast

from nexus_tasks.cognition import derive
from nexus_tasks.cognition.derive import FollowUps
from nexus_tasks.cognition.digest.rollover import want_rollover
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidAnswer, JobError, Permanent, QueueUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker.run import Wait
from nexus_tasks.storage import derivations, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory
from nexus_tasks.tasks import digest_session, follow_ups, reflect_perspective
from nexus_tasks.tasks.arguments import MemoryId, Name, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.outboxes import of_rows
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome

log = logging.getLogger(__name__)

DEFAULT_OBSERVERS = ("assistant",)
RIPENESS = "ripeness"  # the reason for which a message waits for more messages
# When new facts make a reflection due, the reflection waits 5 s for more facts. So one reflection replaces about twelve
# while an import or a long conversation is derived. A request by hand, a dream or reconcile makes it due at once.
GATHER_SECONDS = 5.0

Culprit = tuple[Claim, JobError]  # a message that the model cannot answer even alone, and its error


class DeriveMemory(Arguments):
    """A message and the observer for whom facts are derived. ``None`` stands for all observers of the namespace."""

    scope: ClassVar = ("namespace", "memory_id", "observer")
    namespace: NamespaceName
    memory_id: MemoryId
    observer: Name | None = None

    def each(self, deployment: Deployment) -> Sequence[Self]:
        """The arguments of one job per observer."""
        if self.observer is not None:
            return [self]
        known = deployment.namespace(self.namespace)
        observers = known.observers if known else DEFAULT_OBSERVERS
        return [self.model_copy(update={"observer": observer}) for observer in observers]


def _wake_digest(deployment: Deployment, tx: Transaction, claim: Claim) -> Callable[[], None] | None:
    """Return the step that makes the session's waiting digest due, when the session's last derivation has given up.

    Returns ``None`` when the message has no session, or when other messages of the session are still to be derived.
    """
    memory = tx.get(Memory, int(claim.args["memory_id"]))
    if memory is None or memory.session_id is None:
        return None
    want_rollover(tx, deployment.settings, memory.session_id)
    found = sessions.backlog(tx, memory.session_id)
    if found.underived:
        return None
    digest = digest_session.request(claim.namespace, found.session_key, "session_end")
    return lambda: follow_ups.hurry(deployment, digest_session.DERIVATION, [digest])


@job(
    arguments=DeriveMemory,
    queue="derive",
    while_running="drop",
    immutable=True,
    gathers=RIPENESS,
    outbox=of_rows(DeriveMemory, derivations.wanted, mark=derivations.mark, newest=derivations.newest_wanted),
    probe=probe_model,
    on_dead=_wake_digest,
)
@in_namespace
def derive_memory(work: NamespaceRun, arguments: DeriveMemory) -> JobOutcome:
    """Derive facts from a message for one observer."""
    run, namespace, settings, observer = work.run, work.namespace, work.deployment.settings, arguments.observer
    if observer is None:  # the message was sent without `.delay()`, which asks for one job per observer
        each = [derive_memory.request_for(one) for one in arguments.each(work.deployment)]
        work.deployment.engine.publisher.enqueue(each)
        return JobOutcome(status="superseded")
    with work.database.transaction() as tx:
        plan = derive.plan_derivation(tx, settings, namespace.id, arguments.memory_id, observer, alone=run.isolated)
        if plan.outcome:
            return work.commit(tx, plan.outcome)
    if plan.wait and not run.eager:
        raise Wait(RIPENESS, plan.wait, f"{plan.wanted_tokens} of {settings.derive_min_tokens} tokens")
    siblings = [i for i in plan.memory_ids if i != arguments.memory_id]
    run.take([request(namespace.name, i, observer) for i in siblings], again=plan.again)
    if plan.next_id:
        follow_ups.hurry(work.deployment, RIPENESS, [request(namespace.name, plan.next_id, observer)])
    return _derive(work, observer, call=None if plan.again else uuid.uuid4().hex)


def _derive(work: NamespaceRun, observer: str, *, call: str | None) -> JobOutcome:
    """Derive the run's messages in one model call. Halve a batch without a valid answer until each culprit is alone.

    A culprit is a message that the model cannot answer even alone. The first call also shows the model earlier messages
    for context. The calls for the halves do not, because the model may have failed on an earlier message.
    """
    run = work.run
    whole = list(run.claims)
    parts, culprits = [whole], list[Culprit]()
    outcome = JobOutcome(status="completed")
    while parts:
        part = parts.pop()
        try:
            outcome = _derive_part(work, observer, part, whole=part is whole, call=call)
        except (InvalidAnswer, Permanent) as failure:
            middle = len(part) // 2
            if middle:
                in_order = sorted(part, key=_memory_id)  # the primary claim may be any message of the batch
                parts += [in_order[middle:], in_order[:middle]]
            else:
                culprits.append((part[0], failure))
        else:
            if part is not whole:
                run.part_done(part, outcome)
    if culprits:
        # Only the culprits are left in the run. The run raises the error of the first culprit. A culprit with an error
        # of another type leaves the run, so that it fails with its own error in a run of its own.
        _, error = culprits[0]
        _give_back(work, observer, [claim for claim, other in culprits if type(other) is not type(error)])
        raise error
    return outcome


def _derive_part(
    work: NamespaceRun, observer: str, claims: Sequence[Claim], *, whole: bool, call: str | None
) -> JobOutcome:
    outcome, due = derive.derive(
        work.resources,
        work.context(claims),
        observer,
        [_memory_id(claim) for claim in claims],
        context=whole,
        call=call if whole else None,
    )
    _follow_up(work, observer, due)
    return outcome


def _follow_up(work: NamespaceRun, observer: str, due: FollowUps) -> None:
    """Ask for the reflections and the digest that a derivation made due.

    In an eager run (in the producer's process) the reflections do not wait for more facts.
    """
    deployment, namespace = work.deployment, work.namespace.name
    gather = 0.0 if work.run.eager else min(GATHER_SECONDS, deployment.settings.derive_max_wait)
    requests = [reflect_perspective.request(namespace, observer, subject, delay=gather) for subject in due.reflect]
    if due.digest:
        reason = cast(digest_session.Reason, due.digest.reason)
        digest = digest_session.request(namespace, due.digest.session_key, reason)
        follow_ups.ask(deployment, [*requests, digest])
        follow_ups.hurry(deployment, digest_session.DERIVATION, [digest])
    elif requests:
        follow_ups.ask(deployment, requests)


def _give_back(work: NamespaceRun, observer: str, claims: Sequence[Claim]) -> None:
    """Return claims to the queue, due at once, so that each fails in its own run. No failure is counted for them."""
    if not claims:
        return
    with work.database.transaction() as tx:
        derivations.store_batch(tx, [_memory_id(claim) for claim in claims], observer, uuid.uuid4().hex)
    work.run.leave(claims)
    try:
        wakeups = work.run.store.wait(claims, "retry", 0.0, detail="in a batch with another")
        work.deployment.engine.publisher.publish(wakeups)
    except QueueUnavailable as error:
        log.warning("%d jobs were not returned to the queue; they return when their lease ends: %s", len(claims), error)


def _memory_id(claim: Claim) -> int:
    return int(claim.args["memory_id"])


def request(namespace: str, memory_id: int, observer: str) -> Request:
    """The request for one derivation."""
    return derive_memory.request_for(DeriveMemory(namespace=namespace, memory_id=memory_id, observer=observer))


def requests(namespace: str, wanted: Sequence[tuple[int, str]]) -> list[Request]:
    """Requests for many derivations, given as (memory id, observer)."""
    return [request(namespace, memory_id, observer) for memory_id, observer in wanted]
