"""The calls of a client of several cells: a method with a namespace goes to one cell, and the others to all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from nexus_tasks import limits
from nexus_tasks.errors import NamespaceMoving, StorageMisconfigured, Transient
from nexus_tasks.services import intake
from nexus_tasks.services.arguments import CHECKS
from nexus_tasks.services.cells import buffers, gathering
from nexus_tasks.services.cells.router import Cells
from nexus_tasks.services.limits import allowed_namespace
from nexus_tasks.storage import tenancy
from nexus_tasks.types import DroppedJobs, RetriedJobs

Calls = Mapping[str, Callable[..., Any]]  # cell → a method of its client
Options = dict[str, Any]

# Methods that make a namespace which does not exist.
_MAKE = frozenset({"ingest", "remember", "create_namespace", "import_", "import_markdown", "write_topic"})
_BUFFERED = frozenset({"ingest", "remember"})
# Methods that see the messages of a session in their order, and store first what waits in a buffer.
_IN_ORDER = frozenset({"session", "end_session"})
_OF_A_JOB = frozenset({"job", "retry_job", "drop_job"})


def call(client: Any, name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Options) -> Any:
    """Run the method ``name`` of a client of several cells.

    A method with a namespace goes to its cell. A method without one must have a function in ``_GATHERED``.
    """
    cells: Cells = client.cells
    bound = signature.bind(client, *args, **kwargs)
    namespace = bound.arguments.get("namespace")
    if "namespace" in signature.parameters:
        namespace = allowed_namespace(client.limit, namespace, name)
    elif name in _OF_A_JOB and len(client.limit or ()) == 1:
        [namespace] = client.limit  # its jobs are in its cell, and another cell may be silent for seconds
    if not isinstance(namespace, str) or name in _ASK_ALL_ALWAYS:
        gathered = _GATHERED.get(name)
        if gathered is None:  # a wrong argument, which any cell refuses
            return getattr(client.members[cells.directory_name], name)(*args, **kwargs)
        bound.apply_defaults()
        calls = {cell: _asking(cells, cell, getattr(member, name)) for cell, member in client.members.items()}
        return gathered(calls, {key: bound.arguments[key] for key in list(signature.parameters)[1:]})
    said = bound.arguments.get("messages")
    if isinstance(said, Iterator):  # it can be read once, and a namespace that has moved is called again
        bound.arguments["messages"] = list(islice(said, limits.MESSAGES_PER_CALL + 1))
        args, kwargs = bound.args[1:], bound.kwargs
    if name in _MAKE:
        # The MCP server has one client for all tenants, and limits each call.
        buffers.store_pending(cells, tenancy.limit() if client.limit is None else client.limit)
    session = _session(name, signature, bound)
    if name in _IN_ORDER and session and buffers.keeper(cells, namespace, session):
        buffers.store_pending(cells, {namespace})
    if name == "forget":  # a message that waits for another cell would come back
        _store_before_erasure(cells, namespace, bound.arguments)

    # A replacement is never buffered: the buffer cannot ask Postgres whether a message has changed.
    buffered = name in _BUFFERED and not bound.arguments.get("replace")

    def keep(cell: str) -> Any:
        if session:  # behind its messages that wait already
            cell = buffers.keeper(cells, namespace, session) or cell
        return intake.keep(cells.deployments[cell], **_as_call(bound.arguments))

    def ask(cell: str) -> Any:
        # The cell's own client looks at the cell's own buffer.
        if session and buffers.keeper(cells, namespace, session, beside=cell):
            if buffered:
                return keep(cell)
            if name == "end_session":  # messages stored later would open the session again
                raise NamespaceMoving(f"Messages of {namespace} wait in the session buffer.")
        return getattr(client.members[cell], name)(*args, **kwargs)

    try:
        found = cells.route(
            namespace,
            ask,
            writing=name in _MAKE,
            silent=keep if buffered else None,
        )
    except StorageMisconfigured:  # waiting does not help, so the messages could never be stored from the buffer
        raise
    except Transient:
        # Only the directory can be away here: a cell's own client has buffered the messages already.
        if not buffered or cells.knows(namespace):
            raise
        found = keep(cells.new)
    if getattr(found, "buffered", 0):
        buffers.note_buffered(cells)
    return found


def _session(name: str, signature: inspect.Signature, bound: inspect.BoundArguments) -> str | None:
    """The session of a call that reads or writes messages in their order; ``None`` for other calls."""
    if name not in _BUFFERED | _IN_ORDER:
        return None
    given = bound.arguments.get("session_key", signature.parameters["session_key"].default)
    return given if isinstance(given, str) else None


def _asking(cells: Cells, cell: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a cell's client, which is refused at once when the cell is silent."""
    return lambda **options: cells.silence.ask(cell, partial(method, **options))


