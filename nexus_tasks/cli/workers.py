"""Is there a worker? And one for the duration of a command where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nexus_tasks.cli import stack
from nexus_tasks.cli.output import hint, warn
from nexus_tasks.errors import QueueUnavailable

_OWN = "No worker answers: nothing is derived until one runs. Start one with `celery -A nexus_tasks worker`."
_EMBEDDED = "No worker runs: jobs wait until one does. Start one with `nexus up`."

_TEMPORARY = "nexus-temporary-"  # how the nodes of `stack.temporary_worker` begin
_PING_SECONDS = 1.0


def alive() -> bool:
    """Whether a stack of this home is up, or a worker answers that is there to stay.

    One that another command started for itself does not count: it may be gone before our jobs are done.

    Raises:
        QueueUnavailable: the broker does not answer.
    """
    from kombu.exceptions import OperationalError

    from nexus_tasks.settings import load_settings

    settings = load_settings()
    if settings.embedded and stack.supervisor_pid(settings.home) is not None:
        return True
    try:
        alive = stack.live_workers(_PING_SECONDS, most=1)
    except OperationalError as error:
        raise QueueUnavailable(f"The broker does not answer: {str(error).rstrip('.')}.") from error
    return any(not node.startswith(_TEMPORARY) for node in alive)


def say_when_there_is_none() -> None:
    """Tell a person that nothing is going to happen by itself."""
    from nexus_tasks.settings import load_settings

    try:
        found = alive()
    except QueueUnavailable as error:
        warn(f"{error.message} What was stored is queued by a worker once it does.")
        return
    if not found:
        hint(_EMBEDDED) if load_settings().embedded else warn(_OWN)


@contextmanager
def for_the_wait() -> Iterator[None]:
    """A worker for as long as the block lasts: the running one, or on the embedded stack one of its own.

    Raises:
        EmbeddedError: it does not start.
    """
    from nexus_tasks.settings import load_settings

    settings = load_settings()
    if alive():
        yield
    elif settings.embedded:
        with stack.temporary_worker(settings):
            yield
    else:
        warn(_OWN)
        yield
