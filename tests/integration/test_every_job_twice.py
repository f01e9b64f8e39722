"""Running every job twice, in any order, changes no row.

Every job kind is found by itself, and its arguments are made from what they are called: a kind whose arguments nobody
here knows fails the test until :data:`KNOWN` says what they may be.
"""

from __future__ import annotations

import importlib
import itertools
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, get_args, get_origin

import pytest

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.kind import OURS
from nexus_tasks.idempotency.task import JobTask
from nexus_tasks.jobs import Wait
from nexus_tasks.storage import dreams, webhooks
from tests.integration.inline import NAMESPACE, dump, say
from tests.sandbox import Sandbox, app

Job = tuple[JobTask, dict[str, Any]]

# What the arguments of jobs may be, by their names, in the world that `world` makes.
KNOWN: Mapping[str, Callable[[Sandbox], Sequence[Any]]] = {
    "namespace": lambda _: [NAMESPACE],
    "session_key": lambda here: _column(here, "SELECT session_key FROM sessions ORDER BY id"),
    "memory_id": lambda here: _column(here, "SELECT id FROM memories WHERE level = 'raw' ORDER BY id"),
    "observer": lambda _: ["assistant", "coach"],
    "subject": lambda _: ["ann", "bob"],
    "delivery_id": lambda here: _column(here, "SELECT id FROM webhook_deliveries ORDER BY id"),
    "dream_id": lambda here: _column(here, "SELECT id FROM dreams ORDER BY id"),
}
# A rebuild asks for a new generation every time, by its definition.
NEVER_THE_SAME = {"manual_rebuild"}
SAID = (
    ("ann", "I deploy the shop on Tuesdays."),
    ("bob", "I moved to Porto in March."),
    ("ann", "I drink green tea every morning."),
    ("ann", "Every morning I drink green tea, always."),
    ("bob", "I now live in Lisbon, no longer in Porto."),
    ("ann", "We moved the deploys of the shop from Tuesday to Thursday."),
    ("ann", "I deploy the shop on Thursdays now."),
    ("bob", "I have a dog called Rex."),
)


def _column(here: Sandbox, query: str) -> list[Any]:
    return [value for (value,) in here.sql(query)]


def kinds() -> list[JobTask]:
    """Every job kind that this version declares; not those that other tests have declared meanwhile."""
    return sorted(
        (
            task
            for name, task in app.tasks.items()
            if name.startswith(OURS) and isinstance(task, JobTask) and task.run.__module__.startswith("nexus_tasks.")
        ),
        key=lambda task: task.name,
    )


def jobs(here: Sandbox) -> Iterator[Job]:
    """Every job that there is to run: each kind with all the arguments that its fields may have."""
    for task in kinds():
        fields = task.kind.arguments.model_fields
        values = {name: found for name, field in fields.items() if (found := _values(here, name, field.annotation))}
        unknown = {name for name, field in fields.items() if field.is_required()} - values.keys()
        assert not unknown, (
            f"KNOWN does not say what {unknown} of {task.kind.name} may be: say it, so that it is run twice."
        )
        for chosen in itertools.product(*values.values()):
            yield task, dict(zip(values, chosen, strict=True))


def _values(here: Sandbox, name: str, annotation: Any) -> Sequence[Any]:
    """What an argument may be: by its type when that lists it, else by its name."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if value not in NEVER_THE_SAME]
    return KNOWN[name](here) if name in KNOWN else ()


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every webhook answers."""
    module = importlib.import_module("nexus_tasks.tasks.deliver_webhook")
    monkeypatch.setattr(module, "post", lambda *_args, **_given: 200)


def world() -> None:
    """Two sessions of two people, heard by two observers, a dream over both, and a webhook that is told of events."""
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"])
    for session in ("first", "second"):
        half = SAID[:4] if session == "first" else SAID[4:]
        month = 1 if session == "first" else 2
        said = (
            {"content": text, "author": author, "occurred_at": datetime(2026, month, day, tzinfo=UTC)}
            for day, (author, text) in enumerate(half, start=1)
        )
        say(*said, session=session)
    known = default_deployment().namespace(NAMESPACE)
    assert known is not None
    with default_deployment().database.transaction() as tx:
        dreams.start(tx, known.id, dreams.due_sessions(tx, known.id), urgency="dream")
    Nexus().create_webhook(NAMESPACE, "https://example.org/hook")
    with default_deployment().database.transaction() as tx:
        webhooks.tell(tx, known.id, "dream.finished", {"dream": 1, "sessions": 2})


def run(here: Sandbox, job: Job, job_id: str) -> str:
    """Run a job whose claim, and every other one, Redis has forgotten: only Postgres keeps it from being done twice."""
    task, arguments = job
    here.flush()
    try:
        return str(task.apply(kwargs=arguments, task_id=job_id, throw=True).result["status"])
    except Wait as wait:
        return wait.reason


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_every_job_run_twice_changes_no_row(here: Sandbox, seed: int) -> None:
    world()
    luck = random.Random(seed)
    todo = list(jobs(here))
    luck.shuffle(todo)
    # First: each job as it comes, and delivered once more under its own id.
    statuses = set()
    for job in todo:
        job_id = str(uuid.uuid4())
        statuses.add((job[0].kind.name, run(here, job, job_id)))
        before = dump(here)
        again = run(here, job, job_id)
        assert dump(here) == before, f"{job[0].kind.name}({job[1]}), which was {again} when it ran again, changed rows"
    # Then, once a round of all has changed nothing any more: all of them twice, in another order, under new ids.
    statuses |= settle(here, todo)
    effective = {kind for kind, status in statuses if status == "completed"}
    assert effective >= {"derive_memory", "digest_session", "finish_dream", "reflect_namespace", "reflect_perspective"}
    assert "extract_session" in effective
    before = dump(here, "job_runs")
    luck.shuffle(todo)
    for job in todo + todo[::-1]:
        run(here, job, str(uuid.uuid4()))
    assert dump(here, "job_runs") == before


def settle(here: Sandbox, todo: Sequence[Job]) -> set[tuple[str, str]]:
    """Run everything in its order until nothing is left to do: reflections of facts that came after them, say.

    Returns how the jobs ended, by kind.
    """
    statuses = set()
    for _ in range(4):
        before = dump(here, "job_runs")
        statuses |= {(job[0].kind.name, run(here, job, str(uuid.uuid4()))) for job in todo}
        if dump(here, "job_runs") == before:
            return statuses
    pytest.fail("Four rounds of every job, and the last one still changed rows.")


def test_facts_were_related_in_that_world(here: Sandbox) -> None:
    """The test above would prove little in a world where nothing happens."""
    world()
    for job in sorted(jobs(here), key=lambda job: job[0].name):
        run(here, job, str(uuid.uuid4()))
    levels = dict(here.sql("SELECT level, count(*) FROM memories GROUP BY level"))
    assert {"raw", "explicit", "contradiction", "summary_short", "summary_long"} <= levels.keys()
    assert here.sql("SELECT count(*) > 0 FROM memories WHERE superseded_by IS NOT NULL AND level = 'explicit'") == [
        (True,)
    ]
