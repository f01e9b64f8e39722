"""The durable side of jobs, as the claims see it: dead letters, outcomes, and what Postgres wants done."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import cast

from nexus_tasks.errors import StorageUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.request import Request
from nexus_tasks.storage import (
    batches,
    dead_letters,
    derivations,
    digest_requests,
    dreams,
    embeddings,
    extractions,
    job_runs,
    namespaces,
    observations,
    perspectives,
    sessions,
)
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory
from nexus_tasks.tasks import (
    derive_memory,
    digest_session,
    embed_memories,
    extract_session,
    finish_dream,
    follow_ups,
    observe_session,
    reflect_observations,
    reflect_perspective,
    submit_batch,
)
from nexus_tasks.tasks.runtime import Runtime
from nexus_tasks.types import JobOutcome, clean_text

# A digest that was asked for is left to the last derivation of its session for this long.
_DIGEST_SETTLES = timedelta(minutes=5)


class JobStorage:
    """See :class:`nexus_tasks.idempotency.binding.Storage`."""

    def __init__(self, here: Runtime) -> None:
        self.here = here
        # Where the next page of each begins.
        self._derivation = self._digest = self._dream = self._perspective = self._gap = 0
        self._observe = self._reflect_log = self._batch = self._extract = 0

    def dead_letter(self, claim: Claim, error: BaseException | None) -> None:
        """Commit the letters of a claim, and take the work out of the outbox."""
        why = dead_letters.Failure(
            error_type=type(error).__name__ if error else "WorkerLost",
            message=clean_text(str(error)) if error else "The worker died every time it ran this job.",
            traceback=clean_text("".join(traceback.format_exception(error))) if error else "",
            errors=claim.errors + (1 if error else 0),
            crashes=claim.crashes,
            first_at=datetime.fromtimestamp(claim.failing_since or claim.enqueued_at, UTC),
        )
        with self.here.database.transaction() as tx:
            namespace = namespaces.find(tx, claim.namespace)
            if namespace is None:
                return
            for job_id in (claim.job_id, *claim.also):
                dead_letters.store(
                    tx,
                    namespace.id,
                    job_id=job_id,
                    kind=claim.kind,
                    scope=claim.scope,
                    args=claim.args,
                    why=why,
                )
            mark(tx, namespace.id, claim.kind, claim.args, dead=True)
            digest = _freed_digest(tx, claim) if claim.kind == "derive_memory" else None
        if digest:
            follow_ups.hurry("derivation", [digest])

    def withdraw(self, claim: Claim) -> None:
        """Take the work of a claim that is to be dropped out of the outbox."""
        with self.here.database.transaction() as tx:
            namespace = namespaces.find(tx, claim.namespace)
            if namespace:
                mark(tx, namespace.id, claim.kind, claim.args, dead=True)

    def is_dead(self, job_id: str) -> bool:
        """Whether the job has an open dead letter."""
        with self.here.database.transaction() as tx:
            return dead_letters.open_letter(tx, job_id) is not None

    def outcome(self, job_id: str, kind: str, scope: str, since: float) -> JobOutcome | None:
        """How the job ended."""
        with self.here.database.transaction() as tx:
            return job_runs.find_outcome(tx, job_id, kind, scope, datetime.fromtimestamp(since, UTC))

    def wanted(self, limit: int) -> Sequence[Request]:
        """The next page of wanted derivations, digests, reflections, vectors, observations, batches, extractions."""
        with self.here.database.transaction() as tx:
            facts = derivations.wanted(tx, self._derivation, limit)
            digests = digest_requests.wanted(tx, self._digest, limit, _DIGEST_SETTLES)
            dreamt = dreams.wanted(tx, self._dream, limit)
            gaps = embeddings.wanted(tx, self._gap, limit)
            ripe = perspectives.wanted(
                tx, at_least=self.here.settings.reflect_min_new, after=self._perspective, limit=limit
            )
            unobserved = observations.wanted(tx, self._observe, limit, "observing")
            long_logs = observations.wanted(tx, self._reflect_log, limit, "reflecting")
            batched = batches.wanted(tx, self._batch, limit)
            unextracted = extractions.wanted(tx, self._extract, limit)
        # A page that is not full was the last one: the next look starts over.
        self._derivation = facts[-1][0] if len(facts) == limit else 0
        self._digest = digests[-1][0] if len(digests) == limit else 0
        self._dream = dreamt[-1][0] if len(dreamt) == limit else 0
        self._perspective = ripe[-1][0] if len(ripe) == limit else 0
        self._gap = gaps[-1][0] if len(gaps) == limit else 0
        self._observe = unobserved[-1][0] if len(unobserved) == limit else 0
        self._reflect_log = long_logs[-1][0] if len(long_logs) == limit else 0
        self._batch = batched[-1][0] if len(batched) == limit else 0
        self._extract = unextracted[-1][0] if len(unextracted) == limit else 0
        return [
            *(derive_memory.request(namespace, memory, observer) for _, namespace, memory, observer in facts),
            *(digest_session.request(namespace, key, "session_end") for _, namespace, key in digests),
            *(finish_dream.request(namespace, dream_id) for dream_id, namespace in dreamt),
            *(reflect_perspective.request(namespace, observer, subject) for _, namespace, observer, subject in ripe),
            *(embed_memories.request(namespace) for _, namespace in gaps),
            *(observe_session.request(namespace, key) for _, namespace, key in unobserved),
            *(reflect_observations.request(namespace, key) for _, namespace, key in long_logs),
            *(submit_batch.request(namespace) for _, namespace in batched),
            *(extract_session.request(namespace, key) for _, namespace, key in unextracted),
        ]

    def cap(self, namespace: str) -> int:
        """How many runs a namespace may have at a time."""
        return self.here.cap(namespace)

    def answers(self) -> bool:
        """Whether Postgres can be reached now."""
        try:
            with self.here.database.transaction() as tx:
                tx.connection()
        except StorageUnavailable:
            return False
        return True

    def probe(self, kind: str) -> None:
        """Check the credentials and names of what the kind speaks to."""
        if kind == "embed_memories":
            self.here.embedder.embed(["probe"])
        else:
            self.here.resources.model.probe()


def _freed_digest(tx: Transaction, claim: Claim) -> Request | None:
    """The digest that waited for a derivation which gave up, when it was the session's last one."""
    memory = tx.get(Memory, int(claim.args["memory_id"]))
    if memory is None or memory.session_id is None:
        return None
    found = sessions.backlog(tx, memory.session_id)
    return None if found.underived else digest_session.request(claim.namespace, found.session_key, "session_end")


def mark(tx: Transaction, namespace_id: int, kind: str, args: object, *, dead: bool) -> None:
    """Take a job's wanted row out of the outbox with its dead letter, or put it back when it is retried."""
    named = cast(dict[str, str], args)
    if kind == "derive_memory":
        derivations.mark(tx, int(named["memory_id"]), named["observer"], dead=dead)
    elif kind == "digest_session":
        digest_requests.mark(tx, namespace_id, named["session_key"], dead=dead)
    elif kind == "reflect_perspective":
        perspectives.mark(tx, namespace_id, named["observer"], named["subject"], dead=dead)
    elif kind == "finish_dream":
        dreams.mark(tx, namespace_id, int(named["dream_id"]), dead=dead)
    elif kind == "embed_memories":
        embeddings.mark(tx, namespace_id, dead=dead)
    elif kind == "observe_session":
        observations.mark(tx, namespace_id, named["session_key"], "observing", dead=dead)
    elif kind == "reflect_observations":
        observations.mark(tx, namespace_id, named["session_key"], "reflecting", dead=dead)
    elif kind == "extract_session":
        extractions.mark(tx, namespace_id, named["session_key"], dead=dead)
