"""Storing and reading wanted jobs. A wanted job is a row that asks for a job of a durable kind.

A durable kind is a job kind whose jobs a caller can ask for inside the caller's own transaction. The table of wanted
jobs is the outbox of these kinds: its rows ask for their jobs until the jobs have ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, delete, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from nexus_tasks.errors import NamespaceMoved, NamespaceMoving, NotFound
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Namespace, WantedJob


def want(tx: Session | Connection, namespace: str, kind: str, scope: str, args: Mapping[str, Any]) -> None:
    """Ask for a job. If a row with this kind and scope exists, the row gets the new arguments.

    A job that gave up becomes wanted again.

    Raises:
        NotFound: there is no such namespace.
    """
    want_all(tx, kind, {scope: (namespace, args)})


def want_all(tx: Session | Connection, kind: str, jobs: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Ask for many jobs of a kind, as :func:`want` asks for one.

    Args:
        jobs: scope → (namespace, arguments).

    Raises:
        NotFound: there is no such namespace.
        NamespaceMoving: the namespace is moving to another cell.
        NamespaceMoved: another cell has the namespace.
    """
    names = {namespace for namespace, _ in jobs.values()}
    columns = (Namespace.name, Namespace.id, Namespace.residence, Namespace.other_cell)
    found = tx.execute(select(*columns).where(Namespace.name.in_(names))).all()
    for row in found:
        if row.residence in ("leaving", "arriving"):
            raise NamespaceMoving(f"The namespace {row.name} is moving to another cell.")
        if row.residence == "left":
            raise NamespaceMoved(f"The namespace {row.name} has moved to the cell {row.other_cell}.")
    ids: dict[str, int] = {row.name: row.id for row in found}
    if unknown := sorted(names - ids.keys()):
        raise NotFound(
            f"There is no namespace {unknown[0]!r}.",
            remedy="Create it with `nexus namespaces create`, or ingest first.",
        )
    rows = [
        {"namespace_id": ids[namespace], "kind": kind, "scope": scope, "args": dict(args)}
        for scope, (namespace, args) in sorted(
            jobs.items(), key=itemgetter(0)
        )  # in one order, so that two callers do not deadlock
    ]
    for first in range(0, len(rows), 500):
        made = insert(WantedJob).values(rows[first : first + 500])
        again = {"args": made.excluded.args, "asked": WantedJob.asked + 1, "state": "wanted"}
        tx.execute(made.on_conflict_do_update(index_elements=["kind", "scope"], set_=again))


Row = tuple[int, int]  # the id of a wanted job's row, and how often the job was asked for since the row was made


def asked(tx: Transaction, kind: str, scope: str) -> Row | None:
    """The row that asks for the job, or ``None`` when no row does."""
    found = tx.execute(
        select(WantedJob.id, WantedJob.asked).where(
            WantedJob.kind == kind, WantedJob.scope == scope, WantedJob.state == "wanted"
        )
    ).first()
    return (found.id, found.asked) if found else None


def settle(tx: Transaction, row: Row) -> None:
    """Delete the job's row after a run, unless the job was asked for again during the run.

    Args:
        row: the result of :func:`asked` when the run began. A row that was inserted later has another id.
    """
    tx.execute(delete(WantedJob).where(WantedJob.id == row[0], WantedJob.asked == row[1]))


_IS_WANTED = text("wanted_jobs.state = 'wanted'")  # a literal, so that Postgres can use the partial index


def wanted(tx: Transaction, after: int, limit: int, kind: str) -> Sequence[tuple[int, Mapping[str, Any]]]:
    """At most ``limit`` wanted jobs of a kind with row ids above ``after``, as (row id, arguments)."""
    query = (
        select(WantedJob.id, WantedJob.args)
        .where(WantedJob.kind == kind, _IS_WANTED, WantedJob.id > after)
        .order_by(WantedJob.id)
        .limit(limit)
    )
    return [(row_id, args) for row_id, args in tx.execute(query)]


def newest(tx: Transaction, rows: int, kind: str) -> int:
    """The row id after which the newest ``rows`` wanted jobs of a kind come.

    The result is 0 when the kind has at most ``rows`` wanted jobs.
    """
    query = select(WantedJob.id).where(WantedJob.kind == kind, _IS_WANTED)
    return tx.scalar(query.order_by(WantedJob.id.desc()).offset(rows).limit(1)) or 0


def mark(tx: Transaction, kind: str, scope: str, *, dead: bool) -> None:
    """Set the state of a wanted job to ``dead`` when the job gives up, or to ``wanted`` when the job is retried."""
    tx.execute(
        update(WantedJob)
        .where(WantedJob.kind == kind, WantedJob.scope == scope)
        .values(state="dead" if dead else "wanted")
        .execution_options(synchronize_session=False)
    )
