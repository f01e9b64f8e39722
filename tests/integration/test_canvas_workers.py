"""Celery's canvases around jobs, in one real worker: bodies and links run once, after the work."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import Signature

from nexus_tasks import Nexus
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.errors import UnsupportedOption
from tests.integration.inline import due_at_once
from tests.integration.jobkinds import ROOT, WITH_KINDS, attempts, go, heard, note, play, play_once
from tests.sandbox import Sandbox, Worker, app, engine, eventually, sandbox

LONG = 90.0  # seconds: a deadline for a machine that is busy with other things


@pytest.fixture(scope="module")
def here(servers: ServerAddresses) -> Iterator[Sandbox]:
    """One worker for all canvases: what they wait for are their own jobs."""
    with sandbox(servers, NEXUS_LEASE_SECONDS="3") as made:
        Nexus().create_namespace("acme")
        started(made)
        yield made


def started(here: Sandbox, **options: Any) -> Worker:
    worker = here.worker(*WITH_KINDS, **options, **ROOT)
    name = uuid.uuid4().hex
    play.delay(name=name)
    eventually(lambda: attempts(name), within=LONG)  # it consumes: it has run a job
    return worker


@pytest.fixture
def tag(here: Sandbox) -> str:  # noqa: ARG001
    """A prefix for the names of one test's jobs."""
    return uuid.uuid4().hex[:8]


def job(tag: str, name: str = "a", **options: Any) -> Signature:
    return play.si(name=f"{tag}{name}", **options)


def ran(tag: str, name: str = "a") -> int:
    return len(attempts(f"{tag}{name}"))


def canvas_is_over() -> bool:
    """Whether no claim is left, and no delivery waits."""
    claims = engine.claims
    keys = claims.redis.scan_iter(f"{claims.prefix}:delivery:*", count=1_000)
    return claims.counts("acme") == {} and not list(keys)


def over(tag: str, *, times: int = 1) -> list[list[Any]]:
    """Wait until the canvas has called its body, and everything is accounted for: then it cannot come again."""
    eventually(lambda: len(heard(tag)) >= times, within=LONG)
    eventually(canvas_is_over, within=LONG)
    calls = heard(tag)
    assert len(calls) == times
    return calls


# --- chords -----------------------------------------------------------------------------------------------------------
def test_the_body_of_a_chord_runs_once_after_its_work(tag: str) -> None:
    header = [job(tag, "x", plan=("hold",), reason=f"r{i}") for i in range(3)] + [job(tag, "y"), job(tag, "z")]
    chord(header, note.s(name=tag)).apply_async()
    eventually(lambda: ran(tag, "x") and ran(tag, "y") and ran(tag, "z"), within=LONG)
    assert heard(tag) == []
    go(f"{tag}x")
    [[results]] = over(tag)
    assert [result["status"] for result in results] == ["completed"] * 5
    assert ran(tag, "y") == ran(tag, "z") == 1
    assert ran(tag, "x") <= 2  # merged, or run again for those that came while it ran


def test_a_chord_waits_for_work_that_runs_already(tag: str) -> None:
    play.delay(name=f"{tag}x", plan=("hold",))
    play_once.delay(name=f"{tag}y", plan=("hold",))
    eventually(lambda: ran(tag, "x") and ran(tag, "y"), within=LONG)
    chord([job(tag, "x"), play_once.si(name=f"{tag}y"), job(tag, "z")], note.s(name=tag)).apply_async()
    eventually(lambda: ran(tag, "z"), within=LONG)
    assert heard(tag) == []
    go(f"{tag}y")
    go(f"{tag}x")
    over(tag)
    assert (ran(tag, "x"), ran(tag, "y")) == (2, 1)  # what was asked for during a run runs once more


def test_a_chord_waits_for_members_that_wait(tag: str, here: Sandbox) -> None:
    chord([job(tag, "x", plan=("wait", "ok")), job(tag, "y", plan=("bug", "ok"))], note.s(name=tag)).apply_async()
    eventually(lambda: ran(tag, "x") and ran(tag, "y"), within=LONG)
    eventually(lambda: due_at_once(here) or heard(tag), within=LONG)
    over(tag)
    assert ran(tag, "x") == ran(tag, "y") == 2


