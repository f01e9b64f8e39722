"""Find out whether a worker runs, and run a worker during one command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nexus_tasks.cli import stack
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.output import hint, warn
from nexus_tasks.cli.progress import explain_interrupt
from nexus_tasks.errors import QueueUnavailable

_OWN = "No worker answers: nothing is derived until one runs. Start one with `celery -A nexus_tasks worker`."
_EMBEDDED = "No worker runs: jobs wait until one does. Start one with `nexus up`."

_GO_ON = "The jobs go on without this command: see `nexus status`."
_STAY = "What is stored stays. The jobs that are left go on when a worker runs: `nexus up`."

_TEMPORARY = "nexus-temporary-"  # the start of the node name of every `stack.temporary_worker`
_PING_SECONDS = 1.0


def worker_runs() -> bool:
    """Whether the embedded stack of this home folder runs, or a permanent worker answers a ping.

    The temporary worker of another command does not count, because it may end before this command's jobs are done.

    Raises:
        QueueUnavailable: the broker does not answer.
    """
    from kombu.exceptions import OperationalError

    from nexus_tasks.settings import load_settings

    settings = load_settings()
    if settings.embedded and stack.supervisor_pid(settings.home) is not None:
        return True
    broker = connect().deployment.app.connection_for_write()
    try:
        alive = stack.live_workers(_PING_SECONDS, most=1)
    except (OperationalError, *broker.connection_errors, *broker.channel_errors) as error:
        raise QueueUnavailable(f"The broker does not answer: {str(error).rstrip('.')}.") from error
    return any(not node.startswith(_TEMPORARY) for node in alive)


def warn_if_none() -> None:
    """When no worker runs, print on standard error that the queued jobs wait for a worker."""
    from nexus_tasks.settings import load_settings

    if _chooses_cells():
        return
    try:
        found = worker_runs()
    except QueueUnavailable as error:
        warn(f"{error.message} When the broker answers again, a worker queues the jobs.")
        return
    if not found:
        hint(_EMBEDDED) if load_settings().embedded else warn(_OWN)


@contextmanager
def worker_for_wait() -> Iterator[str]:
    """Run the ``with`` block while a worker runs.

    A process that uses several cells starts nothing and prints nothing, because each cell has workers of its own.
    Otherwise, when no worker runs yet, the servers decide. With the embedded servers of this package, a temporary
    worker runs during the block. With other servers, only a warning is printed. The value of the block says what
    becomes of the jobs when Ctrl-C ends the wait.

    Raises:
        EmbeddedError: the worker does not start.
        QueueUnavailable: the broker does not answer.
    """
    from nexus_tasks.settings import load_settings

    if _chooses_cells():
        yield _GO_ON
        return
    settings = load_settings()
    if worker_runs():
        yield _GO_ON
    elif settings.embedded:
        with ExitStack() as running:
            with explain_interrupt(lambda: _STAY):  # a worker starts in some seconds
                running.enter_context(stack.temporary_worker(settings))
            yield _STAY
    else:
        warn(_OWN)
        yield _GO_ON


def _chooses_cells() -> bool:
    """Whether this process uses several cells. Each cell has its own broker, and this process asks none of them."""
    return connect().cells is not None
