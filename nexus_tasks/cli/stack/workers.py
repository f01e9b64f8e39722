"""A worker for the duration of one command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from nexus_tasks.cli.stack.processes import Child, environment, log_file
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.settings import Settings

_READY_SECONDS = 60.0
_GRACE_SECONDS = 10.0  # the command is over: what still runs is recovered by its lease


def worker_arguments(settings: Settings, node: str, concurrency: int | None) -> list[str]:
    """Celery's arguments for a worker named ``node``; ``concurrency=None`` leaves it to the Celery settings."""
    level = settings.log_level if "log_level" in settings.model_fields_set else "INFO"
    arguments = ["-A", "nexus_tasks", "worker", "--pool", "threads", "--loglevel", level, "--hostname", f"{node}@%h"]
    if settings.embedded:  # no other worker to learn from, or only briefly: asking would delay the start by a second
        arguments += ["--without-mingle", "--without-gossip"]
    return arguments if concurrency is None else [*arguments, "--concurrency", str(concurrency)]


def beat_arguments(settings: Settings) -> list[str]:
    """Celery's arguments for beat, with its schedule file under home and no pid file: the stack's lock replaces it."""
    schedule = str(settings.home / "beat-schedule")
    return ["-A", "nexus_tasks", "beat", "--loglevel", "INFO", "--pidfile", "", "--schedule", schedule]


@contextmanager
def temporary_worker(settings: Settings, concurrency: int | None = None, *, beat: bool = False) -> Iterator[None]:
    """A worker process, and beat if wanted, that live as long as the block; ready when it begins.

    They end with this process in any case, also when it is killed: see :mod:`nexus_tasks.cli.stack.child`.

    Raises:
        EmbeddedError: the worker does not start; with the end of its log.
    """
    node = f"nexus-temporary-{os.getpid()}"
    env = environment(settings)
    log = log_file(settings.home, "temporary-worker")
    worker = Child("worker", worker_arguments(settings, node, concurrency), env, log)
    children = [worker]
    if beat:
        children.append(Child("beat", beat_arguments(settings), env, log_file(settings.home, "temporary-beat")))
    started: list[Child] = []
    try:
        for child in children:
            started.append(child)
            child.start()
        if not worker.await_ready(_READY_SECONDS):
            raise EmbeddedError(
                f"The worker did not start: {worker.last_words()}",
                remedy=f"Read {log}, correct the cause and try again.",
            )
        yield
    finally:
        for child in started[1:]:
            child.terminate()  # while the worker ends, not after it
        for child in started:
            child.stop(_GRACE_SECONDS)


def live_workers(seconds: float = 1.0, *, most: int | None = None) -> list[str]:
    """The names of the workers that answer within ``seconds``; with ``most`` at the latest when so many have.

    Beat answers too, on the same channel: it is no worker.
    """
    from nexus_tasks.celery import app

    answers = app.control.broadcast("ping", reply=True, timeout=seconds, limit=most) or []
    found = sorted(node for answer in answers for node in answer if not node.startswith("celerybeat@"))
    return found if found or not answers or most is None else live_workers(seconds)


def worker_alive(seconds: float = 1.0) -> bool:
    """Whether any worker answers on this broker; returns with the first answer, ``False`` after ``seconds``."""
    return bool(live_workers(seconds, most=1))
