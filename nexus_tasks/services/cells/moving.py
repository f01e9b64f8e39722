"""Moving a namespace from one cell to another, with nothing lost and nothing doubled.

The steps, in their order. Each is safe to repeat, so that a move that was cut off goes on where it was:

1. ``begin``: the directory notes the move and its id. One process at a time moves a namespace.
2. ``drain``: in the old cell no job of the namespace begins, and those that run end.
3. ``close``: in the old cell the namespace can only be read. Then the step waits for transactions that began before,
   and for model calls without a job, such as those of questions. Producers' messages go to their session buffers from
   here on.
4. ``copy``: one transaction in the new cell gets every row, and compares sums of both sides before it commits. Then the
   new cell gives only ids that are greater than those of the rows.
5. ``switch``: the directory says that the namespace lives in the new cell. This is the moment of the move.
6. ``leave``: the old cell refuses every call about the namespace, also of clients that do not know of the move.
7. ``open``: in the new cell the namespace can be written, and its jobs run.
8. ``carry``: jobs that only Redis knew of are asked for in the new cell.
9. ``erase``: the old cell deletes its copy. Its row of the namespace stays, and refuses old clients.
10. ``end``: the directory forgets the move.

Before ``switch``, moving the namespace to where it is gives the move up, and deletes the copy.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal, get_args

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from nexus_tasks.deployment import NAMESPACE_REMEMBERED_SECONDS, Deployment
from nexus_tasks.errors import (
    ConfigurationError,
    InvalidInput,
    NexusError,
    NotFound,
    QueueUnavailable,
    StorageUnavailable,
    Transient,
)
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claim_index import STATES, ClaimIndex
from nexus_tasks.idempotency.request import Request, compact
from nexus_tasks.idempotency.task import AT_ONCE
from nexus_tasks.services.cells import restored
from nexus_tasks.services.cells.router import Cells
from nexus_tasks.storage import audit, ledger, tenancy
from nexus_tasks.storage import cells as directory
from nexus_tasks.storage.engine import NO_TIMEOUTS_HERE
from nexus_tasks.storage.erasure import removing, vacuum
from nexus_tasks.storage.namespaces import USABLE
from nexus_tasks.storage.transfer import copying
from nexus_tasks.transcripts import context_file
from nexus_tasks.types import MoveReceipt, check_namespace

log = logging.getLogger(__name__)

Step = Literal["begin", "drain", "close", "copy", "switch", "leave", "open", "carry", "erase", "end"]
STEPS: tuple[Step, ...] = get_args(Step)
DRAIN_WITHIN = 300.0  # seconds for which a move waits for the running jobs, and for open transactions
_LOOK_EVERY = 0.25  # seconds
_UNLOCKED_WITHIN = 2.0  # seconds after which Postgres has freed the lock of a connection that was closed


@dataclass(frozen=True, kw_only=True)
class _Move:
    """A move under way: its id, the two cells, and whether the directory has switched already."""

    id: str
    namespace: str
    old: str
    new: str
    switched: bool


def move(
    cells: Cells,
    namespace: str,
    target: str,
    *,
    keep: bool = False,
    note: Callable[[Step], object] = lambda _step: None,
) -> MoveReceipt:
    """Move a namespace to the cell ``target``, or go on with a move that was cut off.

    Args:
        cells: the cells.
        namespace: the namespace.
        target: the cell. The namespace's present cell gives an unfinished move up.
        keep: leave the copy in the old cell. :func:`erase_copy` deletes it later.
        note: called after each step.

    Raises:
        NotFound: no cell has the namespace, or there is no such cell.
        InvalidInput: the namespace is moving to a third cell, or ``target`` has made another one of the same name.
        ConfigurationError: the table names a cell that the namespace has left, and no other cell, or several, have it.
        Transient: another process moves the namespace, or its jobs or transactions did not end in time. The move goes
            on when this is called again.
        StorageUnavailable: a cell does not answer.
    """
    if target not in cells.deployments:
        raise NotFound(f"There is no cell {target!r}.", remedy=f"The cells are {', '.join(sorted(cells.deployments))}.")
    check_namespace(namespace)
    with tenancy.unlimited(), _alone(cells, namespace):
        cells.forget(namespace)
        if _bring_back(cells, namespace, target):
            return MoveReceipt(namespace=namespace, cell=target, moved_from=None, rows={}, paused_seconds=0.0)
        here = _home(cells, namespace)
        if not _has(cells.deployments[here], namespace):
            raise NotFound(f"There is no namespace {namespace!r}.", remedy="See `nexus namespaces list`.")
        cells.name_of(namespace)  # notes it in the table
        for name in (here, target):
            cells.check(name)
        if restored.twin(cells, namespace, here, [target]):
            raise ConfigurationError(
                f"The cells {here} and {target} both have {namespace}.", remedy=restored.remedy(namespace)
            )
        if target != here and _is_made_again(cells.deployments[target], namespace):
            raise InvalidInput(
                f"The cell {target} has a namespace {namespace} of its own, which no client of the cells finds.",
                remedy=f"With NEXUS_CELL={target}, `nexus export` saves its memory. Without it, `nexus cells erase"
                f" {namespace} {target}` deletes that namespace, and then the move can begin.",
            )
        one = _begin(cells, namespace, here, target)
        if one is None:
            return MoveReceipt(namespace=namespace, cell=target, moved_from=None, rows={}, paused_seconds=0.0)
        note("begin")
        return _go_on(cells, one, keep=keep, note=note)


def _home(cells: Cells, namespace: str) -> str:
    """The cell that has a namespace. If the table names a cell that the namespace has left, the table is corrected.

    Without the correction, a move would open what that cell has left of the namespace, which is empty.

    Raises:
        ConfigurationError: no cell of the file, or more than one, has the namespace.
    """
    here = cells.name_of(namespace, writing=False)
    if cells.residence(here, namespace) != "left":
        return here
    having = restored.having(cells, namespace)
    if len(having) != 1 or not restored.correct(cells, namespace, having[0]):
        raise ConfigurationError(
            f"{namespace} has left the cell {here}, and {' and '.join(having) or 'no cell of the file'} has it.",
            remedy="Was a database restored? Compare the cells with `NEXUS_CELL=... nexus namespaces list`.",
        )
    return having[0]


def _bring_back(cells: Cells, namespace: str, target: str) -> bool:
    """Open a copy again that a move has left in ``target``. The cell that had the namespace does not know it any more.

    That cell's database was restored to before the move, and perhaps the table too. If no cell has a copy, the
    namespace is opened empty. Returns whether the namespace lives in ``target`` now.
    """
    state = cells.residence(cells.name_of(namespace, writing=False), namespace)
    having = restored.having(cells, namespace)
    # The last: this was cut off before the table was corrected.
    if (state, having) in (("left", []), (None, []), (None, [target])):
        cells.check(target)
        is_lost = state == "left" and restored.is_lost(cells, namespace)
        with cells.deployments[target].database.transaction() as tx:
            if directory.bring_back(tx, namespace, empty=is_lost):
                audit.record(tx, "move", namespace)
        if restored.having(cells, namespace) and restored.correct(cells, namespace, target):
            _let_jobs_run(cells.deployments[target], namespace)
            return True
    return False


@contextmanager
def _alone(cells: Cells, namespace: str) -> Iterator[None]:
    """Hold the lock of the namespace's moves. Postgres frees it when this process dies.

    Postgres frees it a moment after the connection was closed. So a call that follows another one waits for a moment.

    A transaction holds the lock. Behind a connection pooler, a lock of the session would outlive this process, and
    another mover could be in the same session.
    """
    lock = text("SELECT pg_try_advisory_xact_lock(hashtextextended('nexus move ' || :n, 0))")
    deadline = time.monotonic() + _UNLOCKED_WITHIN
    with cells.directory.database.dedicated_connection() as connection:
        connection.execute(text("BEGIN"))  # the connection is in autocommit mode
        connection.execute(NO_TIMEOUTS_HERE)
        while not connection.scalar(lock, {"n": namespace}):
            if time.monotonic() >= deadline:
                raise Transient(
                    f"Another process moves {namespace}.", remedy="Wait for it; `nexus cells list` shows the moves."
                )
            time.sleep(0.05)
        # The last statement must be one that needs no snapshot, because VACUUM would keep the rows that it could see.
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        try:
            yield
        finally:
            with suppress(DBAPIError):  # a lost connection changes nothing of what the move has done
                connection.execute(text("ROLLBACK"))


def _has(deployment: Deployment, namespace: str) -> bool:
    with deployment.database.transaction() as tx:
        return directory.is_here(tx, namespace)


def _is_made_again(deployment: Deployment, namespace: str) -> bool:
    """Whether a cell in which a namespace does not live has another one of the same name.

    A process without the file of cells has made it, or an earlier release, which did not ask the directory first.
    """
    with deployment.database.transaction() as tx:
        found = text("SELECT true FROM namespaces WHERE name = :n AND residence = 'here' AND move_id IS NULL")
        return bool(tx.scalar(found, {"n": namespace}))


def _begin(cells: Cells, namespace: str, here: str, target: str) -> _Move | None:
    """Note a new move, or find the unfinished one. ``None``: there is nothing to move, or a move was given up."""
    with cells.directory.database.transaction() as tx:
        row = directory.find(tx, namespace)
        assert row is not None
        if row.move_id is None and here != target:
            made = directory.begin_move(tx, namespace, target)
            return _Move(id=made, namespace=namespace, old=here, new=target, switched=False)
    if row.move_id is None:  # but a move may have been given up, and the process that gave it up has died
        _stay(cells, namespace, here, [name for name in cells.deployments if name != here])
        return None
    found = _Move(
        id=row.move_id,
        namespace=namespace,
        old=row.moved_from or row.cell,
        new=row.moving_to or row.cell,
        switched=row.moving_to is None,
    )
    if target == found.new:
        return found
    if target == found.old and not found.switched:
        _give_up(cells, found)
        return None
    raise InvalidInput(
        f"{namespace} is moving from {found.old} to {found.new}.",
        remedy=f"Finish that first: `nexus cells move {namespace} {found.new}`.",
    )


def _give_up(cells: Cells, one: _Move) -> None:
    with cells.directory.database.transaction() as tx:
        directory.end_move(tx, one.namespace, one.id)  # from now on `switch` refuses this move
    _stay(cells, one.namespace, one.old, [one.new])


def _stay(cells: Cells, namespace: str, cell: str, others: Sequence[str]) -> None:
    """Open a namespace in its cell again, and delete the copies that moves left in other cells. Safe to repeat."""
    home = cells.deployments[cell]
    with home.database.transaction() as tx:
        closed_by = tx.scalar(
            text("SELECT move_id FROM namespaces WHERE name = :n AND residence IN ('draining', 'leaving')"),
            {"n": namespace},
        )
    if closed_by is not None:
        _reside(home, namespace, "here", None, closed_by)
        _let_jobs_run(home, namespace)
    for name in others:
        try:  # an erasure in the namespace's cell would not reach the copy
            if _is_arriving(cells.deployments[name], namespace):
                _erase_copy(cells.deployments[name], namespace, cell)
        except NexusError as error:
            log.warning(
                "The cell %s may have a copy of %s still: %s Run `nexus cells erase %s %s`.",
                *(name, namespace, error.message, namespace, name),
            )


def _is_arriving(deployment: Deployment, namespace: str) -> bool:
    with deployment.database.transaction() as tx:
        found = text("SELECT true FROM namespaces WHERE name = :n AND residence = 'arriving'")
        return bool(tx.scalar(found, {"n": namespace}))


def _go_on(cells: Cells, one: _Move, *, keep: bool, note: Callable[[Step], object]) -> MoveReceipt:
    old, new = cells.deployments[one.old], cells.deployments[one.new]
    rows: dict[str, int] = {}
    paused_at = time.monotonic()
    if not one.switched:
        _check_unfinished(cells, one)
        _drain(old, one)
        note("drain")
        paused_at = time.monotonic()
        _close(old, one)
        note("close")
        _check_unfinished(cells, one)
        rows = _copy(old, new, one)
        _raise_ids(cells, one)
        note("copy")
        with cells.directory.database.transaction() as tx:
            directory.switch(tx, one.namespace, one.id)
            audit.record(tx, "move", one.namespace)
        cells.forget(one.namespace)
        note("switch")
    _reside(old, one.namespace, "left", one.new, one.id)
    old.forget_namespace(one.namespace)
    note("leave")
    _reside(new, one.namespace, "here", None, one.id)
    _let_jobs_run(new, one.namespace)
    paused = time.monotonic() - paused_at
    note("open")
    _check_unfinished(cells, one)
    _carry(old, new, one.namespace)
    note("carry")
    if not keep:
        _check_unfinished(cells, one)
        _erase_copy(old, one.namespace, one.new)
        note("erase")
    with cells.directory.database.transaction() as tx:
        directory.end_move(tx, one.namespace, one.id)
    note("end")
    return MoveReceipt(
        namespace=one.namespace, cell=one.new, moved_from=one.old, rows=rows, paused_seconds=round(paused, 2)
    )


def _check_unfinished(cells: Cells, one: _Move) -> None:
    """Check that no other process has finished this move, or given it up.

    The lock of :func:`_alone` ends with its connection, for example when the directory's Postgres restarts.

    Raises:
        Transient: another process has.
    """
    with cells.directory.database.transaction() as tx:
        row = directory.find(tx, one.namespace)
    if row is None or row.move_id != one.id:
        raise _taken_over(one)


def _taken_over(one: _Move) -> Transient:
    return Transient(
        f"Another process has gone on with the move of {one.namespace}, or has given it up.",
        remedy="Run `nexus cells list`, which shows the moves that are not finished.",
    )


# --- the steps --------------------------------------------------------------------------------------------------------
def _reside(deployment: Deployment, namespace: str, residence: str, other: str | None, move_id: str) -> bool:
    """Change where a namespace lives. Returns whether it is another place than before.

    Only the move that drained a namespace closes it, and only the move that closed it opens it. None drains or closes a
    namespace that has left.
    """
    with deployment.database.transaction() as tx:
        changed = tx.execute(
            text(
                "UPDATE namespaces SET residence = :residence, other_cell = :other,"
                " move_id = CASE WHEN :residence = 'here' THEN NULL ELSE :move END"
                " WHERE name = :n AND (residence <> :residence OR move_id IS DISTINCT FROM :move)"
                " AND (:residence NOT IN ('here', 'leaving') OR move_id = :move)"
                " AND (:residence NOT IN ('draining', 'leaving') OR residence <> 'left') RETURNING id"
            ),
            {"n": namespace, "residence": residence, "other": other, "move": move_id},
        )
        return changed.first() is not None


def _is_closed(old: Deployment, one: _Move) -> bool:
    with old.database.transaction() as tx:
        found = text("SELECT residence = 'leaving' AND move_id = :m FROM namespaces WHERE name = :n")
        return bool(tx.scalar(found, {"n": one.namespace, "m": one.id}))


def _drain(old: Deployment, one: _Move) -> None:
    """Let no job of the namespace begin, and wait until none runs.

    Model calls without a job go on. The step waits for those that it finds, so that the next one waits for few. The
    call of a process that was killed counts for minutes.
    """
    if _is_closed(old, one):  # this move was cut off after the drain
        return
    _reside(old, one.namespace, "draining", one.new, one.id)
    _let_jobs_run(old, one.namespace)  # that is: at most 0 of them
    index = ClaimIndex(old.claims)
    # A worker that has read the namespace before may begin a job until it reads it again.
    obeyed_at = time.monotonic() + NAMESPACE_REMEMBERED_SECONDS
    deadline = obeyed_at + DRAIN_WITHIN
    calls = _calls(old, one)
    while time.monotonic() < obeyed_at or index.running(one.namespace) or calls:
        calls = calls and calls & _calls(old, one)
        if time.monotonic() >= deadline:
            raise Transient(
                f"Jobs of {one.namespace}, or questions about it, still run after {DRAIN_WITHIN:.0f} s.",
                remedy="See `nexus jobs list --status running`. The same command goes on with the move, and"
                f" `nexus cells move {one.namespace} {one.old}` gives it up.",
            )
        time.sleep(_LOOK_EVERY)


def _calls(old: Deployment, one: _Move) -> set[int]:
    with old.database.transaction() as tx:
        return ledger.calls_without_job(tx, one.namespace)


_USERS = text(
    "SELECT DISTINCT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted"
    " AND relation = 'namespaces'::regclass AND database = (SELECT oid FROM pg_database WHERE datname ="
    " current_database()) AND pid <> pg_backend_pid()"
)


def _close(old: Deployment, one: _Move) -> None:
    """Let the namespace only be read, and wait for the transactions and model calls that may have seen it open.

    A transaction that has read the table ``namespaces`` keeps a lock on it until its end. A model call without a job
    has a hold, and enters its cost in the ledger before the hold ends.
    """
    if not _reside(old, one.namespace, "leaving", one.new, one.id) and not _is_closed(old, one):
        raise _taken_over(one)
    deadline = time.monotonic() + DRAIN_WITHIN
    before: set[str] | None = None
    while True:
        with old.database.transaction() as tx:
            now = set(tx.scalars(_USERS))
            calls = ledger.calls_without_job(tx, one.namespace)
        before = now if before is None else before & now
        if not before and not calls:
            return
        if time.monotonic() >= deadline:
            if not before:
                raise Transient(
                    f"A question to the model about {one.namespace} is open for more than {DRAIN_WITHIN:.0f} s.",
                    remedy="Give the same command again.",
                )
            raise Transient(
                f"A transaction of the cell {one.old} is open for more than {DRAIN_WITHIN:.0f} s.",
                remedy="End it (see pg_stat_activity), and give the same command again.",
            )
        time.sleep(_LOOK_EVERY)


def _copy(old: Deployment, new: Deployment, one: _Move) -> dict[str, int]:
    """Copy the namespace, unless this move has copied it already."""
    with new.database.transaction() as tx:
        if tx.scalar(
            text("SELECT true FROM namespaces WHERE name = :n AND residence = 'arriving' AND move_id = :m"),
            {"n": one.namespace, "m": one.id},
        ):
            return {}
    with ExitStack() as stack:
        source = stack.enter_context(old.database.snapshot())
        target = stack.enter_context(new.database.transaction())
        return dict(copying.copy(source, target, one.namespace, from_cell=one.old, move=one.id))


def _raise_ids(cells: Cells, one: _Move) -> None:
    """Let the tables of the new cell give only ids that are greater than those of the old cell and of the namespace.

    A reflection has read the facts up to an id. It would never read a later fact with a smaller id.
    """
    old, new = cells.deployments[one.old], cells.deployments[one.new]
    with cells.directory.database.transaction() as tx:
        number = directory.number_of(tx, one.new)
    with old.database.transaction() as tx:
        given = directory.highest_ids(tx)
    with new.database.transaction() as tx:
        own, here = directory.highest_ids_of(tx, one.namespace), directory.highest_ids(tx)
    for table, last in given.items():
        least = max(last, own.get(table, 0))
        if here[table] < least:
            _raise(new, number, table, least)


def _raise(new: Deployment, number: int, table: str, least: int) -> None:
    deadline = time.monotonic() + DRAIN_WITHIN
    while True:
        try:
            with new.database.transaction() as tx:
                # Writers of the table wait behind this transaction, which waits for those that have taken an id.
                tx.execute(text("SET LOCAL lock_timeout = 1000"))
                directory.space_ids(tx, number, {table: least}, [table])
            return
        except StorageUnavailable:
            raise
        except Transient:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_EVERY)


def _carry(old: Deployment, new: Deployment, namespace: str) -> None:
    """Ask in the new cell for the jobs that are queued in the old one, then drop them there.

    Jobs that rows of Postgres want are asked for anyway. This finds the others, such as those of a plain ``.delay()``.
    """
    index = ClaimIndex(old.claims)
    for state in STATES:
        while claims := index.page(state, namespace=namespace, limit=AT_ONCE).claims:
            now = old.claims.now()
            new.engine.publisher.enqueue([_request(new, claim, now) for claim in claims])
            _drop(old, claims)


def _request(new: Deployment, claim: Claim, now: float) -> Request:
    """The request for a claim's job. A kind that this process does not know is a worker's own."""
    # A caller chose this delay. Other waits begin anew: their causes may not exist in the new cell.
    delay = max((claim.due_at or now) - now, 0.0) if claim.wait_reason == "delay" else 0.0
    try:
        request = new.engine.kinds()[claim.kind].received(claim.args, delay=delay)
    except (KeyError, InvalidInput):  # the arguments may be of another release: a worker of it understands them
        request = Request(
            id=str(uuid.uuid4()),
            kind=claim.kind,
            namespace=claim.namespace,
            queue=claim.queue,
            scope=claim.scope,
            args=compact(claim.args),
            flags=claim.asked,
            while_running="rerun",
            immutable=False,
            delay=delay,
        )
    return replace(request, anew=True, flags=claim.asked)


def _drop(deployment: Deployment, claims: Sequence[Claim]) -> None:
    for claim in claims:
        _, wakeups = deployment.claims.drop(claim.key)
        deployment.engine.publisher.publish(wakeups)


def _let_jobs_run(deployment: Deployment, namespace: str) -> None:
    """Write to Redis how many jobs of the namespace may run now. Without Redis, workers do it within 60 s."""
    deployment.forget_namespace(namespace)
    try:
        deployment.engine.publisher.publish(deployment.claims.set_cap(namespace, deployment.cap(namespace)))
    except QueueUnavailable as error:
        log.warning("Redis is away, so the jobs of %s obey within 60 s: %s", namespace, error)


def erase_copy(cells: Cells, namespace: str, cell: str) -> dict[str, int]:
    """Delete what a cell has of a namespace that lives in another cell.

    The namespace has left the cell, its move to the cell was given up, or the cell has made another one of this name.
    If two cells have it because the database of one was restored, the table then names the other cell.

    Returns:
        The number of deleted rows of each table.

    Raises:
        InvalidInput: the namespace lives in this cell, is moving to it or from it, or was never there. Or no other cell
            has it.
        Transient: another process moves the namespace.
    """
    check_namespace(namespace)
    with tenancy.unlimited(), _alone(cells, namespace):
        cells.forget(namespace)
        with cells.directory.database.transaction() as tx:
            row = directory.find(tx, namespace)
            used = (row.cell, row.moving_to, row.moved_from) if row else (cells.directory_name,)
        gone, lives_in = None, used[0]
        missing = cell not in used and cells.residence(lives_in, namespace) is None
        if missing and namespace in restored.copies(cells, cell) and not restored.having(cells, namespace):
            raise InvalidInput(
                f"This is the only copy of {namespace}: the cell {lives_in} does not have it.",
                remedy=f"`nexus cells move {namespace} {cell}` lets the namespace live there again, as it was when it"
                " left. Erase memories with `nexus forget`.",
            )
        # While a move is under way, at most one cell has the namespace in use. If two have, the table's move is over.
        if row is not None and row.cell == cell and (other := restored.twin(cells, namespace, cell)):
            with cells.directory.database.transaction() as tx:  # the operator has said that `cell` has the older copy
                directory.correct(tx, namespace, was=cell, cell=other)
            lives_in = other
            gone = _erase_copy(cells.deployments[cell], namespace, lives_in, second=True)
        elif cell not in used:
            # No client uses a second namespace in this cell. But if the cell of the table has none, the table is older
            # than the last move, and this one is no second namespace.
            second = row is not None and cells.residence(row.cell, namespace) in USABLE
            gone = _erase_copy(cells.deployments[cell], namespace, lives_in, second=second)
        if gone is not None and row is not None and (row.move_id is None or lives_in != row.cell):
            _stay(cells, namespace, lives_in, ())  # a backup that was made during a move has the namespace closed
    if gone is None:
        remedy = "Erase memories with `nexus forget`."
        if row is not None and row.move_id is not None:
            remedy = f"Its move is not over. End it with `nexus cells move {namespace} {row.cell}`, and erase again."
        raise InvalidInput(f"{namespace} has not left this cell.", remedy=remedy)
    return gone


def _erase_copy(
    deployment: Deployment, namespace: str, lives_in: str, *, second: bool = False
) -> dict[str, int] | None:
    """Delete a namespace's rows in a cell where it does not live. ``None``: the cell has none, or it lives there.

    Args:
        second: delete also a second namespace of this name, which the cell uses.
    """
    with deployment.database.transaction() as tx:
        tx.execute(NO_TIMEOUTS_HERE)
        # The row of the namespace stays, and refuses clients that remember this cell from an earlier move.
        owner = tx.scalar(
            text(
                "UPDATE namespaces SET residence = 'left',"
                " other_cell = CASE residence WHEN 'left' THEN other_cell ELSE :cell END"
                " WHERE name = :n AND (residence IN ('left', 'arriving') OR :second AND residence = ANY(:usable))"
                " RETURNING id"
            ),
            {"n": namespace, "cell": lives_in, "second": second, "usable": list(USABLE)},
        )
        if owner is None:
            return None
        gone = dict(removing.remove_namespace(tx, int(owner), spared=()))
        audit.record(tx, "erase.moved", namespace, gone)
    index = ClaimIndex(deployment.claims)
    for state in STATES:
        _drop(deployment, index.every(state, namespace))
    try:  # no worker of this cell writes it any more
        context_file.erase(str(deployment.settings.home), namespace, everything=True)
    except OSError as error:
        log.warning("A context file of %s could not be erased: %s", namespace, error.strerror)
    vacuum.rewrite_tables(deployment.database, files=deployment.settings.embedded)
    return gone
