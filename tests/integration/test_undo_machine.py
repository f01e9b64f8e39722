"""Reflect, erase, undo and review in any order: what is valid is what a model computes anew after every step.

The model keeps what each reflection related, and nothing else. It computes from the reflections that are not undone and
from the facts that are not erased what holds. Real Postgres, the real jobs; Claude's answers are scripted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from nexus_tasks.cognition.reflect import perspective
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import UndoRefused
from tests.integration.inline import NAMESPACE, say, work
from tests.integration.reflecting import again, day, insight, relation
from tests.sandbox import Sandbox
from tests.standin import Call, StandIn

MOST_FACTS = 7
KINDS = ("contradicts", "also said", "reinforces")
numbers = st.integers(0, 10**6)
scripts = st.lists(st.tuples(st.sampled_from(KINDS), numbers, numbers), min_size=1, max_size=4)


@dataclass
class Fact:
    """A fact that exists: what it says, and the days on which it was said."""

    id: int
    text: str
    days: list[int]

    @property
    def day(self) -> int:
        return self.days[0]

    def takes_over(self, old: Fact) -> int:
        """The day on which this fact takes the place of ``old``."""
        return next((on for on in self.days if on >= old.day), old.day)


@dataclass
class Reflected:
    """What one reflection did. ``ends`` are (loser, winner, day); ``made`` are (role, sources)."""

    undone: bool = False
    ends: list[tuple[int, int, int]] = field(default_factory=list)
    made: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    pairs: set[frozenset[int]] = field(default_factory=set)  # judged
    supports: set[frozenset[int]] = field(default_factory=set)  # judged
    related: set[frozenset[int]] = field(default_factory=set)
    reinforced: Counter[int] = field(default_factory=Counter)


class Undoing(RuleBasedStateMachine):
    """The machine. Class attributes are set by :func:`drive`."""

    here: ClassVar[Sandbox]
    standin: ClassVar[StandIn]
    happened: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[int, Fact] = {}
        self.reflections: dict[int, Reflected] = {}
        self.held: tuple[list[dict[str, Any]], list[dict[str, Any]]] | None = None
        self.days = 0
        self.shown: set[frozenset[int]] = set()

    @initialize()
    def begin(self) -> None:
        self.here.sql("TRUNCATE namespaces, memories, perspectives, sessions CASCADE")
        self.here.flush()
        default_deployment().forget_namespace(NAMESPACE)
        for _ in range(4):
            self.say(f"I like thing {len(self.facts)} of these.")

    # --- the model ----------------------------------------------------------------------------------------------------
    def ended(self, fact: Fact) -> tuple[int, int] | None:
        """By which fact a fact is superseded, and on which day; ``None`` while it is valid."""
        for reflected in self.reflections.values():
            for loser, winner, on in reflected.ends:
                if not reflected.undone and loser == fact.id and winner in self.facts:
                    return winner, on
        since = [one for one in self.facts.values() if one.text == fact.text and one.id > fact.id]
        return (since[-1].id, max(since[-1].day, fact.day)) if since else None

    def active(self) -> set[int]:
        return {fact.id for fact in self.facts.values() if self.ended(fact) is None}

    def conclusions(self) -> Counter[tuple[int, str, tuple[int, ...], int | None]]:
        """Every conclusion: its reflection, role, sources, and the fact that superseded it."""
        found = Counter[tuple[int, str, tuple[int, ...], int | None]]()
        for number, reflected in self.reflections.items():
            for role, sources in reflected.made:
                if not reflected.undone and self.facts.keys() >= set(sources):
                    found[number, role, sources, self.superseded(role, sources)] += 1
        return found

    def superseded(self, role: str, sources: tuple[int, ...]) -> int | None:
        over = [(ended[1], i, ended[0]) for i in sources if (ended := self.ended(self.facts[i]))]
        place = {"contradicts": len(sources), "insight_support": len(sources) - 2}.get(role, 1)
        return sorted(over)[place - 1][2] if len(over) >= place else None

    def expect(self, relations: list[dict[str, Any]], insights: list[dict[str, Any]]) -> Reflected:
        """What a reflection with this answer does now."""
        before = self.active()
        undone = [one for one in self.reflections.values() if one.undone]
        live = [one for one in self.reflections.values() if not one.undone]
        related = {pair for one in live for pair in one.related if pair <= self.facts.keys()}
        known = [set(s) for one in live for r, s in one.made if r == "insight_support" and self.facts.keys() >= set(s)]
        done, active = Reflected(), set(before)
        for one in relations:
            new, old = one["new_id"], one["old_id"]
            pair = frozenset((new, old))
            if not pair <= before or pair in related or any(pair in other.pairs for other in undone):
                continue
            done.pairs.add(pair)
            if not pair <= active:
                continue
            done.related.add(pair)
            if one["kind"] == "contradicts":
                done.made.append(("contradicts", tuple(sorted(pair))))
                if one["holds"] == "new":
                    done.ends.append((old, new, self.facts[new].takes_over(self.facts[old])))
                    active.remove(old)
                continue
            done.reinforced.update((new, old))
        for one in insights:
            support = frozenset(one["support"])
            if not support <= before or any(support in other.supports for other in undone):
                continue
            if any(support <= other for other in known):
                continue
            done.supports.add(support)
            if support <= active:
                done.made.append(("insight_support", tuple(sorted(support))))
        return done

    # --- the steps ----------------------------------------------------------------------------------------------------
    def say(self, text: str) -> None:
        before = set(self.facts)
        self.days += 1
        say({"content": text, "author": "ann", "occurred_at": day(self.days)}, session=f"s{self.days}")
        work("derive_memory")
        rows = self.here.sql("SELECT id FROM memories WHERE level = 'explicit' ORDER BY id")
        new = {i for (i,) in rows} - before
        if new:
            self.facts[min(new)] = Fact(min(new), text, [self.days])
        else:
            [known] = [fact for fact in self.facts.values() if fact.text == text and self.ended(fact) is None]
            known.days.append(self.days)

    @precondition(lambda self: len(self.facts) < MOST_FACTS)
    @rule()
    def say_something_new(self) -> None:
        self.say(f"I like thing {self.days + 100} of these.")

    @precondition(lambda self: self.facts)
    @rule(pick=numbers)
    def say_something_again(self, pick: int) -> None:
        fact = sorted(self.facts.values(), key=lambda one: one.id)[pick % len(self.facts)]
        self.happened["said again" + (" after its end" if self.ended(fact) else "")] += 1
        self.say(fact.text)

    @precondition(lambda self: len(self.facts) > 1 and self.held is None)
    @rule(script=scripts, support=st.lists(numbers, max_size=5), hold=st.booleans())
    def reflect(self, script: list[tuple[str, int, int]], support: list[int], hold: bool) -> None:
        ids = sorted(self.facts)
        relations, pairs = [], set()
        for kind, first, second in script:
            new, old = ids[first % len(ids)], ids[second % len(ids)]
            if new != old and frozenset((new, old)) not in pairs:
                pairs.add(frozenset((new, old)))
                real = "contradicts" if kind == "also said" else kind
                relations.append(relation(real, new, old, "new" if kind == "contradicts" else "both"))
        several = sorted({ids[i % len(ids)] for i in support})
        insights = [insight(several)] if len(several) >= 3 else []
        self.shown = set()
        self.standin.answer("reflect", self.answering(relations, insights))
        again(self.here)
        with guarded(0 if hold else 10**9):
            outcome = run_any()
        shown_ids = {i for pair in self.shown for i in pair}
        relations = [one for one in relations if frozenset((one["new_id"], one["old_id"])) in self.shown]
        insights = [one for one in insights if shown_ids >= set(one["support"])]
        if outcome["status"] == "needs_review":
            self.held = relations, insights
            self.happened["held"] += 1
            return
        self.note(outcome, relations, insights)

    def answering(
        self, relations: list[dict[str, Any]], insights: list[dict[str, Any]]
    ) -> Callable[[Call], dict[str, Any]]:
        def answer(call: Call) -> dict[str, Any]:
            self.shown = pairs_of(call.text)
            return {"relations": relations, "insights": insights}

        return answer

    def note(self, outcome: dict[str, Any], relations: list[dict[str, Any]], insights: list[dict[str, Any]]) -> None:
        expected = self.expect(relations, insights)
        assert ("reflection" in outcome) == bool(expected.pairs or expected.supports)
        if "reflection" in outcome:
            self.reflections[outcome["reflection"]] = expected
            self.happened["reflected"] += 1

    @precondition(lambda self: self.held is not None)
    @rule(drop=st.booleans())
    def review(self, drop: bool) -> None:
        assert self.held is not None
        relations, insights = self.held
        [shown] = Nexus().status(NAMESPACE).namespaces[0].reviews
        self.held = None
        if drop:
            Nexus().drop_job(shown.job_id)
            return
        changed = self.changed_since
        Nexus().retry_job(shown.job_id)
        self.standin.answer("reflect", self.answering([], []))  # what has changed is judged again
        with guarded(0):
            outcome = run_any()
        relations = [one for one in relations if not changed & {one["new_id"], one["old_id"]}]
        insights = [one for one in insights if not changed & set(one["support"])]
        self.note(outcome, relations, insights)
        self.happened["released"] += 1

    @property
    def changed_since(self) -> set[int]:
        """Facts that were said again while the plan waited."""
        [(held,)] = self.here.sql("SELECT held FROM perspectives WHERE subject = 'ann'")
        return {
            i for i, fact in self.facts.items() if str(i) in held["seen"] and held["seen"][str(i)][2] != len(fact.days)
        }

    @precondition(lambda self: any(not one.undone for one in self.reflections.values()))
    @rule(pick=numbers)
    def undo(self, pick: int) -> None:
        live = [number for number, one in self.reflections.items() if not one.undone]
        number = live[pick % len(live)]
        reflected, active = self.reflections[number], self.active()
        losers = {loser for loser, _, _ in reflected.ends if loser in self.facts}
        rivals = [i for i in active for loser in losers if i != loser and self.facts[i].text == self.facts[loser].text]
        if rivals:
            with pytest.raises(UndoRefused):
                Nexus().undo(NAMESPACE, number)
            self.happened["refused"] += 1
            return
        before = self.active()
        reflected.undone = True
        revived = self.active() - before
        receipt = Nexus().undo(NAMESPACE, number)
        assert revived <= set(receipt.revived)
        self.happened["undone"] += 1

    @precondition(lambda self: self.facts)
    @rule(pick=numbers)
    def erase(self, pick: int) -> None:
        target = sorted(self.facts)[pick % len(self.facts)]
        before = self.active()
        sources = self.here.sql(
            "SELECT source_id FROM evidence WHERE memory_id = :i AND role = 'derived_from' ORDER BY 1", i=target
        )
        for (source,) in sources:
            Nexus().forget(NAMESPACE, memory_id=source)
        del self.facts[target]
        self.held = None  # a plan may quote what was erased
        work("derive_memory")
        self.happened["erased"] += 1
        self.happened["revived by an erasure"] += bool(self.active() - before)

    # --- the comparison -----------------------------------------------------------------------------------------------
    @invariant()
    def what_holds_is_what_the_model_computes(self) -> None:
        rows = self.here.sql(
            "SELECT id, superseded_by, valid_to IS NULL, times_reinforced FROM memories WHERE level = 'explicit'"
        )
        for i, by, valid, reinforced in rows:
            ended = self.ended(self.facts[i])
            assert (by, valid) == (ended and ended[0], ended is None), f"m{i}"
            counted = sum(one.reinforced[i] for one in self.reflections.values() if not one.undone)
            assert reinforced == len(self.facts[i].days) - 1 + counted, f"m{i}"
        assert {row[0] for row in rows} == set(self.facts)
        made = self.here.sql(
            "SELECT m.reflection_id, e.role, array_agg(e.source_id ORDER BY e.source_id), m.superseded_by,"
            " m.valid_to IS NULL FROM memories m JOIN evidence e ON e.memory_id = m.id"
            " WHERE m.level IN ('derived', 'contradiction') GROUP BY m.id, e.role"
        )
        assert all((by is None) == valid for *_, by, valid in made)
        assert Counter((n, role, tuple(sources), by) for n, role, sources, by, _ in made) == self.conclusions()


def pairs_of(text: str) -> set[frozenset[int]]:
    """The pairs of facts that a reflection's prompt shows together."""
    found, new = set(), 0
    for line in text.splitlines():
        if line.startswith("new ["):
            new = int(re.findall(r"\[(\d+)\]", line)[0])
        elif line.startswith("    near "):
            near = line.removeprefix("    near ")
            several = re.fullmatch(r"(\[\d+\] ?)+", near)  # facts whose text stands further up
            olds = re.findall(r"\[(\d+)\]", near) if several else [near[1:].split("]")[0]]
            found |= {frozenset((new, int(old))) for old in olds}
    return found


