"""A job kind: its name, its arguments, and the rules for its runs.

A :class:`JobKind` is a declaration, which the producer and the worker read. It uses neither Celery nor Redis nor
Postgres. To write a kind of your own, start at ``nexus_tasks/jobs.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError

from nexus_tasks.errors import ConfigurationError, InvalidInput, faults
from nexus_tasks.idempotency.request import URGENT, VERSION, Flags, Request, WhileRunning, canonical, compact
from nexus_tasks.types import JobOutcome

OURS = "nexus_tasks."  # the first part of the Celery names of this package's own kinds
RUN_LIMIT = 600.0  # seconds; model calls have timeouts of their own, which are shorter
LIVE = Flags(urgency="live")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # a NUL as JSON writes it


class Arguments(BaseModel):
    """A job's arguments, validated in the producer. ``scope`` names the fields that make two requests the same work."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    scope: ClassVar[tuple[str, ...]]
    namespace: str

    def flags(self) -> Flags:
        """The flags of the request. They are merged when another request asks for the same work."""
        return LIVE

    def each(self, deployment: Any) -> Sequence[Self]:  # noqa: ARG002 - a kind may need it to resolve a default
        """The arguments of each job that this call asks for: normally one job, with these arguments.

        A kind asks for several jobs when a default of an argument stands for several values.
        """
        return [self]


