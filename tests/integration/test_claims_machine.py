"""Claims under everything that can happen to them, in any order.

Hypothesis plays producers, workers, the sweep, an operator and bad luck against the real Lua. What it did is kept in a
model of promises: every request that was accepted is owed a run. After every step:

- each claim is in exactly the indexes of its state, and the counters are the truth (``Bench.audit``);
- I1: every promise has its claim, and the claim carries the promised job id and flags;
- I4: what is asked for during a run is served by one later run, once;
- I6: no claim has more failures than attempts, and one that has used them up is in the sweep's hands;
- every canvas delivery is parked until the run it needs has ended, and settled from then on until it is completed;
- I7: a run that is not its claim's changes nothing, and no run begins beside a live one.

In the end the bad luck stops, and every promise must be kept within a few rounds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun, Claim, Claimed, Wakeup
from nexus_tasks.idempotency.request import URGENT, Request
from tests.integration.claiming import ATTEMPTS, LEASE, Bench, new_bench, waited_for

CAP = 2
KINDS: dict[str, dict[str, Any]] = {
    "reruns": {"queue": "digest"},
    "drops": {"queue": "reflect", "while_running": "drop", "immutable": True},
    "gathers": {"queue": "derive", "while_running": "drop", "immutable": True},
}
# Few enough to meet each other. Two namespaces; the batches of `gathers` need siblings.
JOBS = [
    ("reruns", "acme", "x"),
    ("drops", "acme", "x"),
    ("gathers", "acme", "x"),
    ("gathers", "acme", "y"),
    ("gathers", "acme", "z"),
    ("reruns", "b:c", "x"),
    ("gathers", "b:c", "x"),
]
REASONS = ("ripeness", "budget", "throttle", "batch", "retry")  # for which a run waits; `begin` has two of its own

QUEUES = sorted({URGENT, *(str(options["queue"]) for options in KINDS.values())})
# The first is asked for most: what makes a rerun, or a merge, is asking for the same again.
jobs = st.sampled_from([JOBS[0]] * 4 + JOBS)
which = st.integers(0, 20)  # of what there is at the time
luck = st.integers(0, 4).map(lambda n: n > 0)  # four messages of five arrive


@dataclass
class Promise:
    """A request that was accepted: a run under this id, with this reason, is owed."""

    job_id: str
    reason: str = ""


@dataclass
class Message:
    """A wake-up on its way."""

    job: tuple[str, str, str]
    job_id: str
    published_at: int
    queue: str
    canvas: bool = False


@dataclass
class Work:
    """A run as its worker knows it: alive, frozen or a zombie, it does not know which."""

    claims: list[Claim]
    begun_after: int  # how many flushes it came after
    gathered: bool = False


@dataclass
class Model:
    """What was promised and what was done."""

    promises: dict[str, list[Promise]] = field(default_factory=lambda: defaultdict(list))
    served: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    letters: set[str] = field(default_factory=set)
    parked: dict[str, tuple[str, str]] = field(default_factory=dict)  # deliveries, with their claim and the run's id
    settled: dict[str, tuple[str, str]] = field(default_factory=dict)  # with its status and job id


class ClaimsMachine(RuleBasedStateMachine):
    bench: Bench
    leave: Callable[..., Any]

    def __init__(self, servers: ServerAddresses) -> None:
        super().__init__()
        self.servers = servers

    @initialize()
    def start(self) -> None:
        self.context = new_bench(self.servers)
        self.bench = self.context.__enter__()
        self.claims = self.bench.claims
        self.model = Model()
        self.queues: dict[str, list[Message]] = {queue: [] for queue in QUEUES}
        self.works: list[Work] = []
        self.burials: list[Claim] = []
        self.asked = self.flushes = 0
        self.seen: dict[str, dict[str, str]] = {}
        self.started, self.later, self.shifted = self.claims.now(), 0.0, 0.0

    # --- the world ----------------------------------------------------------------------------------------------------
    def request(self, job: tuple[str, str, str], **options: Any) -> Request:
        kind, namespace, name = job
        return self.bench.request(name, kind=kind, namespace=namespace, **KINDS[kind], **options)

    def publish(self, wakeups: Iterable[Wakeup], arrive: bool) -> None:
        for wakeup in wakeups:
            if wakeup.outcome:
                assert self.model.settled[wakeup.job_id] == wakeup.outcome
                continue  # whether it arrives shows in `complete`
            job = (wakeup.kind, wakeup.namespace, str(wakeup.args["name"]))
            if arrive:
                message = Message(job, wakeup.job_id, int(wakeup.published_at), wakeup.queue)
                self.queues[wakeup.queue].append(message)

    def look(self) -> dict[str, dict[str, str]]:
        self.seen = self.bench.audit()
        return self.seen

    def owned(self, claims: Sequence[Claim]) -> list[Claim]:
        return [claim for claim in claims if self.seen.get(claim.key, {}).get("token") == claim.token]

    def settle(self, key: str, runs: set[str] | None, status: str, job_id: str) -> None:
        """Deliveries that wait for one of these runs of a claim (``None``: for any) have their answer."""
        for name, (where, run) in list(self.model.parked.items()):
            if where == key and (runs is None or run in runs):
                del self.model.parked[name]
                self.model.settled[name] = (status, job_id)

    def unchanged(
        self, claims: Sequence[Claim], act: Callable[[], list[Wakeup]], arrive: bool, status: str = ""
    ) -> list[Claim]:
        """Do something as the run of ``claims``: those that are not its own must stay as they are (I7)."""
        mine = self.owned(claims)
        before = self.bench.content()
        wakeups = act()
        if status:
            for claim in mine:
                self.settle(claim.key, {claim.job_id, *claim.also}, status, claim.job_id)
        self.publish(wakeups, arrive)
        after = self.bench.content()
        if not mine:
            assert after == before
        for claim in claims:
            if claim not in mine and claim.key in before:
                # Another claim's end may wake it, if it waits for a slot; nothing else may touch it.
                assert after[claim.key] == before[claim.key] or before[claim.key].get("wait_reason") == "concurrency"
        return mine

    def ended(self, claim: Claim, status: str, fresh: bool) -> None:
        """The run of ``claim`` has ended in Redis: its promises are kept, each once."""
        ids = {claim.job_id, *claim.also}
        kept = [p for p in self.model.promises[claim.key] if p.job_id in ids]
        self.model.promises[claim.key] = [p for p in self.model.promises[claim.key] if p.job_id not in ids]
        promised = {p.reason for p in kept if p.reason}
        if fresh:
            assert promised == set(claim.flags.reasons), (kept, claim)
        assert not promised & self.model.served[claim.key]
        self.model.served[claim.key] |= promised
        if status == "dead":
            assert not ids & self.model.letters
            self.model.letters |= ids

    def some(self, state: str) -> bool:
        """Whether any claim is in this state."""
        return any(claim["state"] == state for claim in self.seen.values())

    # --- producers ----------------------------------------------------------------------------------------------------
    @rule(
        job=jobs,
        force=st.booleans(),
        delay=st.sampled_from([0.0, 0.0, 0.0, 30.0]),
        anew=st.booleans(),
        arrive=luck,
        canvas=st.booleans(),
        urgent=st.booleans(),
    )
    def ask(
        self,
        job: tuple[str, str, str],
        force: bool,
        delay: float,
        anew: bool,
        arrive: bool,
        canvas: bool = False,
        urgent: bool = False,
    ) -> None:
        self.asked += 1
        reason = "" if anew else f"r{self.asked}"
        asked = self.request(job, force=force, reasons=(reason,) if reason else (), urgency="live", delay=delay)
        if urgent:
            asked = replace(asked, queue=URGENT, flags=replace(asked.flags, urgency=URGENT))
        asked = asked.renewed() if anew else asked
        key = self.bench.key(asked)
        was, marker = self.seen.get(key, {}), self.claims.marker(key)
        canvas = canvas and not anew
        [ticket] = self.claims.claim([waited_for(asked) if canvas else asked])
        if canvas and ticket.outcome is Claimed.DONE and marker:
            self.model.settled[asked.id] = (marker[1], marker[0])
            assert ticket.wakeup
            assert ticket.wakeup.outcome == self.model.settled[asked.id]
            return
        state, in_line = was.get("state"), False
        if state is None:
            in_line = not delay and not ticket.wakeup and ticket.outcome is Claimed.ENQUEUED
        if canvas:
            self.model.parked[asked.id] = (key, ticket.job_id)
            if arrive and not in_line:  # under its own id, whatever the claim does
                at = int(ticket.wakeup.published_at) if ticket.wakeup else 0
                self.queues[asked.queue].append(Message(job, asked.id, at, asked.queue, canvas=True))
        mine = canvas and ticket.job_id == asked.id
        self.publish([ticket.wakeup] if ticket.wakeup and not mine else [], arrive)
        if state is None and asked.immutable and not anew and marker and marker[1] not in ("dropped", "gone"):
            assert (ticket.outcome, ticket.job_id, ticket.wakeup) == (Claimed.DONE, marker[0], None)
            return
        if state is None:
            assert (ticket.outcome, ticket.job_id) == (Claimed.ENQUEUED, asked.id)
            assert (ticket.wakeup is None) == (bool(delay) or in_line)
            assert in_line == (self.bench.fields(asked).get("wait_reason") == "concurrency")
        elif state == "running" and (anew or asked.while_running == "drop"):
            assert (ticket.outcome, ticket.job_id) == (Claimed.RUNNING, was["id"])
            reason = ""
        elif state == "running":
            assert (ticket.outcome, ticket.job_id) == (Claimed.RERUN, was.get("rerun_id", asked.id))
        else:
            assert (ticket.outcome, ticket.job_id) == (Claimed.MERGED, was["id"])
        self.model.promises[key].append(Promise(ticket.job_id, reason))

    @rule(job=jobs)
    def ask_and_begin(self, job: tuple[str, str, str]) -> None:
        self.ask(job, False, 0.0, False, True)
        self.look()
        queue = self.queues[KINDS[job[0]]["queue"]]
        if queue:
            self.begin(queue.pop(0))

    @precondition(lambda self: self.works)
    @rule(pick=which, force=st.booleans())
    def ask_for_what_runs(self, pick: int, force: bool) -> None:
        lead = self.works[pick % len(self.works)].claims[0]
        self.ask((lead.kind, lead.namespace, json.loads(lead.scope)["name"]), force, 0.0, False, True)

    # --- workers ------------------------------------------------------------------------------------------------------
    @precondition(lambda self: any(self.queues.values()))
    @rule(pick=which, again=st.booleans())
    def deliver(self, pick: int, again: bool) -> None:
        """The next message of a queue arrives; with ``again`` it will arrive once more."""
        queue = [q for q in self.queues.values() if q][pick % sum(map(bool, self.queues.values()))]
        message = queue[0] if again else queue.pop(0)
        self.begin(message)

    def begin(self, message: Message) -> None:
        kind, namespace, _ = message.job
        asked = replace(self.request(message.job, id=message.job_id), queue=message.queue)
        key = self.bench.key(asked)
        was, slots = self.seen.get(key, {}), self.claims.counts(namespace).get("slots", 0)
        marker, paused = self.claims.marker(key), kind in self.claims.paused()
        self.asked += 1
        known = message.job_id in self.model.parked or message.job_id in self.model.settled
        asked = waited_for(asked) if message.canvas else asked
        begun, claim = self.bench.begin(
            asked,
            f"t{self.asked}",
            cap=CAP,
            gathers=kind == "gathers",
            published_at=str(message.published_at),
        )
        self.publish(self.bench.woken, True)
        waits = was.get("state") == "waiting" and was["wait_reason"] != "concurrency"
        expected = Begun.SUPERSEDED if was.get("state") == "running" else Begun.EARLY if waits else Begun.RUN
        if (not was and marker and marker[1] != "gone") or (message.canvas and (not known if was else known or marker)):
            expected = Begun.STALE
        elif expected is Begun.RUN and (paused or slots >= CAP):
            expected = Begun.EARLY
        assert begun is expected
        if not was and begun is not Begun.STALE:
            self.model.promises[key].append(Promise(message.job_id))
            if message.canvas:
                self.model.parked[message.job_id] = (key, message.job_id)
        if claim is not None:
            owed = tuple(sorted(p.reason for p in self.model.promises[key] if p.reason))
            assert claim.flags.reasons == owed, (claim, self.model.promises[key])
            self.works.append(Work([claim], self.flushes))

    @precondition(lambda self: any(self.queues.values()))
    @rule(pick=which, dialect=st.sampled_from(["old", "new", "-"]))
    def deliver_to_a_stranger(self, pick: int, dialect: str) -> None:
        """A message arrives at a worker of another release, which does not understand it."""
        queue = [q for q in self.queues.values() if q][pick % sum(map(bool, self.queues.values()))]
        message = queue.pop(0)
        self.publish(self.claims.leave_to_others(self.bench.key(self.request(message.job)), dialect), True)

    @rule(dialect=st.sampled_from(["old", "new"]), arrive=luck)
    def understand(self, dialect: str, arrive: bool) -> None:
        for wakeups in self.claims.understood(dict.fromkeys(KINDS, dialect)):
            for wakeup in wakeups:
                assert self.seen[wakeup.key]["wait_reason"] in ("version", "concurrency")
            self.publish(wakeups, arrive)

    @rule(first=st.sampled_from("xyz"), both_run=st.booleans(), again=st.booleans())
    def ask_and_gather(self, first: str, both_run: bool, again: bool) -> None:
        """Siblings are asked for together; one or two of them begin, and one gathers."""
        for name in "xyz":
            job = ("gathers", "acme", name)
            self.ask(job, False, 0.0, False, True)
            self.look()
            if self.queues["derive"] and (name == first or both_run):
                self.begin(self.queues["derive"].pop(0))
                self.look()
        if any(not w.gathered and w.claims[0].kind == "gathers" for w in self.works):
            self.gather("xyz".index(first), again, set("xyz"))

    @precondition(lambda self: any(not w.gathered and w.claims[0].kind == "gathers" for w in self.works))
    @rule(pick=which, again=st.booleans(), names=st.sets(st.sampled_from("xyz"), min_size=1))
    def gather(self, pick: int, again: bool, names: set[str]) -> None:
        works = [w for w in self.works if not w.gathered and w.claims[0].kind == "gathers"]
        work = works[pick % len(works)]
        lead, before = work.claims[0], self.bench.content()
        siblings = [self.request(("gathers", lead.namespace, name)) for name in sorted(names)]
        siblings = [sibling for sibling in siblings if self.bench.key(sibling) != lead.key]
        taken = self.bench.take(lead, siblings, again=again)
        if not self.owned([lead]):
            assert taken is None
            assert self.bench.content() == before
            self.works.remove(work)
            return
        assert taken is not None
        self.publish(self.bench.woken, True)
        for claim in taken:
            was = self.seen.get(claim.key)
            if was is None:
                self.model.promises[claim.key].append(Promise(claim.job_id))
            else:
                assert int(was.get("crashes", 0)) + int(was.get("errors", 0)) < 2
                assert was["state"] != "running" or was.get("open") == "1"
        work.claims = [lead, *taken]
        work.gathered = True

    @precondition(lambda self: self.works)
    @rule(pick=which, everyone=st.booleans())
    def heartbeat(self, pick: int, everyone: bool) -> None:
        works = self.works if everyone else [self.works[pick % len(self.works)]]
        claims = [claim for work in works for claim in work.claims]
        lost = self.claims.renew(claims, lease=LEASE)
        mine = self.owned(claims)
        for claim in claims:
            if claim in lost:
                assert claim not in mine
            elif claim not in mine:
                assert claim.key not in self.seen  # flushed, and made again
                promises = self.model.promises[claim.key]
                promises += [Promise(job_id) for job_id in (claim.job_id, *claim.also)]
                promises += [Promise(claim.job_id, reason) for reason in claim.flags.reasons]

    @precondition(lambda self: self.works)
    @rule(pick=which, status=st.sampled_from(["completed", "completed", "gone", "dead"]), arrive=luck)
    def finish(self, pick: int, status: str, arrive: bool) -> None:
        work = self.works.pop(pick % len(self.works))
        self.end(work, work.claims, status, arrive)

    def end(self, work: Work, claims: Sequence[Claim], status: str, arrive: bool) -> None:
        mine = self.unchanged(claims, lambda: self.claims.finish(claims, [status] * len(claims)), arrive, status)
        for claim in mine:
            self.ended(claim, status, work.begun_after == self.flushes)

    @precondition(lambda self: any(len(w.claims) > 1 for w in self.works))
    @rule(pick=which, arrive=luck)
    def finish_a_part(self, pick: int, arrive: bool) -> None:
        works = [w for w in self.works if len(w.claims) > 1]
        work = works[pick % len(works)]
        part, work.claims = work.claims[:1], work.claims[1:]
        self.end(work, part, "completed", arrive)

    @precondition(lambda self: self.works)
    @rule(pick=which, reason=st.sampled_from(REASONS), seconds=st.sampled_from([0.0, 5.0, 100.0]), arrive=luck)
    def wait(self, pick: int, reason: str, seconds: float, arrive: bool) -> None:
        work = self.works.pop(pick % len(self.works))
        retry = reason == "retry"
        self.unchanged(work.claims, lambda: self.claims.wait(work.claims, reason, seconds, retry=retry), arrive)

    @precondition(lambda self: self.works)
    @rule(pick=which, arrive=luck)
    def raise_an_unknown_error(self, pick: int, arrive: bool) -> None:
        """As the policy decides: count it, or write the letter and fail."""
        work = self.works.pop(pick % len(self.works))
        dead = [claim for claim in work.claims if claim.errors + claim.crashes + 1 >= ATTEMPTS]
        rest = [claim for claim in work.claims if claim not in dead]
        if rest:
            self.unchanged(rest, lambda: self.claims.wait(rest, "retry", 1.0, retry=True, error=True), arrive)
            self.look()
        if dead:
            self.end(work, dead, "dead", arrive)

    @precondition(lambda self: self.works)
    @rule(pick=which, how=st.sampled_from(["completed", "retry", "take", "renew"]), again=st.booleans())
    def act_as_a_zombie(self, pick: int, how: str, again: bool) -> None:
        """A worker freezes for longer than its leases, others go on, then it does what it was about to do."""
        work = self.works.pop(pick % len(self.works))
        self.time_passes(LEASE + 1)
        self.sweep_leases(True)
        self.time_passes(3.1)
        self.sweep_due(True)
        self.look()
        if again and any(self.queues.values()):
            self.deliver(pick, False)
            self.look()
        before = self.bench.content()
        if how == "completed":
            assert self.claims.finish(work.claims, ["completed"] * len(work.claims)) == []
        elif how == "retry":
            assert self.claims.wait(work.claims, "retry", 5.0, retry=True, error=True) == []
        elif how == "take":
            assert self.bench.take(work.claims[0], [self.request(JOBS[0])]) is None
        elif all(claim.key in self.seen for claim in work.claims):
            assert self.claims.renew(work.claims, lease=LEASE) == work.claims
        assert self.bench.content() == before

    @precondition(lambda self: self.works)
    @rule(pick=which)
    def crash(self, pick: int) -> None:
        self.works.pop(pick % len(self.works))

    @precondition(lambda self: self.model.settled)
    @rule(pick=which, dies=st.booleans())
    def complete(self, pick: int, dies: bool) -> None:
        """One of the messages of a delivery arrives, and another at the same time; or its worker dies."""
        name = sorted(self.model.settled)[pick % len(self.model.settled)]
        queue = self.bench.client.hget(f"{self.claims.prefix}:delivery:{name}", "queue")
        found = self.claims.delivery_outcome(name, queue=queue)
        assert found in (None, self.model.settled[name])  # None: a worker had it, and died
        assert self.claims.delivery_outcome(name, queue=queue) is None
        if found and not dies:
            self.claims.delivery_accounted(name)
            del self.model.settled[name]

    @precondition(lambda self: self.model.settled)
    @rule(queue=st.sampled_from(QUEUES))
    def sweep_settle(self, queue: str) -> None:
        self.publish(self.bench.sweep_settle(queue), True)

    @precondition(lambda self: self.model.parked)
    @rule(pick=which, rarely=st.integers(0, 2))
    def revoke(self, pick: int, rarely: int) -> None:
        if rarely:
            return
        name = sorted(self.model.parked)[pick % len(self.model.parked)]
        key, _ = self.model.parked.pop(name)
        dropped, wakeups = self.claims.drop(key, job_id=name, delivery=name)
        assert dropped is (self.seen[key]["id"] == name)
        if dropped:
            self.settle(key, None, "dropped", name)
            self.model.promises.pop(key, None)
        self.publish(wakeups, True)

    # --- operators and what comes -------------------------------------------------------------------------------------
    @precondition(lambda self: self.some("waiting"))
    @rule(
        job=jobs,
        reason=st.sampled_from((*REASONS, "pause", "delay")),
        all_of_it=st.booleans(),
        arrive=luck,
    )
    def hurry(self, job: tuple[str, str, str], reason: str, all_of_it: bool, arrive: bool) -> None:
        whose = job[0] if reason == "pause" else job[1]
        if all_of_it:
            wakeups = [wakeup for some in self.claims.hurry_all(reason, whose) for wakeup in some]
        else:
            wakeups = self.claims.hurry(reason, requests=[self.request(job)])
        for wakeup in wakeups:
            assert self.seen[wakeup.key]["wait_reason"] == reason
            assert whose in (wakeup.kind, wakeup.namespace)
        self.publish(wakeups, arrive)

    @rule(kind=st.sampled_from(sorted(KINDS)), arrive=luck, rarely=st.integers(0, 2))
    def pause_or_resume(self, kind: str, arrive: bool, rarely: int) -> None:
        if rarely:
            return
        if kind in self.claims.paused():
            self.publish(self.claims.resume(kind), arrive)
        else:
            self.claims.pause(kind, "a test")

    @rule(job=jobs, by_id=st.booleans(), arrive=luck, rarely=st.integers(0, 2))
    def drop(self, job: tuple[str, str, str], by_id: bool, arrive: bool, rarely: int) -> None:
        if rarely:
            return
        key = self.bench.key(self.request(job))
        was = self.seen.get(key)
        dropped, wakeups = self.claims.drop(key, job_id=was["id"] if was and by_id else "")
        if was:
            self.settle(key, None, "dropped", was["id"])
        assert dropped is bool(was)
        assert not was or self.claims.marker(key) == (was["id"], "dropped")
        self.publish(wakeups, arrive)
        self.model.promises.pop(key, None)

    # --- the sweep ----------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.some("waiting"))
    @rule(arrive=luck)
    def sweep_due(self, arrive: bool) -> None:
        now = self.claims.now() * 1000
        _, wakeups = self.claims.sweep_due(3)
        assert all(int(self.seen[w.key]["due_at"]) <= now + 1_000 for w in wakeups)
        self.publish(wakeups, arrive)

    @precondition(lambda self: self.some("running"))
    @rule(arrive=luck, most_of_a_lease=st.booleans())
    def sweep_leases(self, arrive: bool, most_of_a_lease: bool = False) -> None:
        if most_of_a_lease:
            self.time_passes(6.2)
        self.asked += 1
        _, dead, wakeups = self.bench.sweep_leases(f"sweep{self.asked}")
        self.publish(wakeups, arrive)
        self.burials += dead
        before, now = self.seen, self.claims.now() * 1000
        for key, claim in self.bench.audit().items():
            if claim.get("crashes") != before[key].get("crashes") or claim.get("token") != before[key].get("token"):
                assert int(before[key]["lease_until"]) <= now  # nobody's lease is cut short

    @precondition(lambda self: self.some("pending"))
    @rule(pick=which, arrive=luck)
    def sweep_lost(self, pick: int, arrive: bool) -> None:
        name, queue = sorted(self.queues.items())[pick % len(self.queues)]
        self.asked += 1
        wakeups = self.bench.sweep_lost(name, empty=not queue, limit=3)
        after = self.bench.audit()
        for wakeup in wakeups:
            assert after[wakeup.key].get("crashes") == self.seen[wakeup.key].get("crashes")  # nothing had begun
            if self.seen[wakeup.key]["state"] == "waiting":
                continue  # it stood in its namespace's line behind a claim that counts no longer as ahead
            published = int(self.seen[wakeup.key]["published_at"])
            on_its_way = [m for m in queue if self.bench.key(self.request(m.job)) == wakeup.key]
            assert not [m for m in on_its_way if m.published_at >= published]  # a backlog is never multiplied
        self.publish(wakeups, arrive)

    @precondition(lambda self: self.burials)
    @rule(pick=which, dies=st.booleans(), arrive=luck)
    def bury(self, pick: int, dies: bool, arrive: bool) -> None:
        claim = self.burials.pop(pick % len(self.burials))
        assert claim.crashes + claim.errors == ATTEMPTS
        if not dies:
            self.end(Work([claim], self.flushes), [claim], "dead", arrive)

    @precondition(lambda self: self.some("pending") or self.some("waiting"))
    @rule(pick=which, left=st.integers(1, ATTEMPTS - 1))
    def a_bad_history(self, pick: int, left: int) -> None:
        """Write what many crashes and lost messages would have left: few attempts, and a longer grace."""
        idle = sorted(key for key, claim in self.seen.items() if claim["state"] != "running")
        key = idle[pick % len(idle)]
        claim = self.seen[key]
        used = max(ATTEMPTS - left - int(claim.get("errors", 0)), int(claim.get("crashes", 0)))
        self.bench.client.hset(key, "crashes", used)
        if claim["state"] == "pending" and "republished" not in claim:  # never fewer: Redis counts only upwards
            self.bench.client.hset(key, "republished", 1)
            index = f"{self.claims.prefix}:published:{claim['queue']}"
            self.bench.client.zadd(index, {key: int(claim["published_at"]) + 10_000})

    # --- time and bad luck --------------------------------------------------------------------------------------------
    # No sum of these is near a lease, a grace or a wait: the few milliseconds that a step takes decide nothing.
    @rule(seconds=st.sampled_from([3.1, 11.0, 61.7, 703.0, 1_003.0]))
    def time_passes(self, seconds: float) -> None:
        """Make it exactly so much later than after the last step, however long that step took.

        Never earlier: where the steps took longer than the time that was to pass, what is published next would be older
        than what was published before.
        """
        self.later += seconds
        shift = max(round(self.later - (self.claims.now() - self.started) - self.shifted, 3), 0.0)
        self.shifted += shift
        self.bench.jump(shift)
        for queue in self.queues.values():
            for message in queue:
                message.published_at -= round(shift * 1000)
        self.look()

    @precondition(lambda self: any(self.queues.values()))
    @rule(pick=which)
    def lose_a_message(self, pick: int) -> None:
        queue = [q for q in self.queues.values() if q][pick % sum(map(bool, self.queues.values()))]
        queue.pop(pick % len(queue))

    @rule(rarely=st.integers(0, 9), messages_too=st.booleans())
    def flush(self, rarely: int, messages_too: bool) -> None:
        if rarely:
            return
        self.bench.flush()
        self.flushes += 1
        self.model.promises.clear()
        self.model.parked.clear()
        self.model.settled.clear()
        self.model.letters.clear()  # a job whose marker is lost may die again: Postgres keeps one letter of an id
        if messages_too:
            for queue in self.queues.values():
                queue.clear()

    # --- after every step ---------------------------------------------------------------------------------------------
    @invariant()
    def promises_hold(self) -> None:
        self.time_passes(0.003)  # no two steps in one millisecond, or an example could not be played again
        claims = self.seen
        self.deliveries_hold()
        for key, promises in self.model.promises.items():
            for promise in promises:
                claim = claims.get(key)
                assert claim, f"{promise} is nobody's"
                ids = {claim["id"], *claim.get("also", "").split(",")}
                assert promise.job_id in ids | {claim.get("rerun_id")}, (promise, claim)
                now, later = (set(claim.get(name, "").split(",")) for name in ("run_reasons", "reasons"))
                if promise.reason and promise.job_id == claim.get("rerun_id"):
                    assert promise.reason in later, (promise, claim)
                elif promise.reason:
                    assert promise.reason in now | later, (promise, claim)
        tokens = [claim["token"] for claim in claims.values() if "token" in claim]
        known = {claim.token for work in self.works for claim in work.claims}
        assert len(known) == len(self.works)
        for key, claim in claims.items():
            reasons = {*claim.get("reasons", "").split(","), *claim.get("run_reasons", "").split(",")} - {""}
            assert not reasons & self.model.served[key], f"served twice: {claim}"
            used = int(claim.get("crashes", 0)) + int(claim.get("errors", 0))
            assert used <= ATTEMPTS
            assert used < ATTEMPTS or claim.get("token", "").startswith("sweep"), claim
            assert json.loads(claim["scope"])["namespace"] == claim["namespace"]
        assert len({t for t in tokens if t.startswith("t")}) <= self.asked

    def deliveries_hold(self) -> None:
        """Parked and settled is what should be, and nothing else."""
        first = f"{self.claims.prefix}:delivery:"
        records = {key.removeprefix(first): of for key, of in self.bench.dump().items() if key.startswith(first)}
        assert {name for name, of in records.items() if of["parts"] == "1"} == set(self.model.parked)
        settled = {name: (of["status"], of["job_id"]) for name, of in records.items() if of["parts"] == "0"}
        assert settled == self.model.settled

    def teardown(self) -> None:
        """From here on messages arrive and workers live: every promise is kept within a few rounds."""
        if not hasattr(self, "bench"):
            return
        try:
            self.look()
            self.works.clear()
            self.burials.clear()
            for kind in KINDS:
                self.publish(self.claims.resume(kind), True)
            for _ in range(12):
                if not self.look() and not self.model.settled:
                    break
                self.time_passes(LEASE + 1)
                self.sweep_leases(True)
                self.look()
                while self.burials:
                    self.bury(0, False, True)
                    self.look()
                self.time_passes(123.0)
                self.publish(self.bench.sweep_due(), True)
                for wakeups in self.claims.understood(dict.fromkeys(KINDS, "newest")):
                    self.publish(wakeups, True)
                for name in self.queues:
                    self.look()
                    for _ in range(10):
                        self.sweep_lost(sorted(self.queues).index(name), True)
                        self.look()
                while any(self.queues.values()):
                    self.deliver(0, False)
                    self.look()
                    while self.works:
                        self.finish(0, "completed", True)
                        self.look()
                self.settle_all()
            assert not self.look()
            assert not [p for promises in self.model.promises.values() for p in promises]
            assert not self.model.parked
            assert not self.model.settled
        finally:
            self.context.__exit__(None, None, None)

    def settle_all(self) -> None:
        """What was taken by workers that died is sent again, and completed."""
        for queue in self.queues:
            for wakeup in self.bench.sweep_settle(queue):
                self.complete(sorted(self.model.settled).index(wakeup.job_id), False)


def play(servers: ServerAddresses, *, examples: int, steps: int, phases: Sequence[Phase] = tuple(Phase)) -> None:
    """Run the machine; every example on a prefix of its own.

    The clock is the real Redis's: on a machine that stalls, two examples with the same choices may differ, and
    hypothesis gives the whole run up. That says nothing about the claims: what was played until then has kept every
    promise, and the rest is played in another run, as long as a run is worth it.
    """
    played = 0

    def machine() -> ClaimsMachine:
        nonlocal played
        played += 1
        return ClaimsMachine(servers)

    for _ in range(10):
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=max(examples - played, 10),
                    stateful_step_count=steps,
                    phases=phases,
                    deadline=None,
                    derandomize=False,  # another run plays other examples
                    suppress_health_check=list(HealthCheck),
                ),
            )
        except FlakyStrategyDefinition:
            if played >= examples:
                return
        else:
            return
    assert played >= examples // 2, f"only {played} examples could be played"


def test_claims_keep_their_promises(servers: ServerAddresses) -> None:
    play(servers, examples=120, steps=50, phases=[Phase.generate])  # making a failure shorter takes minutes


@pytest.mark.long
@pytest.mark.timeout(600)  # three minutes on an idle machine; a failure is made shorter for as long again
def test_claims_keep_their_promises_for_long(servers: ServerAddresses) -> None:
    play(servers, examples=500, steps=60)
