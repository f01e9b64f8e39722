"""The jobs' storage in Postgres: dead letters, outcomes, and the outbox.

The outbox is the set of wanted rows. A wanted row says that a job still has to be done, also after Redis has lost the
job's claim. Each job kind declares which rows are its wanted rows (:class:`nexus_tasks.idempotency.kind.Outbox`), so
this module names no kind.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import text

from nexus_tasks.errors import (
    BudgetHeld,
    ForeignDatabase,
    NamespaceMoved,
    NexusError,
    QueueUnavailable,
    StorageUnavailable,
    Transient,
    with_quotation,
)
from nexus_tasks.idempotency import kind as kinds
from nexus_tasks.idempotency.claim import Claim, Wakeup
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.kind import Arguments, JobKind
from nexus_tasks.idempotency.request import Request, canonical
from nexus_tasks.storage import dead_letters, identity, job_runs, ledger, memories, namespaces, webhooks
from nexus_tasks.storage.engine import Database, Transaction
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.types import JobOutcome, clean_text

log = logging.getLogger(__name__)

WANT_TRIES = 3  # for the rows of `.delay()`, when other transactions are in the way

# This query lets Postgres read a page of wanted rows in the order of an index. With old statistics, Postgres would
# otherwise expect few wanted rows, and sort all of them for every page.
_BY_INDEX = text(
    "SELECT set_config(name, 'off', true) FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_hashjoin',"
    " 'enable_mergejoin']) AS name"
)


class Owner(Protocol):
    """The parts of a deployment that this module needs."""

    @property
    def database(self) -> Database:
        """The deployment's connections to Postgres."""
        ...

    @property
    def claims(self) -> Claims:
        """The deployment's claims in Redis."""
        ...

    @property
    def is_cell(self) -> bool:
        """Whether the deployment is one of several cells."""
        ...

    def cap(self, name: str) -> int:
        """The largest number of runs that a namespace may have at a time."""
        ...

    def namespace(self, name: str) -> NamespaceSettings | None:
        """The settings of a namespace, which may be 10 s old."""
        ...