@dataclass(frozen=True, kw_only=True)
class Outbox:
    """The rows in storage that want jobs of one kind.

    The rows survive a flush of Redis, and then reconcile asks again for their jobs. ``tx`` is a transaction of the
    storage; ``deployment`` is the deployment that owns the storage.
    """

    # (deployment, tx, after, limit) -> up to `limit` rows behind the cursor `after`, in the order of their cursors.
    # Each row is (cursor, arguments of the job). Instead of the arguments it may have a request, or `None` while the
    # job must not be asked for yet.
    page: Callable[[Any, Any, int, int], Sequence[tuple[int, Arguments | Request | None]]]
    # (tx, namespace id, arguments, dead=...): takes the row out of the outbox, because its job became a dead letter
    # (dead=True), or puts it back, because the dead letter is retried (dead=False)
    mark: Callable[..., None] | None = None
    # (tx, namespace id, arguments): takes the row out of the outbox, because an operator drops the job or its dead
    # letter. Work that comes later is wanted again. Without this function a dropped job is marked as dead.
    drop: Callable[[Any, int, Any], None] | None = None
    # (tx, rows) -> the cursor behind which the newest `rows` rows are; reconcile reads these rows every 10 s
    newest: Callable[[Any, int], int] | None = None
    # (tx, arguments of jobs): writes the rows that want these jobs, before `.delay()` claims the jobs
    want: Callable[[Any, Sequence[Any]], None] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class JobKind:
    """One kind of job.

    Example: ``derive_memory`` has the arguments ``namespace``, ``memory_id`` and ``observer``, all three in its scope.
    """

    name: str  # in claims, Redis keys, run rows and dead letters
    task_name: str  # Celery's name of its task
    declared_at: str  # "module:function", for the error when two functions declare kinds of the same name
    arguments: type[Arguments]
    handler: Callable[[Any, Any], JobOutcome]  # (Run, arguments) -> outcome
    queue: str
    while_running: WhileRunning = "rerun"  # the meaning of a request that arrives during a run
    immutable: bool = False  # a finished job answers later requests too, while its done marker lasts
    gathers: str = ""  # a wait reason. When set, runs take siblings along (`Run.take`), also those that wait for it
    awaits: str = ""  # a wait reason. Jobs that wait for it do not count towards `NAMESPACE_JOBS`
    live_ends_wait: str = ""  # the wait reason that a request of urgency `live` ends at once
    outbox: Outbox | None = None
    durable: bool = False  # callers can ask for its jobs inside a transaction, by a row in storage
    probe: Callable[[Any], None] | None = None  # (deployment): raises while the cause of a pause lasts
    # (deployment, tx, claim) -> a step to take after the commit of the claim's dead letter, or None
    on_dead: Callable[[Any, Any, Any], Callable[[], None] | None] | None = None
    announced: bool = True  # webhooks are told of its dead letters
    run_limit: float = RUN_LIMIT  # seconds; a run that lasts longer loses its claim and counts as failed
    options: Mapping[str, Any] = field(default_factory=dict)  # further Celery options of its task

    def parse(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Arguments:
        """The validated arguments of a call.

        Raises:
            InvalidInput: names the field and its fault.
        """
        named = self.named(args, kwargs)
        return self._validated(lambda: self.arguments.model_validate(named))

    def load(self, args: Mapping[str, Any]) -> Arguments:
        """The arguments of a claim or a message, with times, tuples and the like read back from JSON.

        Arguments that this release does not know are ignored.

        Raises:
            InvalidInput: the arguments do not fit the model; another release wrote them.
        """
        unknown = self._unknown(args)
        text = json.dumps({name: value for name, value in args.items() if name not in unknown})
        return self._validated(lambda: self.arguments.model_validate_json(text))

    def received(self, args: Mapping[str, Any], *, job_id: str | None = None, delay: float = 0.0) -> Request:
        """The request for the job of a claim or a message. It keeps arguments that this release does not know.

        Raises:
            InvalidInput: the arguments do not fit the model; another release wrote them.
        """
        request = self.request_for(self.load(args), job_id=job_id, delay=delay)
        unknown = self._unknown(args)
        return replace(request, args=compact({**json.loads(request.args), **unknown})) if unknown else request

    def _unknown(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that only another release knows."""
        fields = self.arguments.model_fields
        known = {*fields, *(field.alias for field in fields.values() if field.alias)}
        return {name: value for name, value in args.items() if name not in known}

    @cached_property
    def dialect(self) -> str:
        """This release's version of the kind: the version of claims, and a hash of the scope and the arguments.

        The hash covers types, limits and permitted values, also those of nested models. It cannot cover the code of
        validators. Therefore a worker that starts tries every claim once that waits for another version.
        """
        text = repr((self.arguments.scope, _shape(self.arguments)))
        return f"{VERSION}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def named(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """Positional and keyword arguments as one mapping.

        Raises:
            InvalidInput: there are too many arguments, or an argument is given twice.
        """
        names = list(self.arguments.model_fields)
        if len(args or ()) > len(names):
            raise InvalidInput(f"{self.name} takes at most {len(names)} arguments.")
        named = dict(zip(names, args or (), strict=False))
        if twice := sorted(named.keys() & (kwargs or {}).keys()):
            raise InvalidInput(f"{self.name}: {', '.join(twice)} is given twice.")
        return named | dict(kwargs or {})

    def request_for(
        self, arguments: Arguments, *, job_id: str | None = None, delay: float = 0.0, wait_reason: str = "delay"
    ) -> Request:
        """The request that asks for this job with ``arguments``, due in ``delay`` seconds."""
        named, flags = arguments.model_dump(mode="json"), arguments.flags()
        args = compact(named)
        if "\\u0000" in args and _NUL.search(args):
            raise InvalidInput(f"{self.name}: an argument holds a NUL, which Postgres cannot store.")
        return Request(
            id=job_id or str(uuid.uuid4()),
            kind=self.name,
            namespace=arguments.namespace,
            queue=URGENT if flags.urgency == URGENT else self.queue,
            scope=self._canonical(named),
            args=args,
            flags=flags,
            while_running=self.while_running,
            immutable=self.immutable,
            live_ends_wait=self.live_ends_wait,
            delay=delay,
            wait_reason=wait_reason,
        )

    def scope_of(self, arguments: Arguments) -> str:
        """The canonical scope of a job with ``arguments``, as in :meth:`request_for`. It takes half as long."""
        return self._canonical(arguments.model_dump(mode="json", include=set(self.arguments.scope)))

    def _canonical(self, named: Mapping[str, Any]) -> str:
        return canonical({name: named[name] for name in self.arguments.scope})

    def _validated(self, validate: Callable[[], Arguments]) -> Arguments:
        try:
            return validate()
        except ValidationError as error:
            raise InvalidInput(f"{self.name}: {faults(error.errors())}.") from None


_declared: dict[str, JobKind] = {}
_listeners: list[Callable[[JobKind], None]] = []


def _shape(arguments: type[Arguments]) -> str:
    """The types, limits and permitted values of a kind's arguments, as text."""
    try:
        return compact(_without_words(arguments.model_json_schema()))
    except PydanticUserError:  # a type that has no JSON schema
        return repr(sorted((name, repr(field)) for name, field in arguments.model_fields.items()))


def _without_words(schema: Any) -> Any:
    """A JSON schema without the texts that are for people only."""
    if isinstance(schema, dict):
        kept = {name: _without_words(value) for name, value in schema.items() if name != "description"}
        return {name: value for name, value in kept.items() if name != "title" or not isinstance(value, str)}
    return [_without_words(one) for one in schema] if isinstance(schema, list) else schema


def declare(kind: JobKind) -> None:
    """Add a kind to the declared kinds. Every deployment of this process may run jobs of a declared kind.

    Raises:
        ConfigurationError: another function declares a kind of this name.
    """
    known = _declared.get(kind.name)
    if known is not None and known.declared_at != kind.declared_at:
        raise ConfigurationError(
            f"Two job kinds are named {kind.name!r}: {known.declared_at} and {kind.declared_at}.",
            remedy="Give one of them another name: @job(name=...).",
        )
    _declared[kind.name] = kind
    for listener in _listeners:
        listener(kind)


def declared() -> Mapping[str, JobKind]:
    """Every declared kind, by name."""
    return _declared


def on_declared(listener: Callable[[JobKind], None]) -> None:
    """Call ``listener`` with every declared kind, now and later."""
    _listeners.append(listener)
    for kind in _declared.values():
        listener(kind)


def task_name_of(kind: str) -> str:
    """Celery's name of a kind's task. A claim names a kind of this package without ``nexus_tasks.``."""
    return kind if "." in kind else OURS + kind
