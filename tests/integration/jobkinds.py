"""Job kinds whose bodies the tests control. Workers import this module too: ``here.worker(*WITH_KINDS)``.

What a body does is its argument ``plan``, a word per attempt (the last one again and again), or in the test's own
process a function in ``BODIES``. Every attempt is noted in Redis, with the process that made it.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from celery import Celery, current_task
from celery.exceptions import Ignore, Reject, Retry

from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import Misconfigured, OverBudget, Permanent, Throttled, Transient
from nexus_tasks.idempotency.request import URGENT, Flags
from nexus_tasks.idempotency.task import on_every_app
from nexus_tasks.idempotency.worker.run import Run, Wait
from nexus_tasks.jobs import Arguments, job
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace
from nexus_tasks.types import JobOutcome
from tests.integration.inline import run_claim
from tests.sandbox import Current, app

WITH_KINDS = ("--include", "tests.integration.jobkinds")
ROOT = {"PYTHONPATH": str(Path(__file__).parents[2])}

BODIES: dict[str, Callable[[Run, Any], Any]] = {}
ERRORS: dict[str, Callable[[], BaseException]] = {
    "transient": lambda: Transient("away"),
    "throttled": lambda: Throttled("slow down", retry_after=7.0),
    "over budget": lambda: OverBudget("spent"),
    "misconfigured": lambda: Misconfigured("401"),
    "permanent": lambda: Permanent("never"),
    "bug": lambda: ZeroDivisionError("a bug"),
    "wait": lambda: Wait("ripeness", 9.0, "soon"),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "ignore": Ignore,
    "reject": lambda: Reject("not mine"),
    "celery retry": lambda: Retry("once more"),
}
OF_THE_TASK: dict[str, Callable[[str], Any]] = {
    "replace": lambda name: current_task.replace(note.si(name=f"{name}-replaced")),
    "task retry": lambda _: current_task.retry(),
    "add to chord": lambda name: current_task.add_to_chord(note.si(name=f"{name}-replaced")),
}


class Play(Arguments):
    """A job that does what it is told."""

    scope: ClassVar = ("namespace", "name")
    namespace: str = "acme"
    name: str = "a"
    plan: tuple[str, ...] = ("ok",)
    reason: str = ""
    at: datetime | None = None
    share: float = 0.5

    def flags(self) -> Flags:
        """One reason. The reason ``urgent`` makes the job urgent."""
        urgency = URGENT if self.reason == URGENT else "live"
        return Flags(force=self.reason == "forced", reasons=(self.reason,) if self.reason else (), urgency=urgency)


def perform(run: Run, arguments: Play) -> Any:
    """Do what the plan says for this attempt."""
    store = run.store.redis
    log = f"{run.store.prefix}:test:{arguments.name}"
    attempt = store.rpush(log, f"{os.getpid()} {','.join(run.flags.reasons)}") - 1
    if arguments.name in BODIES:
        return BODIES[arguments.name](run, arguments)
    word = arguments.plan[min(attempt, len(arguments.plan) - 1)]
    if word in ERRORS:
        raise ERRORS[word]()
    if word in OF_THE_TASK:
        OF_THE_TASK[word](arguments.name)
    if word.startswith("ask "):
        play.delay(name=word.removeprefix("ask "))
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "nap":
        time.sleep(0.2)
    if word == "hold":  # until the test lets it go on, or it loses its claim
        while not _go(arguments.name).exists():
            run.check()
            time.sleep(0.02)
    if word == "hang":  # until the test lets it go on; it never asks whether its claim is lost
        while not _go(arguments.name).exists():
            time.sleep(0.02)
    if word == "block":  # for ever in C code that lets no other thread of this process run
        deque(itertools.repeat(None), maxlen=0)
    return JobOutcome(status="completed")


@job(arguments=Play, queue="maintenance", name="nexus_tasks.play")
def play(run: Run, arguments: Play) -> JobOutcome:
    """Asked for again while it runs, it runs again."""
    return perform(run, arguments)  # type: ignore[no-any-return]


@job(arguments=Play, queue="reflect", while_running="drop", immutable=True, name="nexus_tasks.play_once")
def play_once(run: Run, arguments: Play) -> JobOutcome:
    """Its input cannot change."""
    return perform(run, arguments)  # type: ignore[no-any-return]


@job(
    arguments=Play,
    queue="derive",
    while_running="drop",
    immutable=True,
    gathers="ripeness",
    name="nexus_tasks.play_together",
)
def play_together(run: Run, arguments: Play) -> JobOutcome:
    """Takes the siblings that its plan names along."""
    run.take([play_together.request_for(Play(namespace=arguments.namespace, name=name)) for name in arguments.plan])
    return perform(run, arguments)  # type: ignore[no-any-return]


@job(arguments=Play, queue="capture", run_limit=1.0, name="nexus_tasks.play_briefly")
def play_briefly(run: Run, arguments: Play) -> JobOutcome:
    """It may run for one second."""
    return perform(run, arguments)  # type: ignore[no-any-return]


@job(arguments=Play, queue="maintenance", name="nexus_tasks.play_kept")
@in_namespace
def play_kept(work: NamespaceRun, arguments: Play) -> JobOutcome:
    """Writes a run row with details."""
    outcome = replace(perform(work.run, arguments), details={"answer": 42})
    with work.database.transaction() as tx:
        return work.commit(tx, outcome)


@job(arguments=Play, queue="nowhere", name="nexus_tasks.play_nowhere")
def play_nowhere(run: Run, arguments: Play) -> JobOutcome:
    """Its queue does not exist."""
    return perform(run, arguments)  # type: ignore[no-any-return]


def _note(*given: Any, name: str) -> str:
    """No job: a plain Celery task that notes that it was called, and with what. For links and bodies."""
    claims = default_deployment().claims
    claims.redis.rpush(f"{claims.prefix}:test:heard:{name}", json.dumps(given, default=str))
    return name


def _linger(name: str) -> None:
    """No job: a plain Celery task that runs until the test lets it go on."""
    _note(name, name=name)
    while not _go(name).exists():
        time.sleep(0.02)
    _note(name, name=name)


def _fail(name: str) -> None:
    """No job: a plain Celery task that fails."""
    raise ValueError(name)


def _add_plain_tasks(celery: Celery) -> None:
    celery.task(name="tests.note", shared=False)(_note)
    celery.task(name="tests.linger", shared=False)(_linger)
    celery.task(name="tests.fail", shared=False)(_fail)


on_every_app(_add_plain_tasks)
note: Any = Current(lambda: app.tasks["tests.note"])
linger: Any = Current(lambda: app.tasks["tests.linger"])
fail: Any = Current(lambda: app.tasks["tests.fail"])


def heard(name: str) -> list[list[Any]]:
    """What each call of :func:`note` was given."""
    claims = default_deployment().claims
    return [json.loads(row) for row in claims.redis.lrange(f"{claims.prefix}:test:heard:{name}", 0, -1)]


def attempts(name: str = "a") -> list[tuple[int, str]]:
    """Process and merged reasons of every attempt so far."""
    claims = default_deployment().claims
    rows = claims.redis.lrange(f"{claims.prefix}:test:{name}", 0, -1)
    return [(int(row.partition(" ")[0]), row.partition(" ")[2]) for row in rows]


def go(name: str = "a") -> None:
    """Let a job that holds go on."""
    _go(name).touch()


def _go(name: str) -> Path:
    return default_deployment().settings.home / f"go-{name}"


def work() -> list[dict[str, Any]]:
    """Run what is pending now in this process, as a worker's thread would; returns the results."""
    claims = default_deployment().claims
    pending = [claim for queue in claims.queues() for claim in claims.pending(queue)]
    return [run_claim(claim) for claim in pending]