class PostgresJobStorage:
    """Implements :class:`nexus_tasks.idempotency.engine.JobStorage` with Postgres."""

    def __init__(self, deployment: Owner) -> None:
        self.deployment = deployment

    def dead_letter(self, claim: Claim, error: BaseException | None) -> None:
        """Commit a dead letter for each job id of the claim, and take the claim's work out of the outbox."""
        why = dead_letters.Failure(
            error_type=type(error).__name__ if error else "WorkerLost",
            message=clean_text(with_quotation(error)) if error else "The worker died every time it ran this job.",
            traceback=clean_text("".join(traceback.format_exception(error))) if error else "",
            errors=claim.errors + (1 if error else 0),
            crashes=claim.crashes,
            first_at=datetime.fromtimestamp(claim.failing_since or claim.enqueued_at, UTC),
            worker=claim.worker.to_dict() if claim.worker else None,
        )
        flags, sources = claim.flags, getattr(error, "quoted_from", ())
        asked = dead_letters.Asked(force=flags.force, reasons=flags.reasons, urgency=flags.urgency)
        then = None
        with self.deployment.database.transaction() as tx:
            namespace = namespaces.find(tx, claim.namespace)
            if namespace is None:
                return
            if not memories.lock_existing(tx, sources):  # erased while the model was asked
                why = replace(why, message=dead_letters.ERASED_ERROR, traceback="")
            for job_id in (claim.job_id, *claim.also):
                _store(
                    tx,
                    namespace.id,
                    job_id=job_id,
                    kind=claim.kind,
                    scope=claim.scope,
                    args=claim.args,
                    asked=asked,
                    why=why,
                )
            mark(tx, namespace.id, claim.kind, claim.args, dead=True)
            kind = kinds.declared().get(claim.kind)
            if kind is not None and kind.on_dead is not None:
                then = kind.on_dead(self.deployment, tx, claim)
        if then is not None:
            then()

    def may_quote_erased(self, error: BaseException) -> bool:
        """Whether ``error`` may quote a memory that was erased since. ``True`` when Postgres cannot be asked."""
        sources = getattr(error, "quoted_from", ())
        if not sources:
            return False
        try:
            with self.deployment.database.transaction() as tx:
                return not memories.lock_existing(tx, sources)
        except NexusError:
            return True

    def undeliverable(self, job_id: str, kind: str, args: Mapping[str, Any], error: BaseException) -> None:
        """Commit a dead letter for a message with invalid arguments.

        When the arguments do not name an existing namespace, only a warning is logged.
        """
        name = args.get("namespace")
        why = dead_letters.Failure(
            error_type=type(error).__name__,
            message=clean_text(str(error)),
            traceback="",
            errors=1,
            crashes=0,
            first_at=datetime.now(UTC),
        )
        with self.deployment.database.transaction() as tx:
            namespace = namespaces.find(tx, clean_text(name)) if isinstance(name, str) else None
            if namespace is None:
                log.warning("A message of %s (%s) has wrong arguments and names no namespace: %s", kind, job_id, error)
                return
            _store(
                tx,
                namespace.id,
                job_id=job_id,
                kind=kind,
                scope=canonical({"namespace": namespace.name}),
                args={clean_text(key): _storable(value) for key, value in args.items()},
                asked=dead_letters.Asked(),
                why=why,
            )
        fields = {"job": job_id, "kind": kind, "namespace": namespace.name}
        log.error("Job %s (%s) is a dead letter.", job_id, kind, exc_info=error, extra=fields)

    def withdraw(self, claims: Sequence[Claim]) -> None:
        """Take the work of claims out of the outbox, and record each job as ``dropped``.

        The caller drops the claims afterwards.
        """
        with self.deployment.database.transaction() as tx:
            known = {name: namespaces.find(tx, name) for name in {claim.namespace for claim in claims}}
            for claim in claims:
                if namespace := known[claim.namespace]:
                    drop(tx, namespace.id, claim.kind, claim.args)
                    header = job_header(claim)
                    reruns = (claim.rerun_id,) if claim.rerun_id else ()  # they are dropped with the claim
                    header = replace(header, ids=(*header.ids, *reruns))
                    job_runs.record(tx, namespace.id, [header], JobOutcome(status="dropped"))

    def ended(self, claim: Claim, *, since: float | None) -> JobOutcome | None:
        """How the job of a claim has ended, or ``None`` when the job is still to be done.

        A job has ended when each of its ids has a run row, or when it is a dead letter.

        Args:
            claim: the claim.
            since: with a time (epoch seconds), a run of the same kind and scope that began then or later counts too.
        """
        began = None if since is None else datetime.fromtimestamp(since, UTC)
        with self.deployment.database.transaction() as tx:
            return job_runs.find_end(
                tx, (claim.job_id, *claim.also), claim.kind, claim.scope, remade=claim.remade, since=began
            )

    def outcome(self, job_id: str, kind: str, scope: str, since: float) -> JobOutcome | None:
        """How a job has ended, or ``None`` when it has not. ``since`` is the time of its request (epoch seconds)."""
        with self.deployment.database.transaction() as tx:
            return job_runs.find_outcome(tx, job_id, kind, scope, datetime.fromtimestamp(since, UTC))

    def wanted(self, kind: JobKind, after: int, limit: int) -> Sequence[tuple[int, Arguments | Request | None]]:
        """The next wanted rows of a kind after the cursor ``after``, at most ``limit`` rows.

        The rows of namespaces whose jobs another cell runs have no job.
        """
        assert kind.outbox is not None
        with self.deployment.database.transaction() as tx:
            tx.execute(_BY_INDEX)
            departed = namespaces.departed(tx)
            rows = kind.outbox.page(self.deployment, tx, after, limit)
        if not departed:
            return rows
        return [(cursor, None if job and job.namespace in departed else job) for cursor, job in rows]

    def want(self, kind: JobKind, arguments: Sequence[Arguments]) -> None:
        """Write the wanted rows for jobs of a kind. Some kinds have none.

        While Postgres does not answer, no row is written. The jobs then have only their claims in Redis, and are lost
        if Redis loses the claims.

        Raises:
            NotFound: there is no such namespace.
            NamespaceMoved: another cell has the namespace. No worker of this cell would ever run the jobs.
            Transient: Postgres works, but other transactions were in the way: they locked the rows for too long.
        """
        if kind.outbox is None or kind.outbox.want is None:
            self._refuse_moved(arguments)
            return
        try:
            for tries_left in range(WANT_TRIES - 1, -1, -1):
                try:
                    with self.deployment.database.transaction() as tx:
                        kind.outbox.want(tx, arguments)
                    return
                except StorageUnavailable:
                    raise
                except Transient:  # such as a deadlock: its other transaction has gone on
                    if not tries_left:
                        raise
        except StorageUnavailable as error:
            log.warning("No row wants the %d jobs of %s; Redis alone keeps them: %s", len(arguments), kind.name, error)

    def _refuse_moved(self, arguments: Sequence[Arguments]) -> None:
        if not self.deployment.is_cell:
            return
        for name in sorted({one.namespace for one in arguments}):
            try:
                known = self.deployment.namespace(name)
            except StorageUnavailable:
                return
            if known and known.residence == "left":
                raise NamespaceMoved(f"The namespace {name} has moved to another cell.")

    def newest(self, kind: JobKind, rows: int) -> int | None:
        """The cursor directly before the newest ``rows`` wanted rows of a kind.

        ``None`` when the kind has no function for this cursor.
        """
        if kind.outbox is None or kind.outbox.newest is None:
            return None
        with self.deployment.database.transaction() as tx:
            tx.execute(_BY_INDEX)
            return kind.outbox.newest(tx, rows)

    def cap(self, namespace: str) -> int:
        """The largest number of runs that a namespace may have at a time."""
        return self.deployment.cap(namespace)

    def answers(self) -> bool:
        """Whether Postgres accepts writes now, and is the database that the claims belong to.

        A trial write is needed, because a Postgres with a full disk still accepts connections and reads.
        """
        try:
            with self.deployment.database.transaction() as tx:
                namespaces.write_and_take_back(tx)
            self.verify()
        except Transient:
            return False
        except QueueUnavailable:
            return True  # only Redis does not answer, and this method reports on Postgres
        return True

    def release_ended_runs(self) -> Iterator[list[Wakeup]]:
        """Release the holds on budgets of runs that have ended, and wake the jobs that wait for the money.

        A run does both itself, except when its process dies.
        """
        with self.deployment.database.transaction() as tx:
            holds = ledger.holds_of_runs(tx)
        if not holds:
            return
        ended = self.deployment.claims.ended([(hold.claim_key, hold.token) for hold in holds])
        gone = [hold for hold, over in zip(holds, ended, strict=True) if over or hold.expired]
        if not gone:
            return
        with self.deployment.database.transaction() as tx:
            for hold in gone:
                ledger.end_hold(tx, hold.id)
        for namespace in sorted({hold.namespace for hold in gone}):
            most = max(self.deployment.cap(namespace), 1)
            yield from self.deployment.claims.hurry_all(BudgetHeld.wait_reason, namespace, most=most)
        with self.deployment.database.transaction() as tx:
            for hold in gone:
                ledger.release_hold(tx, hold.id)

    def verify(self) -> None:
        """Compare the identity of the database with the identity that Redis stores beside the claims.

        Raises:
            ForeignDatabase: the claims belong to another database.
            StorageUnavailable: Postgres does not answer.
            QueueUnavailable: Redis does not answer.
        """
        with self.deployment.database.transaction() as tx:
            own = identity.of_database(tx)
        if self.deployment.claims.identity(own) != own:
            raise ForeignDatabase

    def probe(self, kind: str) -> None:
        """Raise an error when the cause of the kind's pause still exists. A kind without a probe raises no error."""
        declared = kinds.declared().get(kind)
        if declared is not None and declared.probe is not None:
            declared.probe(self.deployment)