def test_a_chord_whose_member_is_dead_fails_and_says_so(tag: str) -> None:
    ill = note.s(name=f"{tag}ill")
    chord([job(tag, "x", plan=("permanent",)), job(tag, "y")], note.s(name=tag).on_error(ill)).apply_async()
    over(f"{tag}ill")
    assert heard(tag) == []


def test_a_nested_canvas_runs_inside_out(tag: str) -> None:
    inner = chord([job(tag, "x"), job(tag, "y")], job(tag, "inner"))
    chord([inner, chain(job(tag, "z"), job(tag, "x", reason="again"))], note.s(name=tag)).apply_async()
    over(tag)
    assert ran(tag, "inner") == ran(tag, "y") == ran(tag, "z") == 1


def test_a_body_may_be_a_job(tag: str) -> None:
    chord([job(tag, "x"), job(tag, "y")], job(tag, "body") | note.s(name=tag)).apply_async()
    [[result]] = over(tag)
    assert result["status"] == "completed"
    assert ran(tag, "body") == 1


# --- chains and groups ------------------------------------------------------------------------------------------------
def test_a_chain_goes_on_when_the_work_of_its_step_is_done_elsewhere(tag: str) -> None:
    elsewhere = play_once.delay(name=f"{tag}x", plan=("hold",))
    eventually(lambda: ran(tag, "x"), within=LONG)
    chain(play_once.si(name=f"{tag}x"), job(tag, "y"), play_once.si(name=f"{tag}x"), note.s(name=tag)).apply_async()
    assert ran(tag, "y") == 0
    go(f"{tag}x")
    [[result]] = over(tag)
    assert result["job_id"] == elsewhere.id  # the third step found it done
    assert (ran(tag, "x"), ran(tag, "y")) == (1, 1)


def test_a_chain_stops_at_a_dead_step(tag: str) -> None:
    ill = note.si(name=f"{tag}ill")
    chain(job(tag, "x", plan=("permanent",)), job(tag, "y")).apply_async(link_error=ill)
    over(f"{tag}ill")
    assert ran(tag, "y") == 0


def test_results_that_are_wanted_are_stored_for_every_duplicate(tag: str) -> None:
    asked = group(job(tag, "x", reason=f"r{i}").set(ignore_result=False) for i in range(4)).apply_async()
    results = asked.get(timeout=LONG)
    assert [result["status"] for result in results] == ["completed"] * 4
    assert asked.successful()


@pytest.mark.long
def test_the_documented_canvas_does_what_the_page_says(here: Sandbox) -> None:
    page = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
    code = page.partition("## Canvas")[2].partition("```python\n")[2].partition("```")[0]
    exec(code, {})
    runs = "SELECT status FROM job_runs WHERE kind = 'reflect_namespace' AND scope LIKE '%harbour%'"
    eventually(lambda: here.sql(runs), within=LONG)
    [(digests,)] = here.sql("SELECT count(DISTINCT scope) FROM job_runs WHERE kind = 'digest_session'")
    assert digests == 2
    eventually(canvas_is_over, within=LONG)
    assert len(here.sql(runs)) == 1


# --- links ------------------------------------------------------------------------------------------------------------
def test_each_callers_link_fires_once(tag: str) -> None:
    play.delay(name=f"{tag}x", plan=("hold",))
    eventually(lambda: ran(tag, "x"), within=LONG)
    for i in range(3):
        play.apply_async(kwargs={"name": f"{tag}x"}, link=note.si(name=f"{tag}{i}"))
    go(f"{tag}x")
    for i in range(3):
        over(f"{tag}{i}")
    assert ran(tag, "x") == 2


def test_link_error_fires_for_those_who_were_merged_into_what_died(tag: str) -> None:
    play.apply_async(kwargs={"name": f"{tag}x", "plan": ("permanent",)}, countdown=600)
    options = {"link": note.si(name=f"{tag}ok"), "link_error": note.si(name=f"{tag}ill")}
    later = play.apply_async(kwargs={"name": f"{tag}x", "plan": ("permanent",)}, **options)
    over(f"{tag}ill")
    assert heard(f"{tag}ok") == []
    assert engine.storage.outcome(later.job_id, "play", later.scope, 0.0).status == "dead"


