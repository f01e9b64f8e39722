"""derive_memory: facts from a message, together with its siblings in one model call."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import ClassVar, Self

from nexus_tasks.celery import app
from nexus_tasks.cognition import derive
from nexus_tasks.errors import InvalidAnswer, JobError, Permanent, QueueUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.producer.publisher import publish
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.heartbeat import heartbeat
from nexus_tasks.idempotency.worker.run import Run, Wait
from nexus_tasks.storage import derivations
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import MemoryId, Name, NamespaceName
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome

log = logging.getLogger(__name__)

DEFAULT_OBSERVERS = ("assistant",)

Culprit = tuple[Claim, JobError]  # a message that gives no answer even alone, and its error


class DeriveMemory(Arguments):
    """``observer=None`` stands for each of the namespace's observers."""

    scope: ClassVar = ("namespace", "memory_id", "observer")
    namespace: NamespaceName
    memory_id: MemoryId
    observer: Name | None = None

    def each(self) -> Sequence[Self]:
        """One request per observer."""
        if self.observer is not None:
            return [self]
        known = runtime().namespace(self.namespace)
        observers = known.observers if known else DEFAULT_OBSERVERS
        return [self.model_copy(update={"observer": observer}) for observer in observers]


@job(arguments=DeriveMemory, queue="derive", while_running="drop", immutable=True, gathers=True)
def derive_memory(run: Run, arguments: DeriveMemory) -> JobOutcome:
    """Derive facts from a message for one observer."""
    here = runtime()
    if arguments.observer is None:  # a message sent past the task class, which asks for each observer
        derive_memory.enqueue([derive_memory.request_for(one) for one in arguments.each()])
        return JobOutcome(status="superseded")
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    with here.database.transaction() as tx:
        plan = derive.plan_derivation(
            tx, here.settings, namespace.id, arguments.memory_id, arguments.observer, alone=run.isolated
        )
        if plan.outcome:
            return job_context(run, namespace).commit(tx, plan.outcome)
    if plan.wait and not run.eager:
        raise Wait("ripeness", plan.wait, f"{plan.wanted_tokens} of {here.settings.derive_min_tokens} tokens")
    siblings = [i for i in plan.memory_ids if i != arguments.memory_id]
    run.take([request(arguments.namespace, i, arguments.observer) for i in siblings], again=plan.again)
    if plan.next_id:
        follow_ups.hurry("ripeness", [request(arguments.namespace, plan.next_id, arguments.observer)])
    return _derive(run, namespace, arguments.observer, call=None if plan.again else uuid.uuid4().hex)


def _derive(run: Run, namespace: NamespaceSettings, observer: str, *, call: str | None) -> JobOutcome:
    """Derive the run's messages in one call; a batch that gives no answer is halved until the culprits stand alone.

    Its halves are asked about without what was said before them: that may be what the model stumbles over.
    """
    whole = list(run.claims)
    parts, culprits = [whole], list[Culprit]()
    outcome = JobOutcome(status="completed")
    while parts:
        part = parts.pop()
        try:
            outcome = _derive_part(run, namespace, observer, part, whole=part is whole, call=call)
        except (InvalidAnswer, Permanent) as failure:
            middle = len(part) // 2
            if middle:
                in_order = sorted(part, key=_memory_id)  # the lead comes first, whichever message it is
                parts += [in_order[middle:], in_order[:middle]]
            else:
                culprits.append((part[0], failure))
        else:
            if part is not whole:
                run.part_done(part, outcome)
    if culprits:
        # What is left in the run are the culprits; only those that failed alike may end with this error.
        _, error = culprits[0]
        _give_back(run, observer, [claim for claim, other in culprits if type(other) is not type(error)])
        raise error
    return outcome


def _derive_part(
    run: Run, namespace: NamespaceSettings, observer: str, claims: Sequence[Claim], *, whole: bool, call: str | None
) -> JobOutcome:
    outcome, due = derive.derive(
        runtime().resources,
        job_context(run, namespace, claims),
        observer,
        [_memory_id(claim) for claim in claims],
        context=whole,
        call=call if whole else None,
    )
    follow_ups.after_derivation(namespace.name, observer, due, eager=run.eager)
    return outcome


def _give_back(run: Run, observer: str, claims: Sequence[Claim]) -> None:
    """Let claims fail in a run of their own, at once; nothing is counted against them here."""
    if not claims:
        return
    with runtime().database.transaction() as tx:
        derivations.store_batch(tx, [_memory_id(claim) for claim in claims], observer, uuid.uuid4().hex)
    keys = {claim.key for claim in claims}
    kept = [(c, r) for c, r in zip(run.claims, run.requests, strict=True) if c.key not in keys]
    run.claims, run.requests = [c for c, _ in kept], [r for _, r in kept]
    heartbeat().let_go(claims)
    try:
        publish(app, run.store.wait(claims, "retry", 0.0, detail="in a batch with another"))
    except QueueUnavailable as error:
        log.warning("%d claims were not given back, they return when their lease ends: %s", len(claims), error)


def _memory_id(claim: Claim) -> int:
    return int(claim.args["memory_id"])


def request(namespace: str, memory_id: int, observer: str) -> Request:
    """The request for one derivation."""
    return derive_memory.request_for(DeriveMemory(namespace=namespace, memory_id=memory_id, observer=observer))


def requests(namespace: str, wanted: Sequence[tuple[int, str]]) -> list[Request]:
    """Requests for many derivations, given as (memory id, observer)."""
    return [request(namespace, memory_id, observer) for memory_id, observer in wanted]