def _as_call(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``ingest`` for those of ``ingest`` or ``remember``."""
    call = {key: value for key, value in given.items() if key != "self"}
    if "text" not in call:
        return call
    fields = {"content": call["text"], "author": call.get("author", "user")}
    fields |= {key: call[key] for key in ("expires_at", "erase_expired") if key in call}
    return {
        "namespace": call["namespace"],
        "session_key": call.get("session_key", "notes"),
        "messages": [fields],
    }


def _store_before_erasure(cells: Cells, namespace: str, given: Mapping[str, Any]) -> None:
    """Store what waits in other cells of what a call of ``forget`` erases. The call itself refuses wrong arguments."""
    session, everything = given.get("session_key"), given.get("everything") is True
    chosen = (given.get("memory_id") is not None, session is not None, everything)
    if sum(chosen) == 1 and isinstance(session, str | None):
        buffers.store_before_erasure(cells, namespace, session, whole=not chosen[0])


# --- methods that ask every cell --------------------------------------------------------------------------------------
def _listed(key: Callable[[Any], Any]) -> Callable[[Calls, Options], Any]:
    """A method that lists rows in pages; ``key`` sorts them as each cell does."""

    def gather(calls: Calls, options: Options) -> Any:
        limit, offset = options.pop("limit"), options.pop("offset")
        for given, value in (("limit", limit), ("offset", offset)):  # each cell is asked for other pages
            CHECKS[given](given, value)

        def page(call: Callable[..., Any], most: int, after: int) -> Any:
            return call(**options, limit=most, offset=after)

        return gathering.listed(calls, page, key, limit=limit, offset=offset)

    return gather


def _one(calls: Calls, options: Options) -> Any:
    return gathering.one(calls, lambda call: call(**options))


def _status(calls: Calls, options: Options) -> Any:
    answers, away = gathering.ask(calls, lambda call: call(**options))
    return gathering.status(answers, away, options["limit"])


def _finished(calls: Calls, options: Options) -> Any:
    return gathering.finished(*gathering.ask(calls, lambda call: call(**options)))


def _spend(calls: Calls, options: Options) -> Any:
    return gathering.spend(*gathering.ask(calls, lambda call: call(**options)))


def _changed(together: Callable[[Mapping[str, Any]], Any]) -> Callable[[Calls, Options], Any]:
    """A method that changes something in every cell; ``together`` makes one answer of theirs."""

    def gather(calls: Calls, options: Options) -> Any:
        return together(gathering.change(calls, lambda call: call(**options)))

    return gather


def _retried(answers: Mapping[str, RetriedJobs]) -> RetriedJobs:
    refused = {job: why for one in answers.values() for job, why in one.refused.items()}
    return RetriedJobs(retried=sum(one.retried for one in answers.values()), refused=refused)


def _dropped(answers: Mapping[str, DroppedJobs]) -> DroppedJobs:
    return DroppedJobs(dropped=sum(one.dropped for one in answers.values()))


def _by_job(job: Any) -> tuple[float, ...]:
    """The order of a listing of jobs: running, waiting, pending, dead letters, runs (see :meth:`Nexus.jobs`)."""
    place = {"running": 0, "waiting": 1, "pending": 2}.get(job.status, 3 if job.source == "dead_letters" else 4)
    moment = (job.started_at, job.queued_at, job.queued_at, job.finished_at, job.finished_at)[place]
    seconds = moment.timestamp() if moment else 0.0
    return place, seconds if place < 3 else -seconds


_GATHERED: Mapping[str, Callable[[Calls, Options], Any]] = {
    "namespaces": _listed(lambda found: found.namespace),
    "audit": _listed(lambda entry: -entry.at.timestamp()),
    "jobs": _listed(_by_job),
    "quarantined": _listed(lambda message: -message.at.timestamp()),
    "status": _status,
    "finished_jobs": _finished,
    "spend": _spend,
    "job": _one,
    "retry_job": _one,
    "drop_job": _one,
    "retry_jobs": _changed(_retried),
    "drop_jobs": _changed(_dropped),
    "drop_quarantined": _changed(lambda answers: sum(answers.values())),
    "repair_jobs": _changed(gathering.repaired),
    "resume_jobs": _changed(lambda answers: tuple(sorted({kind for kinds in answers.values() for kind in kinds}))),
}
_ASK_ALL_ALWAYS = frozenset({"audit"})  # entries stay in the cell in which something has happened