def run_any() -> dict[str, Any]:
    """Reflect on ann once, however it ends."""
    from nexus_tasks import reflect_perspective

    job = reflect_perspective.delay(namespace=NAMESPACE, observer="assistant", subject="ann")
    work("reflect_perspective")
    outcome = job.wait(60)
    return {"status": outcome.status, **outcome.details}


@contextmanager
def guarded(most: int) -> Iterator[None]:
    """Hold reflections for review that would supersede more than ``most`` facts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perspective, "GUARD_COUNT", most)
        patch.setattr(perspective, "GUARD_SHARE", 0.0)
        yield


def drive(claude: Callable[..., Sandbox], standin: StandIn, *, examples: int, steps: int) -> None:
    """Run the machine."""
    Undoing.here, Undoing.standin = claude(NEXUS_REFLECT_MIN_NEW="1000"), standin
    options = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Undoing, settings=options)


def test_what_holds_does_not_depend_on_the_order_of_reflections_undos_and_erasures(
    claude: Callable[..., Sandbox], standin: StandIn
) -> None:
    drive(claude, standin, examples=4, steps=12)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_holds_does_not_depend_on_the_order_for_long(claude: Callable[..., Sandbox], standin: StandIn) -> None:
    drive(claude, standin, examples=40, steps=30)


def test_the_machine_follows_every_way(claude: Callable[..., Sandbox], standin: StandIn) -> None:
    """Random steps may leave a way out, so that one run by hand takes them all."""
    Undoing.here, Undoing.standin = claude(NEXUS_REFLECT_MIN_NEW="1000"), standin
    Undoing.happened.clear()
    machine = Undoing()
    supersede = [("contradicts", 1, 0)]

    def follow(step: Callable[..., None], *arguments: Any) -> None:
        step(*arguments)
        machine.what_holds_is_what_the_model_computes()

    follow(machine.begin)
    follow(machine.reflect, supersede, [0, 2, 3], True)
    follow(machine.review, True)
    follow(machine.reflect, supersede, [0, 2, 3], True)
    follow(machine.review, False)
    follow(machine.say_something_again, 0)  # the first fact: it has ended
    follow(machine.undo, 0)  # would make two facts of one text valid
    follow(machine.erase, 4)
    follow(machine.erase, 1)  # the fact that ended the first
    follow(machine.reflect, supersede, [], False)
    follow(machine.undo, len(machine.reflections) - 1)
    ways = ("held", "released", "refused", "undone", "erased", "revived by an erasure", "said again after its end")
    assert all(Undoing.happened[way] for way in ways), Undoing.happened
