"""derive_memory: facts from a message, together with its siblings in one model call."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import ClassVar, Self

from nexus_tasks.cognition import derive
from nexus_tasks.errors import InvalidAnswer, JobError, Refused, TooLarge
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.run import Run, Wait
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.storage import derivations
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.tasks import follow_up
from nexus_tasks.tasks.arguments import MemoryId, Name, NamespaceName
from nexus_tasks.tasks.errand import errand
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome

DEFAULT_OBSERVERS = ("assistant",)


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
    assert arguments.observer is not None
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    with here.database.transaction() as tx:
        plan = derive.plan(tx, here.settings, namespace.id, arguments.memory_id, arguments.observer, alone=run.isolated)
        if plan.outcome:
            return errand(run, namespace).commit(tx, plan.outcome)
    if plan.wait and not run.eager:
        raise Wait("ripeness", plan.wait, f"{plan.wanted_tokens} of {here.settings.derive_min_tokens} tokens")
    siblings = [i for i in plan.memory_ids if i != arguments.memory_id]
    run.take([request(arguments.namespace, i, arguments.observer) for i in siblings], again=plan.again)
    if not plan.again:
        members = [int(claim.args["memory_id"]) for claim in run.claims]
        with here.database.transaction() as tx:
            derivations.store_batch(tx, members, arguments.observer, uuid.uuid4().hex)
    return _derive(run, namespace, arguments.observer, list(run.claims))


def _derive(run: Run, namespace: NamespaceSettings, observer: str, claims: list[Claim]) -> JobOutcome:
    """Derive the claims' messages; a batch that gives no answer is halved until the culprit stands alone."""
    try:
        return _derive_batch(run, namespace, observer, claims)
    except (InvalidAnswer, Refused, TooLarge):
        if len(claims) == 1:
            raise
    failure: JobError | None = None
    outcome = JobOutcome(status="completed")
    for half in (claims[: len(claims) // 2], claims[len(claims) // 2 :]):
        try:
            outcome = _derive(run, namespace, observer, half)
        except (InvalidAnswer, Refused, TooLarge) as error:
            failure = failure or error
        else:
            run.part_done(half, outcome)
    if failure:
        raise failure  # what is left in the run are the messages that gave no answer alone
    return outcome


def _derive_batch(run: Run, namespace: NamespaceSettings, observer: str, claims: Sequence[Claim]) -> JobOutcome:
    members = [int(claim.args["memory_id"]) for claim in claims]
    outcome, due = derive.derive(runtime().mind, errand(run, namespace, claims), observer, members)
    follow_up.after_derivation(namespace.name, observer, members[0], due)
    return outcome


def request(namespace: str, memory_id: int, observer: str) -> Request:
    """The request for one derivation."""
    return derive_memory.request_for(DeriveMemory(namespace=namespace, memory_id=memory_id, observer=observer))


def requests(namespace: str, wanted: Sequence[tuple[int, str]]) -> list[Request]:
    """Requests for many derivations, given as (memory id, observer)."""
    return [request(namespace, memory_id, observer) for memory_id, observer in wanted]
