"""Every message reaches the reader exactly once, as itself or through an observation: driven through interleavings.

Real Postgres, real cognition; the model is one whose notes name the messages they cover, so that what a reader gets can
be counted. While it "thinks", other steps happen: messages come in, readers activate, other runs finish first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nexus_tasks import Nexus
from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.observing import activation, condense, message_text, observe, session_view
from nexus_tasks.deployment import default_deployment
from nexus_tasks.llm.answers import Condensed, CondenseMaterial, Day, Note, Observed, ObserveMaterial
from nexus_tasks.llm.base import PURPOSES, Completion, ModelRequest, Purpose, Usage
from nexus_tasks.settings import Settings
from nexus_tasks.storage import messages, namespaces, observations, sessions
from nexus_tasks.storage.models import ObservationLog
from tests.integration.inline import NAMESPACE, job_context
from tests.integration.suspended import Crash, Suspended
from tests.sandbox import Sandbox

SMALL = {
    "NEXUS_OBSERVATION_MESSAGE_TOKENS": "90",
    "NEXUS_OBSERVATION_BUFFER_TOKENS": "30",
    "NEXUS_OBSERVATION_BLOCK_AFTER_TOKENS": "120",
    "NEXUS_OBSERVATION_MAX_BATCH_TOKENS": "45",
    "NEXUS_PREVIOUS_OBSERVER_TOKENS": "30",
    "NEXUS_REFLECTION_OBSERVATION_TOKENS": "100",
    "NEXUS_REFLECTION_BUFFER_ACTIVATION": "0.12",
    "NEXUS_REFLECTION_BLOCK_AFTER_TOKENS": "150",
}
KEPT = st.sampled_from([30, 30, 80])  # tokens kept word for word: a reader may have been given another setting
MOST_RUNS = 3
NUMBERED = re.compile(r"n(\d+)(?:-n(\d+))?")


class Counting:
    """A model whose notes name what they cover: ``n3``, and after condensing ``n1-n3``.

    Every time it is asked ``thinks`` is called first, ``meanwhile`` once.
    """

    name = "counting"

    def __init__(self, *, thinks: Callable[[], object] = lambda: None, stubborn: bool = False) -> None:
        self.thinks = thinks
        self.meanwhile: Callable[[], object] | None = None
        self.stubborn = stubborn  # its condensed log is no shorter
        self.calls = 0

    def batches_for(self, purpose: Purpose) -> None:
        pass

    def model_for(self, purpose: Purpose) -> str:  # noqa: ARG002 - one for all
        return self.name

    provider_for = model_for

    def probe(self, purposes: Collection[Purpose] = PURPOSES) -> None:
        pass

    def complete(self, request: ModelRequest[Any]) -> Completion[Any]:
        self.calls += 1
        self.thinks()
        happens, self.meanwhile = self.meanwhile, None
        if happens:
            happens()
        material = request.material
        if isinstance(material, ObserveMaterial):
            numbers = [int(line.content.split()[0][1:]) for line in material.lines]
            answer: Any = Observed(days=[_day([f"n{number}" for number in numbers])])
        else:
            assert isinstance(material, CondenseMaterial)
            answer = Condensed(condensed=[_day(_ranges(material.log) if not self.stubborn else [material.log * 2])])
        return Completion(model=self.name, usage=Usage(), seconds=0.0, answer=answer)


def keeping(tokens: int) -> Settings:
    """The settings of a reader that keeps so many tokens word for word."""
    return default_deployment().settings.model_copy(update={"observation_buffer_tokens": tokens})


def _day(contents: list[str]) -> Day:
    notes = [Note(priority="low", content=content) for content in contents]
    return Day(date="2026-03-01", notes=notes)


def covered(text: str) -> list[int]:
    """The numbers that a text stands for, each as often as it says so."""
    found: list[int] = []
    for first, last in NUMBERED.findall(text):
        found += range(int(first), int(last or first) + 1)
    return found


def _ranges(text: str) -> list[str]:
    """The same numbers in as few words as there are runs of them; what is counted twice stays counted twice."""
    ranges: list[list[int]] = []
    for number in covered(text):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [f"n{first}-n{last}" for first, last in ranges]


@dataclass
class Seen:
    """A reader that has looked at the session and not acted yet."""

    plan: activation.LogUpdate


class Observing(RuleBasedStateMachine):
    """One session under ingest, runs, readers and crashes.

    Runs that are asking their model and readers that have looked and not acted yet are pending: rules draw from them.
    """

    here: ClassVar[Sandbox]
    number: ClassVar[int] = 0
    happened: ClassVar[Counter[str]] = Counter()

    @initialize()
    def begin(self) -> None:
        type(self).number += 1
        self.key = f"chat-{self.number}"
        self.said = self.rules = 0
        self.cursor = self.reach = self.generation = self.grown = self.rewritten = 0
        self.condensed: int | None = None  # the generation that a ready reflection was made of
        self.stale: list[Seen] = []
        self.runs: list[Suspended] = []
        self.due = False  # whether a reader has something to take into the log
        self.model = Counting()
        self.resources = replace(default_deployment().resources, model=self.model)
        self.say(12, 4)
        self.observe()
        self.look()

    # --- what happens -------------------------------------------------------------------------------------------------
    @rule(count=st.integers(1, 9), words=st.integers(0, 12), role=st.sampled_from(["user", "user", "user", "system"]))
    def ingest(self, count: int, words: int, role: str) -> None:
        self.say(count, words, role)

    def say(self, count: int, words: int = 0, role: str = "user") -> None:
        made = []
        for _ in range(count):
            if role == "system":  # in no log, and in no reader's tail
                self.rules += 1
                made.append({"role": "system", "content": f"Rule {'x ' * words}", "id": f"s{self.rules}"})
                continue
            self.said += 1
            made.append({"content": f"#{self.said} {'word ' * words}", "id": f"m{self.said}"})
        Nexus().ingest(NAMESPACE, self.key, made, observe=True)

    @rule(urgent=st.booleans(), activating=st.booleans())
    def run_observation(self, urgent: bool, activating: bool) -> None:
        self.observe(urgent=urgent, activating=activating)

    def observe(self, *, urgent: bool = False, activating: bool = True, mine: JobContext | None = None) -> None:
        """With ``activating`` off, the worker has larger thresholds than the readers, and leaves the chunks to them."""
        resources = self.resources
        if not activating:
            large = {"observation_message_tokens": 10**6, "observation_block_after_tokens": 10**6}
            resources = replace(resources, settings=resources.settings.model_copy(update=large))
        observe.observe(resources, mine or job_context(), self.key, urgent=urgent)

    @rule(stubborn=st.booleans())
    def run_reflection(self, stubborn: bool) -> None:
        self.model.stubborn = stubborn
        condense.condense(self.resources, job_context(), self.key)
        self.model.stubborn = False

    @rule(kept=KEPT)
    def read(self, kept: int) -> None:
        self.look(kept)

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule(kind=st.sampled_from(["observe", "observe", "reflect"]), urgent=st.booleans(), stubborn=st.booleans())
    def begin_a_run(self, kind: str, urgent: bool, stubborn: bool) -> None:
        """It stands where its model thinks, until another rule lets it go on or kills it."""

        def do(run: Suspended) -> None:
            resources = replace(default_deployment().resources, model=Counting(thinks=run.asks, stubborn=stubborn))
            mine = replace(job_context(), still_mine=run.alive)
            if kind == "observe":
                observe.observe(resources, mine, self.key, urgent=urgent)
            else:
                condense.condense(resources, mine, self.key)

        run = Suspended(do)
        self.runs += [] if run.ended else [run]
        self.happened["side by side"] += len(self.runs) > 1

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(0, MOST_RUNS - 1), to_its_end=st.booleans())
    def let_a_run_go_on(self, which: int, to_its_end: bool) -> None:
        run = self.runs[which % len(self.runs)]
        run.go_on()
        while to_its_end and not run.ended:
            run.go_on()
        if run.ended:
            self.runs.remove(run)

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(0, MOST_RUNS - 1), answered=st.booleans())
    def kill_a_run(self, which: int, answered: bool) -> None:
        self.runs.pop(which % len(self.runs)).die(answered=answered)

    def teardown(self) -> None:
        for run in getattr(self, "runs", ()):
            run.die(answered=False)

    @rule(
        which=st.sampled_from(["ingest", "read", "observe", "reflect"]),
        kind=st.sampled_from(["observe", "reflect"]),
        ahead=st.booleans(),
    )
    def run_while_something_happens(self, which: str, kind: str, ahead: bool) -> None:
        self.say(9, 4)
        if ahead:  # then a reader has something to take into the log
            self.observe(activating=False)
            self.say(4, 4)
        others = {"ingest": lambda: self.say(5, 4), "read": self.look, "observe": self.observe}
        self.model.meanwhile = others.get(which, lambda: condense.condense(self.resources, job_context(), self.key))
        if kind == "observe":
            self.observe()
        else:
            condense.condense(self.resources, job_context(), self.key)
        self.model.meanwhile = None

    @rule(kind=st.sampled_from(["observe", "reflect"]))
    def crash_before_the_commit_and_run_again(self, kind: str) -> None:
        """The answer has arrived and was paid for; the rerun does not ask for it again."""

        def die() -> None:
            raise Crash

        doomed = replace(job_context(), still_mine=die)
        before = self.model.calls
        with suppress(Crash):
            if kind == "observe":
                self.observe(mine=doomed, activating=False)
            else:
                condense.condense(self.resources, doomed, self.key)
            pytest.fail("it committed")
        paid = self.model.calls - before
        if kind == "observe" and paid:
            self.observe(activating=False)
            asked = self.model.calls - before
            self.happened["paid and crashed"] += 1
            with default_deployment().database.transaction() as tx:
                chunks = observations.chunks(tx, self.log(tx).session_id)
            # Fewer when a run that was killed before has left its answer.
            assert asked <= sum(chunk.from_seq > self.reach for chunk in chunks)

    @precondition(lambda self: self.due)
    @rule(kept=KEPT)
    def look_and_act_later(self, kept: int = 30) -> None:
        with default_deployment().database.transaction() as tx:
            found = self.log(tx)
            tail = messages.window(tx, found.session_id, found.observed_through_seq, messages.UNBOUNDED_SEQ)
            plan = activation.due_update(tx, keeping(kept), found, tail)
        if plan:
            self.stale.append(Seen(plan))

    @precondition(lambda self: self.stale)
    @rule(which=st.integers(0, 9))
    def act_on_what_was_seen(self, which: int = 0) -> None:
        seen = self.stale.pop(which % len(self.stale))
        with default_deployment().database.transaction() as tx:
            before = self.log(tx).generation
            done = activation.apply_update(tx, seen.plan)
        assert done == (before == seen.plan.seen.generation)
        self.happened["won" if done else "lost"] += 1

    @rule()
    def readers_at_once(self) -> None:
        """Two that saw the same: one makes the next generation, the other finds that it is there."""
        self.say(9, 4)
        self.observe(activating=False)
        self.look_and_act_later()
        self.look()
        while self.stale:
            self.act_on_what_was_seen()

    def log_grows_after_it_was_condensed(self) -> None:
        for _ in range(12):
            self.say(3, 4)
            self.observe()
            self.look()
            self.run_reflection(stubborn=False)
            self.everything_reaches_a_reader_once()

    # --- what must hold -----------------------------------------------------------------------------------------------
    def log(self, tx: Any) -> ObservationLog:
        known = namespaces.get(tx, NAMESPACE)
        found = observations.find_log(tx, sessions.get(tx, known.id, self.key).id)
        assert found is not None
        return found

    def look(self, kept: int = 30) -> session_view.SessionView:
        with default_deployment().database.transaction() as tx:
            known = namespaces.get(tx, NAMESPACE)
            session = sessions.get(tx, known.id, self.key)
            view = session_view.current_view(tx, keeping(kept), session, by_default=False)
        self.check(view)
        return view

    def check(self, view: session_view.SessionView) -> None:
        told = Counter(covered(view.log))
        told.update(int(said.split()[0][1:]) for message in view.tail if (said := message_text.text_of(message)))
        assert told == Counter(range(1, self.said + 1))
        assert view.generation >= self.generation
        assert view.observed_through >= self.cursor
        if view.generation > self.generation:
            self.happened["chunks"] += view.observed_through > self.cursor
        self.generation, self.cursor = view.generation, view.observed_through

    @invariant()
    def everything_reaches_a_reader_once(self) -> None:
        """Without acting: whoever read now would get each message once, and the cursors are where they were or on."""
        with default_deployment().database.transaction() as tx:
            found = self.log(tx)
            tail = messages.window(tx, found.session_id, found.observed_through_seq, messages.UNBOUNDED_SEQ)
            ready = observations.chunks(tx, found.session_id)
            reach = observations.last_observed_seq(tx, found)
            condensed = observations.usable_reflection(tx, found)
            self.due = activation.due_update(tx, default_deployment().settings, found, tail) is not None
        view = session_view.SessionView(
            session_key=self.key,
            observed=True,
            generation=found.generation,
            log=found.observations,
            observed_through=found.observed_through_seq,
            tail=tuple(tail),
        )
        self.check(view)
        # What is finished is never thrown away: the chunks follow the log without a gap, and say what they cover.
        assert reach >= self.reach
        self.reach = reach
        at = found.observed_through_seq
        by_seq = {message.seq: message_text.text_of(message) for message in tail}
        for chunk in ready:
            assert chunk.from_seq == at + 1
            at = chunk.through_seq
            said = [by_seq[seq] for seq in range(chunk.from_seq, at + 1)]
            assert covered(chunk.observations) == [int(one.split()[0][1:]) for one in said if one]
        assert at == reach
        self.happened["left over"] += bool(ready) and found.generation > self.grown
        self.grown = found.generation
        if found.rewritten > self.rewritten:
            self.happened["reflection"] += 1
            self.happened["grown since"] += self.condensed is not None and found.rewritten - 1 > self.condensed
        self.rewritten, self.condensed = found.rewritten, condensed.base_generation if condensed else None
        if condensed:
            self.happened["condensed"] += 1
            assert covered(condensed.observations) == covered(found.observations[: condensed.covered_length])


@pytest.mark.long
def test_a_walk_through_every_interleaving(deploy: Callable[..., Sandbox]) -> None:
    """What the machine below finds by chance, once on purpose: every way in which two of them meet."""
    Observing.here = deploy(**SMALL)
    walk = Observing()
    Observing.happened.clear()
    walk.begin()
    steps: list[Callable[[], object]] = [
        partial(walk.run_while_something_happens, which, kind, ahead)
        for ahead in (True, False)
        for kind in ("observe", "reflect")
        for which in ("ingest", "read", "observe", "reflect")
    ]
    steps += [walk.readers_at_once, partial(walk.run_reflection, stubborn=False), walk.readers_at_once]
    steps += [walk.log_grows_after_it_was_condensed]
    for step in steps:
        step()
        walk.everything_reaches_a_reader_once()
        walk.say(7, 4)
        for kind in ("observe", "reflect"):
            walk.crash_before_the_commit_and_run_again(kind)
            walk.everything_reaches_a_reader_once()
        walk.look()
        walk.everything_reaches_a_reader_once()
    ways = ("chunks", "reflection", "condensed", "grown since", "lost", "paid and crashed")
    assert all(Observing.happened[way] for way in ways), Observing.happened


def drive(deploy: Callable[..., Sandbox], *, examples: int, steps: int) -> None:
    """Run the machine."""
    Observing.here = deploy(**SMALL)
    options = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Observing, settings=options)


def test_every_message_reaches_the_reader_exactly_once(deploy: Callable[..., Sandbox]) -> None:
    drive(deploy, examples=6, steps=15)


def test_a_killed_run_asks_nothing_more() -> None:
    """A condensation asks again when its first answer is no shorter: killed with that answer, it must end."""
    asked = []
    run = Suspended(lambda run: [asked.append(run.asks()) for _ in range(3)])
    run.die(answered=True)
    assert run.ended
    assert len(asked) == 1


def test_chunks_that_are_not_taken_over_stay(deploy: Callable[..., Sandbox]) -> None:
    """A reader that keeps more word for word takes only the first ones; the others are the next reader's."""
    Observing.here = deploy(**SMALL)
    walk = Observing()
    walk.begin()
    walk.say(30, 4)
    walk.observe(activating=False)
    with default_deployment().database.transaction() as tx:
        before = [chunk.through_seq for chunk in observations.chunks(tx, walk.log(tx).session_id)]
    view = walk.look(kept=200)
    with default_deployment().database.transaction() as tx:
        after = [chunk.through_seq for chunk in observations.chunks(tx, walk.log(tx).session_id)]
    assert view.generation == walk.generation > 0
    assert len(after) >= 3
    assert [*before[: -len(after)][-1:], *after] == [view.observed_through, *before[-len(after) :]]
    walk.everything_reaches_a_reader_once()


@pytest.mark.long
@pytest.mark.timeout(600)  # a busy machine gives it a tenth of its time
def test_every_message_reaches_the_reader_exactly_once_for_long(deploy: Callable[..., Sandbox]) -> None:
    drive(deploy, examples=30, steps=30)
