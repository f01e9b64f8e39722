"""Durable kinds: job kinds whose jobs can be asked for inside the caller's transaction, by a row in Postgres.

``want`` writes the row. After the transaction the job is claimed and published. If this step fails, reconcile (the loop
that asks for jobs that Postgres wants) asks for the job within about 10 s. A run deletes the row when its handler has
returned without an error. If the job was asked for again during the run, the run leaves the row. The row survives a
flush of Redis.

Some kinds, such as ``derive_memory``, have rows of their own that ask for jobs (``Outbox`` in ``idempotency/kind.py``).
Their jobs survive a flush of Redis too.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import ConfigurationError, InvalidInput, NexusError
from nexus_tasks.idempotency.kind import Arguments, JobKind, Outbox
from nexus_tasks.idempotency.request import Request, canonical
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.storage import wanted_jobs
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.tasks import follow_ups
from nexus_tasks.types import JobOutcome

log = logging.getLogger(__name__)

_PENDING = "nexus_wanted"  # in `Session.info`: the jobs that the session's present transaction wants


class Wanted:
    """A job that is wanted as soon as the transaction commits."""

    def __init__(self, deployment: Deployment, request: Request) -> None:
        self._deployment, self._request = deployment, request

    def enqueue(self) -> bool:
        """Ask for the job now, without waiting for reconcile. Call this after the commit.

        Returns:
            Whether the row that asks for the job was found. No row is found after a rollback or while Postgres is away.
        """
        try:
            with self._deployment.database.reading() as tx:
                there = wanted_jobs.asked(tx, self._request.kind, self._request.scope) is not None
        except NexusError:
            return False  # Postgres is away; reconcile asks for the job when Postgres is back
        if there:
            follow_ups.ask(self._deployment, [self._request])
        return there


def want(deployment: Deployment, kind: JobKind, tx: Session | Connection, kwargs: dict[str, Any]) -> Wanted:
    """Ask for a job inside a transaction of the deployment's database; see :meth:`nexus_tasks.jobs.Job.want`."""
    if not kind.durable:
        raise ConfigurationError(
            f"{kind.name} is not a durable kind, so that no row can ask for it.",
            remedy="Declare it with @job(durable=True), or ask with .delay() after the commit.",
        )
    arguments = kind.parse((), kwargs)
    request = kind.request_for(arguments)
    wanted_jobs.want(tx, request.namespace, request.kind, request.scope, json.loads(request.args))
    wanted = Wanted(deployment, request)
    if isinstance(tx, Session):
        _after_the_transaction(tx, wanted)
    return wanted


def _after_the_transaction(session: Session, wanted: Wanted) -> None:
    """Call ``wanted.enqueue`` after the session's outermost transaction. After a rollback the call finds no row."""
    if _PENDING not in session.info:
        session.info[_PENDING] = []
        event.listen(session, "after_transaction_end", _enqueue_pending)
    session.info[_PENDING].append(wanted)


def _enqueue_pending(session: Session, transaction: Any) -> None:
    if transaction.parent is None:
        pending, session.info[_PENDING] = session.info[_PENDING], []
        for wanted in pending:
            wanted.enqueue()


def outbox_of(kind: Callable[[], JobKind]) -> Outbox:
    """The outbox of a durable kind: its rows in ``wanted_jobs``."""

    def page(_deployment: Deployment, tx: Transaction, after: int, limit: int) -> list[tuple[int, Arguments | None]]:
        declared = kind()
        rows = wanted_jobs.wanted(tx, after, limit, declared.name)
        return [(row_id, _read(declared, args)) for row_id, args in rows]

    def mark(tx: Transaction, _namespace_id: int, args: Any, *, dead: bool) -> None:
        declared = kind()
        scope = canonical({name: args.get(name) for name in declared.arguments.scope})
        wanted_jobs.mark(tx, declared.name, scope, dead=dead)

    def newest(tx: Transaction, rows: int) -> int:
        return wanted_jobs.newest(tx, rows, kind().name)

    def want_all(tx: Transaction, asked: Sequence[Arguments]) -> None:
        declared = kind()
        jobs = {declared.scope_of(one): (one.namespace, one.model_dump(mode="json")) for one in asked}
        wanted_jobs.want_all(tx, declared.name, jobs)

    return Outbox(page=page, mark=mark, newest=newest, want=want_all)


def _read(kind: JobKind, args: Mapping[str, Any]) -> Arguments | None:
    try:
        return kind.load(args)
    except InvalidInput as error:  # another release wrote the row; the jobs of other rows are still asked for
        log.warning("A wanted job of %s cannot be asked for: %s", kind.name, error)
        return None


def settling(handler: Callable[[Run, Any], JobOutcome]) -> Callable[[Run, Any], JobOutcome]:
    """Wrap a handler, so that its run deletes the row that asked for the job, after the handler has returned.

    A crash between the handler's commit and the deletion leads to one more run. The handler must change nothing in the
    second run. For example, it can write its rows under unique keys.
    """

    @functools.wraps(handler)
    def handle(run: Run, arguments: Any) -> JobOutcome:
        database, primary = run.deployment.database, run.primary
        with database.reading() as tx:
            row = wanted_jobs.asked(tx, primary.kind, primary.scope)
        outcome = handler(run, arguments)
        if row is not None:
            with database.transaction() as tx:
                wanted_jobs.settle(tx, row)
        return outcome

    return handle
