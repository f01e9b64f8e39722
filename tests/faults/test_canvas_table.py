"""Every shape of Celery's canvas, of plain tasks, of jobs and of mixtures, in workers of both pools and eagerly."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import Signature

from nexus_tasks import Nexus
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.errors import JobFailed
from tests.integration.inline import due_at_once
from tests.integration.jobkinds import ROOT, WITH_KINDS, attempts, fail, go, heard, note, play, play_kept
from tests.sandbox import Sandbox, app, engine, eventually, sandbox

pytestmark = pytest.mark.long

LONG = 40.0  # seconds: a deadline for a machine that is busy with other things
FLAVOURS = ("tasks", "jobs", "mixture")


class Members:
    """Makes the members of one canvas, and counts their runs."""

    def __init__(self, flavour: str) -> None:
        self.flavour, self.tag, self.made = flavour, uuid.uuid4().hex[:8], 0

    def __call__(self, **options: Any) -> Signature:
        """The next member: a plain task or a job."""
        self.made += 1
        job = self.flavour == "jobs" or (self.flavour == "mixture" and self.made % 2 == 1)
        return (play if job else note).si(name=f"{self.tag}-{self.made}", **options)

    def many(self, number: int) -> list[Signature]:
        """Several members."""
        return [self() for _ in range(number)]

    def failing(self) -> Signature:
        """A member that fails: a dead letter, or a task that raises."""
        if self.flavour == "tasks":
            return fail.si(name=f"{self.tag}-failing")
        return play.si(name=f"{self.tag}-failing", plan=("permanent",))

    @property
    def end(self) -> Signature:
        """Notes that the canvas has ended, and with which results."""
        return note.s(name=f"{self.tag}-end")

    def runs(self) -> list[int]:
        """How often each member ran."""
        names = [f"{self.tag}-{i + 1}" for i in range(self.made)]
        return [len(attempts(name)) + len(heard(name)) for name in names]

    def ended(self) -> list[list[Any]]:
        """The results with which each end was called."""
        return heard(f"{self.tag}-end")


Shape = Callable[[Members], Signature]
SHAPES: dict[str, Shape] = {
    "one": lambda m: m(),
    "chain": lambda m: chain(m.many(3)),
    "long chain": lambda m: chain(m.many(12)),
    "group": lambda m: group(m.many(4)),
    "group of one": lambda m: group(m.many(1)),
    "chord": lambda m: chord(m.many(4), m()),
    "chord of one": lambda m: chord(m.many(1), m()),
    "chord whose body is a chain": lambda m: chord(m.many(3), chain(m.many(2))),
    "chord whose body is a group": lambda m: chord(m.many(2), group(m.many(2))),
    "chain with a group in it": lambda m: chain(m(), group(m.many(3)), m()),
    "chain that ends in a group": lambda m: chain(m(), group(m.many(3))),
    "chain with a chord in it": lambda m: chain(m(), chord(m.many(3), m()), m()),
    "group of chains": lambda m: group(chain(m.many(2)) for _ in range(3)),
    "group of groups": lambda m: group(group(m.many(2)) for _ in range(2)),
    "chord of chains": lambda m: chord([chain(m.many(2)) for _ in range(2)], m()),
    "chord of groups": lambda m: chord([group(m.many(2)), group(m.many(2))], m()),
    "chord of chords": lambda m: chord([chord(m.many(2), m()), chord(m.many(2), m())], m()),
    "chain, chord, chain": lambda m: chain(m(), chord([chain(m.many(2)), m()], m()), m()),
    "chord, chain, group": lambda m: chord([chain(m(), group(m.many(2)), m()), m()], m()),
    "chord, chord, chord": lambda m: chord([chord([chord(m.many(2), m()), m()], m()), m()], m()),
    "group, chain, chord": lambda m: group(chain(m(), chord(m.many(2), m())) for _ in range(2)),
    "large chord": lambda m: chord(m.many(100), m()),
    "large group of chains": lambda m: group(chain(m.many(2)) for _ in range(30)),
}
# Each with a member that fails. No further member of the path may run, and the error link is called. Celery itself
# calls no error link when a chord in the header of another chord fails, of whatever members.
FAILURES: dict[str, Callable[[Members], Signature]] = {
    "one": lambda m: m.failing(),
    "first of a chain": lambda m: chain(m.failing(), m(), m()),
    "one of a chord": lambda m: chord([m.failing(), m.failing()], m()),
    "in a chain of a chord": lambda m: chord([chain(m.failing(), m())], m()),
    "body of an inner chord": lambda m: chain(chord([m.failing()], m()), m()),
}


@pytest.fixture(scope="module", params=["threads", "processes"])
def here(request: pytest.FixtureRequest, servers: ServerAddresses) -> Iterator[Sandbox]:
    """One worker a pool, which runs all canvases."""
    with sandbox(servers, NEXUS_LEASE_SECONDS="5", NEXUS_NAMESPACE_CONCURRENCY="64") as made:
        Nexus().create_namespace("acme")
        made.worker(*WITH_KINDS, pool=request.param, concurrency=4, **ROOT)
        yield made


@pytest.fixture(params=FLAVOURS)
def members(request: pytest.FixtureRequest, here: Sandbox) -> Members:  # noqa: ARG001
    return Members(request.param)


def is_over() -> bool:
    """Whether no claim is left, and no delivery waits."""
    claims = engine.claims
    return claims.counts("acme") == {} and not list(claims.redis.scan_iter(f"{claims.prefix}:delivery:*", count=1_000))


def over(done: Callable[[], object]) -> None:
    """Wait until ``done``, and until nothing is left that could come again."""
    eventually(done, within=LONG)
    eventually(is_over, within=LONG)


def check(result: Any) -> None:
    """A result is what a task has returned, or the outcome of a job; of a group, a list of them."""
    for one in result if isinstance(result, list) else [result]:
        if isinstance(one, list):
            check(one)
        elif isinstance(one, dict):
            assert one["status"] == "completed"
            assert one["job_id"]
        else:
            assert isinstance(one, str)


# --- what completes ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", SHAPES)
def test_each_member_runs_once_and_then_the_end(members: Members, shape: str) -> None:
    (SHAPES[shape](members) | members.end).apply_async()
    over(members.ended)
    assert members.runs() == [1] * members.made
    [[result]] = members.ended()
    check(result)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_of_it_runs_at_once_when_everything_is_eager(members: Members, shape: str) -> None:
    app.conf.task_always_eager = True
    try:
        (SHAPES[shape](members) | members.end).apply_async()
    finally:
        app.conf.task_always_eager = False
    assert members.runs() == [1] * members.made
    [[result]] = members.ended()
    check(result)


def test_a_chord_of_nothing_calls_its_body(members: Members) -> None:
    chord([], members.end).apply_async()
    over(members.ended)
    assert members.ended() == [[[]]]


def test_a_group_of_nothing_has_ended(members: Members) -> None:
    assert group([]).apply_async().get(timeout=LONG) == []
    assert members.runs() == []


def test_results_that_are_wanted_come(members: Members) -> None:
    wanted = group(one.set(ignore_result=False) for one in members.many(4)).apply_async()
    check(wanted.get(timeout=LONG))
    last = chain(one.set(ignore_result=False) for one in members.many(3)).apply_async()
    check(last.get(timeout=LONG))
    over(lambda: members.runs() == [1] * members.made)


def test_links_are_called_once_each(members: Members) -> None:
    first, second = members(), members()
    links = [note.si(name=f"{members.tag}-a"), note.si(name=f"{members.tag}-b"), play.si(name=f"{members.tag}-c")]
    first.apply_async(link=links)
    second.apply_async(link=chain(note.si(name=f"{members.tag}-d"), play.si(name=f"{members.tag}-e")))
    over(lambda: all(len(heard(f"{members.tag}-{x}")) + len(attempts(f"{members.tag}-{x}")) for x in "abcde"))
    assert [len(heard(f"{members.tag}-{x}")) + len(attempts(f"{members.tag}-{x}")) for x in "abcde"] == [1] * 5


# --- what fails -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", FAILURES)
def test_a_failure_ends_its_path_and_calls_the_error_link(members: Members, shape: str) -> None:
    ill = f"{members.tag}-ill"
    whole = FAILURES[shape](members) | members.end
    whole.apply_async(link_error=note.si(name=ill))
    over(lambda: heard(ill))
    assert members.ended() == []
    assert members.runs() == [0] * members.made


def test_a_job_that_is_an_error_link_is_a_job_like_any_other(members: Members, here: Sandbox) -> None:
    ill, after = f"{members.tag}-ill", f"{members.tag}-after"
    link_error = play.si(name=ill).set(countdown=600, link=note.si(name=after))
    members.failing().apply_async(link_error=link_error)
    eventually(lambda: [claim for claim in engine.claims.waiting() if claim.args["name"] == ill], within=LONG)
    [claim] = [claim for claim in engine.claims.waiting() if claim.args["name"] == ill]
    assert claim.wait_reason == "delay"
    eventually(lambda: due_at_once(here) or heard(after), within=LONG)
    over(lambda: heard(after))
    assert len(attempts(ill)) == 1


def test_a_job_that_is_the_error_link_of_a_body_is_a_job_like_any_other(members: Members) -> None:
    ill = f"{members.tag}-ill"
    chord([members.failing(), members()], members.end.on_error(play.si(name=ill))).apply_async()
    over(lambda: attempts(ill))
    assert len(attempts(ill)) == 1
    assert members.ended() == []


def test_a_link_that_cannot_be_sent_fails_once_and_the_others_are_sent_once(members: Members) -> None:
    good, ill = f"{members.tag}-good", f"{members.tag}-ill"
    member = members().set(ignore_result=False)
    asked = member.apply_async(
        link=[note.si(name=good), play.si(nonsense=1)], link_error=[play.si(nonsense=1), note.si(name=ill)]
    )
    with pytest.raises(Exception, match="nonsense"):
        asked.get(timeout=LONG)
    over(lambda: heard(ill))
    assert (len(heard(good)), len(heard(ill))) == (1, 1)


@pytest.mark.parametrize("word", ["replace", "ignore", "reject", "celery retry", "task retry", "add to chord"])
def test_what_celery_lets_a_task_do_to_itself_is_refused_once_with_the_reason(here: Sandbox, word: str) -> None:
    name = uuid.uuid4().hex
    ill = note.si(name=f"{name}-ill")
    asked = play.apply_async(kwargs={"name": name, "plan": (word,)}, link_error=ill)
    with pytest.raises(JobFailed, match="UnsupportedOption"):
        asked.wait(LONG)
    over(lambda: heard(f"{name}-ill"))
    assert len(attempts(name)) == 1
    assert heard(f"{name}-replaced") == []
    assert here.sql("SELECT error_type FROM dead_letters WHERE job_id = :id", id=asked.job_id) == [
        ("UnsupportedOption",)
    ]


# --- whose run it was -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("luck", ["at once", "after a retry", "as a duplicate", "with a countdown"])
def test_the_next_step_gets_the_whole_outcome_whatever_run_served_it(here: Sandbox, luck: str) -> None:
    name = uuid.uuid4().hex
    plan = {"after a retry": ("bug", "ok"), "as a duplicate": ("hold",)}.get(luck, ("ok",))
    if luck == "as a duplicate":
        play_kept.delay(name=name, plan=plan)
        eventually(lambda: attempts(name), within=LONG)
    step = play_kept.si(name=name, plan=plan).set(countdown=600 if luck == "with a countdown" else None)
    chain(step, note.s(name=f"{name}-end")).apply_async()
    go(name)
    eventually(lambda: due_at_once(here) or heard(f"{name}-end"), within=LONG)
    over(lambda: heard(f"{name}-end"))
    [[result]] = heard(f"{name}-end")
    assert result["answer"] == 42