def _store(tx: Transaction, namespace_id: int, *, job_id: str, kind: str, **letter: Any) -> None:
    """Write a dead letter, and let webhooks be told of a new one."""
    declared = kinds.declared().get(kind)
    if dead_letters.store(tx, namespace_id, job_id=job_id, kind=kind, **letter) and (
        declared is None or declared.announced
    ):
        webhooks.tell(tx, namespace_id, "job.dead", {"job_id": job_id, "kind": kind})


def job_header(claim: Claim) -> job_runs.JobHeader:
    """The columns of a claim's run row that describe the job."""
    return job_runs.JobHeader(
        ids=(claim.job_id, *claim.also),
        kind=claim.kind,
        scope=claim.scope,
        reasons=claim.flags.reasons,
        attempts=claim.attempts,
        queued_at=_moment(claim.enqueued_at),
        started_at=_moment(claim.started_at),
        worker=claim.worker.to_dict() if claim.worker else None,
    )


def _moment(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _storable(value: Any) -> Any:
    """Convert an argument of a message so that Postgres can store it in JSON.

    Control characters are removed from texts. A value of an unusual type, such as a float (it may be NaN), becomes a
    text.
    """
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(each) for each in value]
    return value if value is None or isinstance(value, bool | int) else clean_text(str(value))


def mark(tx: Transaction, namespace_id: int, kind: str, args: object, *, dead: bool) -> None:
    """Take a job's wanted row out of the outbox (``dead``), or put the row back when a dead letter is retried."""
    declared = kinds.declared().get(kind)
    if declared is not None and declared.outbox is not None and declared.outbox.mark is not None:
        declared.outbox.mark(tx, namespace_id, args, dead=dead)


def drop(tx: Transaction, namespace_id: int, kind: str, args: object, *, dead: bool = False) -> None:
    """Take a job's wanted row out of the outbox, because an operator drops the job, or (``dead``) its dead letter."""
    declared = kinds.declared().get(kind)
    if declared is not None and declared.outbox is not None and declared.outbox.drop is not None:
        declared.outbox.drop(tx, namespace_id, args)
    elif not dead:
        mark(tx, namespace_id, kind, args, dead=True)
