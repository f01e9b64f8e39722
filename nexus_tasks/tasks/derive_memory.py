"""derive_memory: the job that derives facts from a message.

One model call answers the message and its siblings (other messages of the same session). After the commit,
``_follow_up`` asks for a ``reflect_perspective`` job for each subject with new facts, and for a ``digest_session`` job
when the session has grown enough. ``cognition/derive.py`` decides which of these jobs are due.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import ClassVar, NoReturn, Self, cast

from nexus_tasks.cognition import derive
from nexus_tasks.cognition.derive import FollowUps
from nexus_tasks.cognition.digest.rollover import want_rollover
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidAnswer, JobError, Permanent, QueueUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker.run import ISOLATED_FROM, Wait
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

# After so many failed calls about a batch and its parts, and none that succeeded, the model is taken for the cause. A
# batch of twelve messages or fewer is halved to its end (23 calls). Chosen by hand, not measured.
MOST_FAILURES = 24

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
    probe=probe_model("derive"),
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
        plan = derive.plan_derivation(
            tx,
            settings,
            namespace.id,
            arguments.memory_id,
            observer,
            alone=run.isolated,
            crashed=run.primary.crashes >= ISOLATED_FROM,
        )
        if plan.outcome:
            return work.commit(tx, plan.outcome)
    if plan.wait and not run.eager:
        raise Wait(RIPENESS, plan.wait, f"{plan.wanted_tokens} of {settings.derive_min_tokens} tokens")
    siblings = [i for i in plan.memory_ids if i != arguments.memory_id]
    run.take([request(namespace.name, i, observer) for i in siblings], again=plan.again, despite_errors=plan.unanswered)
    if plan.next_id:
        follow_ups.hurry(work.deployment, RIPENESS, [request(namespace.name, plan.next_id, observer)])
    return _derive(work, observer, plan)


def _derive(work: NamespaceRun, observer: str, plan: derive.DerivationPlan) -> JobOutcome:
    """Derive the run's messages in one model call. Halve a batch without a valid answer until each culprit is alone.

    A culprit is a message that the model cannot answer even alone. The first call also shows the model earlier messages
    for context. The calls for the halves do not, because the model may have failed on an earlier message.

    What a failed call has shown is stored, so that a run which is cut off, for example by a 429, does not lose it:
    later runs ask about each part alone. When ``MOST_FAILURES`` calls have failed and none has succeeded, the model is
    the cause, and no message. Then the run gives up, and the next attempt begins with the whole batch.
    """
    run = work.run
    whole = list(run.claims)
    parts, culprits = [whole], list[Culprit]()
    failures, answered = plan.failures, False
    outcome = JobOutcome(status="completed")
    while parts:
        # After every second culprit, the largest part is next: there the model may succeed, if neighbours are culprits.
        widen = not answered and culprits and len(culprits) % 2 == 0
        part = max(parts, key=len) if widen else parts[-1]
        parts.remove(part)
        try:
            outcome = _derive_part(
                work,
                observer,
                part,
                context=part is whole and not plan.part,
                call=uuid.uuid4().hex if part is whole and not plan.again else None,
            )
        except (InvalidAnswer, Permanent) as failure:
            failures += not answered
            middle = len(part) // 2
            if middle:
                in_order = sorted(part, key=_memory_id)  # the primary claim may be any message of the batch
                parts += [in_order[middle:], in_order[:middle]]
                _remember(work, observer, parts[-2:], failures)
            else:
                culprits.append((part[0], failure))
                _remember(work, observer, [part], 0)
            if failures >= MOST_FAILURES and parts:
                _give_up(work, observer, failure)
        else:
            if not answered and parts:
                _remember(work, observer, parts, 0)
            answered = True
            if part is not whole:
                run.part_done(part, outcome)
    if culprits:
        # Only the culprits are left in the run. The run raises the error of the first culprit. A culprit with an error
        # of another type leaves the run, so that it fails with its own error in a run of its own.
        _, error = culprits[0]
        _give_back(work, [claim for claim, other in culprits if type(other) is not type(error)])
        raise error
    return outcome


def _remember(work: NamespaceRun, observer: str, parts: Sequence[Sequence[Claim]], failures: int) -> None:
    """Store the parts of a batch, so that later runs ask about each of them alone."""
    with work.database.transaction() as tx:
        for part in parts:
            derive.store_part(tx, [_memory_id(claim) for claim in part], observer, failures=failures)


def _give_up(work: NamespaceRun, observer: str, failure: Exception) -> NoReturn:
    """End a run in which the model has answered nothing. Its messages form one batch again, and count an error each."""
    with work.database.transaction() as tx:
        derive.store_unanswered(tx, [_memory_id(claim) for claim in work.run.claims], observer)
    raise InvalidAnswer(
        f"The model has given no usable answer to {MOST_FAILURES} requests about the batch and its parts. The last"
        f" fault: {failure}"
    ) from failure


def _derive_part(
    work: NamespaceRun, observer: str, claims: Sequence[Claim], *, context: bool, call: str | None
) -> JobOutcome:
    outcome, due = derive.derive(
        work.resources,
        work.context(claims),
        observer,
        [_memory_id(claim) for claim in claims],
        context=context,
        call=call,
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


def _give_back(work: NamespaceRun, claims: Sequence[Claim]) -> None:
    """Return claims to the queue, due at once, so that each fails in its own run. No failure is counted for them."""
    if not claims:
        return
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
