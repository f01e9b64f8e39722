"""Run a worker for the duration of one command, and find the workers that answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

from nexus_tasks.cli.stack.processes import Child, environment, log_file, working_folder
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.settings import Settings

T = TypeVar("T")

_READY_SECONDS = 60.0
_GRACE_SECONDS = 10.0  # time for running jobs to finish; a job that is cut off runs again when its lease ends
_PUBLISH_SECONDS = 10.0  # chosen by hand, not measured


def worker_arguments(settings: Settings, node: str, concurrency: int | None) -> list[str]:
    """Celery's arguments for a worker named ``node``.

    With ``concurrency=None`` the Celery settings decide how many jobs the worker runs at a time.
    """
    level = settings.log_level if "log_level" in settings.model_fields_set else "INFO"
    arguments = ["-A", "nexus_tasks", "worker", "--pool", "threads", "--loglevel", level, "--hostname", f"{node}@%h"]
    if settings.embedded:  # a search for other workers delays the start by 1 s, and there are seldom other workers
        arguments += ["--without-mingle", "--without-gossip"]
    return arguments if concurrency is None else [*arguments, "--concurrency", str(concurrency)]


def beat_arguments(settings: Settings) -> list[str]:
    """Celery's arguments for beat.

    The schedule file is in the home folder. Beat needs no pid file, because the lock of ``nexus up`` replaces it.
    """
    schedule = str(settings.home / "beat-schedule")
    return ["-A", "nexus_tasks", "beat", "--loglevel", "INFO", "--pidfile", "", "--schedule", schedule]


@contextmanager
def temporary_worker(settings: Settings, concurrency: int | None = None, *, beat: bool = False) -> Iterator[None]:
    """Run a worker process during the ``with`` block. The worker is ready when the block begins.

    The worker and beat end with this process, also when this process is killed (see
    :mod:`nexus_tasks.cli.stack.child`).

    Args:
        settings: the settings that the processes get.
        concurrency: the number of jobs that the worker runs at a time. Default: the number in the Celery settings.
        beat: run beat too.

    Raises:
        EmbeddedError: the worker does not start. The message contains the last line of the worker's log.
    """
    node = f"nexus-temporary-{os.getpid()}"
    env = environment(settings)
    log = log_file(settings.home, "temporary-worker")
    folder = working_folder(settings.home)
    worker = Child("worker", worker_arguments(settings, node, concurrency), env, folder, log)
    children = [worker]
    if beat:
        beat_log = log_file(settings.home, "temporary-beat")
        children.append(Child("beat", beat_arguments(settings), env, folder, beat_log))
    started: list[Child] = []
    try:
        for child in children:
            started.append(child)
            child.start()
        if not worker.await_ready(_READY_SECONDS):
            raise EmbeddedError(
                f"The worker did not start: {worker.last_log_line()}",
                remedy=f"Read {log}, correct the cause and try again.",
            )
        yield
    finally:
        for child in started[1:]:
            child.terminate()  # beat ends while the worker ends
        for child in started:
            child.stop(_GRACE_SECONDS)


def within(seconds: float, question: Callable[[], T]) -> T:
    """The answer to a question to the workers.

    While the broker is away, Celery publishes a question again and again, without an end.

    Args:
        seconds: how long the question waits for answers. Publishing it may take 10 s more.
        question: asks the workers.

    Raises:
        kombu.exceptions.OperationalError: the broker does not answer.
    """
    from kombu.exceptions import OperationalError

    told, context = Future[T](), copy_context()

    def ask() -> None:
        try:
            told.set_result(context.run(question))
        except BaseException as error:
            told.set_exception(error)

    Thread(target=ask, name="nexus-question", daemon=True).start()
    try:
        return told.result(seconds + _PUBLISH_SECONDS)
    except TimeoutError as error:
        if told.done():
            raise
        raise OperationalError(f"It has taken no message for {_PUBLISH_SECONDS:.0f} s.") from error


def live_workers(seconds: float = 1.0, *, most: int | None = None) -> list[str]:
    """The names of the workers that answer within ``seconds``.

    Beat answers too, but its name is left out.

    Args:
        seconds: how long to wait for answers.
        most: return as soon as this number of answers has come. By default the call waits the whole time.

    Raises:
        kombu.exceptions.OperationalError: the broker does not answer.
    """
    from nexus_tasks.celery import app

    answers = within(seconds, lambda: app.control.broadcast("ping", reply=True, timeout=seconds, limit=most)) or []
    found = sorted(node for answer in answers for node in answer if not node.startswith("celerybeat@"))
    return found if found or not answers or most is None else live_workers(seconds)


def worker_alive(seconds: float = 1.0) -> bool:
    """Whether a worker of this broker answers within ``seconds``. The call returns after the first answer."""
    return bool(live_workers(seconds, most=1))