# --- revoke, rate limits, inspect and control -------------------------------------------------------------------------
def test_a_revoked_job_is_dropped_with_its_claim(tag: str) -> None:
    asked = play.apply_async(kwargs={"name": f"{tag}x"}, countdown=600)
    told(app.control.revoke(asked.id, reply=True, timeout=LONG, limit=1))
    play.delay(name=f"{tag}x")  # due now: its message bears the id that was revoked
    eventually(canvas_is_over, within=LONG)
    assert asked.wait(LONG).status == "dropped"
    assert ran(tag, "x") == 0
    assert play.delay(name=f"{tag}x").wait(LONG).status == "completed"  # a new request is not stopped


def test_a_revoked_duplicate_harms_only_itself(tag: str) -> None:
    first = play.apply_async(kwargs={"name": f"{tag}x"}, countdown=600)
    second_id = uuid.uuid4().hex
    told(app.control.revoke(second_id, reply=True, timeout=LONG, limit=1))
    second = play.apply_async(kwargs={"name": f"{tag}x"}, task_id=second_id, link=note.si(name=tag))
    assert (second.id, second.job_id) == (second_id, first.id)
    assert first.wait(LONG).status == "completed"
    eventually(canvas_is_over, within=LONG)
    assert heard(tag) == []  # whichever message of the second came, it was revoked


def test_a_chord_hears_of_its_revoked_member(tag: str) -> None:
    member = job(tag, "x").set(task_id=uuid.uuid4().hex)
    told(app.control.revoke(member.id, reply=True, timeout=LONG, limit=1))
    ill = note.si(name=f"{tag}ill")
    chord([member, job(tag, "y")], note.s(name=tag).on_error(ill)).apply_async()
    over(f"{tag}ill")
    assert ran(tag, "x") == 0


def test_a_rate_limit_holds_jobs_back_and_counts_no_crash(tag: str) -> None:
    told(app.control.rate_limit(play.name, "2/s", reply=True, timeout=LONG, limit=1))
    try:
        asked = [play.delay(name=f"{tag}{i}") for i in range(6)]
        assert {one.wait(LONG).status for one in asked} == {"completed"}
        assert [ran(tag, str(i)) for i in range(6)] == [1] * 6
    finally:
        told(app.control.rate_limit(play.name, "0", reply=True, timeout=LONG, limit=1))


def test_a_worker_answers_whoever_inspects_and_controls_it(tag: str) -> None:
    play.delay(name=f"{tag}x", plan=("hold",))
    eventually(lambda: ran(tag, "x"), within=LONG)
    look = app.control.inspect(timeout=LONG, limit=1)
    [active] = look.active().values()
    assert [one["name"] for one in active] == ["nexus_tasks.play"]
    assert active[0]["kwargs"]["name"] == f"{tag}x"
    for answer in (
        look.ping(),
        look.stats(),
        look.registered(),
        look.reserved(),
        look.active_queues(),
        look.conf(),
        look.report(),
    ):
        assert len(answer) == 1
    told(app.control.pool_grow(1, reply=True, timeout=LONG, limit=1))
    told(app.control.pool_shrink(1, reply=True, timeout=LONG, limit=1))
    go(f"{tag}x")
    eventually(canvas_is_over, within=LONG)


def told(replies: list[dict[str, Any]]) -> None:
    """The worker has answered."""
    assert len(replies) == 1, replies


# --- settings of the application --------------------------------------------------------------------------------------
def test_a_chain_goes_on_although_celery_gives_its_steps_the_priority_of_the_first(here: Sandbox, tag: str) -> None:
    """Jobs refuse a priority, and Celery's worker gives the priority of a task to its links and to the next step."""
    (here.folder / "celeryconfig.py").write_text("task_inherit_parent_priority = True\n")
    [usual] = [worker for worker in here.workers if worker.process.poll() is None]
    usual.stop()
    try:
        inherits = started(here)
        chain(job(tag, "x"), job(tag, "y"), note.s(name=tag)).apply_async(link_error=note.si(name=f"{tag}ill"))
        note.apply_async(kwargs={"name": f"{tag}plain"}, priority=3, link=job(tag, "z"))
        over(tag)
        eventually(lambda: ran(tag, "z"), within=LONG)
        assert heard(f"{tag}ill") == []
        assert "Traceback" not in inherits.text()
        with pytest.raises(UnsupportedOption, match="priority"):
            job(tag, "x").apply_async(priority=3)
        inherits.stop()
    finally:
        (here.folder / "celeryconfig.py").unlink()
        started(here)
