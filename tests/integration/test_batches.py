"""Dreams through message batches: half the price, and whatever is cut off is neither lost nor submitted again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from nexus_tasks import Nexus, digest_session
from nexus_tasks.cognition import message_batches
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import Transient
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.llm.anthropic import batches as anthropic_batches
from nexus_tasks.llm.anthropic.batches import AnthropicBatchProvider
from nexus_tasks.llm.offline import OfflineModel
from nexus_tasks.storage import batches, pruning
from nexus_tasks.tasks import digest_session as digests
from nexus_tasks.tasks import follow_ups
from tests.integration.inline import NAMESPACE, pending, say, time_passes, waiting, work_as_asked
from tests.integration.test_clocks import DAY, clock_is
from tests.sandbox import Sandbox, engine
from tests.standin import StandIn, faults
from tests.standin.wire import Reply

SESSIONS = ("one", "two", "three")


@pytest.fixture
def slow(standin: StandIn) -> StandIn:
    """A stand-in whose batches end when the test says so."""
    standin.batch_delay = None
    return standin


@pytest.fixture
def here(claude: Callable[..., Sandbox], slow: StandIn) -> Iterator[Sandbox]:  # noqa: ARG001 - set before it
    made = claude(NEXUS_BATCH_THRESHOLD=str(len(SESSIONS)), NEXUS_BUDGET_USD_PER_DAY="1")
    yield made
    under_way = "SELECT hold_id FROM batch_requests WHERE hold_id IS NOT NULL"
    held = made.sql(f"SELECT count(*) FROM budget_holds WHERE id NOT IN ({under_way})")
    assert held == [(0,)], "money is held for what has ended"


def dream(*sessions: str, namespace: str = NAMESPACE) -> None:
    """Ask for a digest of each session, as a dream does."""
    for key in sessions:
        say(f"I moved to house {key}.", session=key, namespace=namespace)
        digest_session.delay(namespace=namespace, session_key=key, reason="dream_digest")


def run() -> None:
    """Run what is pending until nothing is, as a worker does; derivations are left alone."""
    work_as_asked(without=["derive_memory"])


def later(here: Sandbox) -> None:
    """Let every wait end, and run what that wakes."""
    here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
    time_passes(here)
    run()


def digested(here: Sandbox) -> int:
    return int(here.sql("SELECT count(*) FROM sessions WHERE digest_end_seq = last_seq")[0][0])


def calls(standin: StandIn) -> tuple[int, int, int]:
    """Batches submitted, items answered in batches, and live digests."""
    asked = standin.counters.requests
    answered = sum(bool(call.batch) and call.outcome == "succeeded" for call in asked)
    return standin.counters.batches, answered, standin.counters.purposes["digest"]


def spent(here: Sandbox) -> list[tuple[bool, int]]:
    return here.sql("SELECT batched, count(*) FROM model_calls WHERE purpose = 'digest' GROUP BY 1 ORDER BY 1")


def reasons() -> dict[str, str]:
    return {claim.kind: claim.wait_reason for claim in waiting() if claim.kind != "derive_memory"}


def test_no_batch_asks_for_dropped_jobs(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS[:2])
    run()
    Nexus().drop_jobs(kind="digest_session")
    assert here.sql("SELECT (SELECT count(*) FROM batch_requests), (SELECT count(*) FROM budget_holds)") == [(0, 0)]
    dream(*SESSIONS)
    run()
    assert calls(slow) == (1, 0, 0)
    Nexus().drop_jobs()
    Reconciler(engine).round()
    later(here)
    assert len(slow.cancelled_batches()) == 1
    later(here)
    assert here.sql("SELECT (SELECT count(*) FROM batch_requests), (SELECT count(*) FROM budget_holds)") == [(0, 0)]
    assert (digested(here), calls(slow)) == (0, (1, 0, 0))


@pytest.mark.parametrize("fault", [faults.throttled("60"), faults.server_error()], ids=["429", "500"])
@pytest.mark.parametrize("dropped", [True, False])
def test_a_batch_that_could_not_be_submitted_asks_nothing_that_no_job_wants_any_more(
    here: Sandbox, slow: StandIn, fault: faults.Fault, dropped: bool
) -> None:
    slow.batch_faults["create"] = fault
    dream(*SESSIONS)
    run()
    live = [Nexus().digest(NAMESPACE, key) for key in SESSIONS[: 0 if dropped else 2]]
    run()
    if dropped:
        for job in Nexus().jobs(kind="digest_session")[:2]:
            Nexus().drop_job(job.id)
    slow.heal()
    later(here)
    slow.end_batches()
    later(here)
    assert calls(slow) == (1, 1, len(live))
    assert nothing_is_left(here)


def test_a_dream_s_digests_go_as_one_batch_at_half_the_price(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS[:2])
    run()
    assert reasons() == {"digest_session": "batch", "submit_batch": "batch"}
    assert calls(slow) == (0, 0, 0), "they wait for company"
    dream(SESSIONS[2])
    run()
    assert calls(slow) == (1, 0, 0)
    later(here)
    assert digested(here) == 0
    slow.end_batches()
    later(here)
    assert (digested(here), calls(slow)) == (3, (1, 3, 0))
    for key in SESSIONS:  # results come in any order
        assert f"house {key}" in Nexus().session(NAMESPACE, key).digests["summary_short"].content
    assert spent(here) == [(True, 3)]
    [(usd, full)] = here.sql(
        "SELECT sum(cost_usd), sum(0.10 * input_tokens + 0.125 * cache_write_tokens + 0.50 * output_tokens) / 1000000"
        " FROM model_calls WHERE batched"
    )
    assert abs(float(usd) - float(full) / 2) < 1e-9
    assert here.sql("SELECT min(seconds) > 0 FROM model_calls WHERE batched") == [(True,)]
    assert reasons() == {}
    assert here.sql("SELECT 1 FROM batch_requests UNION ALL SELECT 1 FROM message_batches") == []
    assert here.sql("SELECT 1 FROM saved_answers") == []
    assert here.sql("SELECT sum(model_calls) FROM job_runs WHERE kind = 'digest_session'") == [(3,)]


class Killed(Exception):
    """The worker dies here: what was committed stays, and nothing else happens."""


@pytest.mark.parametrize(
    ("owner", "step", "after"),
    [
        (AnthropicBatchProvider, "submit", False),  # put together, not submitted
        (AnthropicBatchProvider, "submit", True),  # submitted, the answer did not arrive
        (batches, "record_api_id", False),  # submitted, its id not noted
        (AnthropicBatchProvider, "has_ended", False),
        (AnthropicBatchProvider, "has_ended", True),  # polled, nothing fetched
        (AnthropicBatchProvider, "results", False),
        (message_batches, "_store_result", True),  # one result of three
        (batches, "store_result", True),  # one result, not committed
        (batches, "close_batch", False),  # all results, the batch not closed
        (batches, "close_batch", True),
        (AnthropicBatchProvider, "completion_of", True),  # the answer read, not used
    ],
)
def test_a_kill_at_any_step_neither_loses_nor_repeats_the_batch(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, after: bool
) -> None:
    original, kills = getattr(owner, step), []

    def dies(*args: Any, **named: Any) -> Any:
        if not kills and not after:
            kills.append(step)
            raise Killed
        done = original(*args, **named)
        if not kills:
            kills.append(step)
            raise Killed
        return done

    monkeypatch.setattr(owner, step, dies)
    dream(*SESSIONS)
    run()
    later(here)
    slow.end_batches()
    for _ in range(4):
        later(here)
    assert kills == [step]
    assert (digested(here), calls(slow)) == (3, (1, 3, 0))
    assert spent(here) == [(True, 3)]
    assert reasons() == {}
    assert here.sql("SELECT 1 FROM batch_requests UNION ALL SELECT 1 FROM message_batches") == []


def test_an_answer_that_is_fetched_twice_is_entered_once(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    dream(*SESSIONS)
    run()
    slow.end_batches()
    here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
    [(namespace_id,)] = here.sql("SELECT id FROM namespaces")
    with monkeypatch.context() as patch:
        patch.setattr(batches, "close_batch", lambda *_: 1 / 0)  # dies with all results entered, the batch not closed
        with pytest.raises(ZeroDivisionError):
            message_batches.advance(default_deployment().resources, namespace_id, lambda: None)
    message_batches.advance(default_deployment().resources, namespace_id, lambda: None)
    assert spent(here) == [(True, 3)]


@pytest.mark.parametrize("listed", [True, False])
def test_a_run_that_was_taken_for_dead_while_it_submitted(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """The one in its place finds the batch; where the provider does not list it yet, it submits, and the other goes."""
    submit, submitted = AnthropicBatchProvider.submit, list[str]()

    def frozen(self: AnthropicBatchProvider, items: Any) -> str:
        submitted.append(submit(self, items))
        mine = submitted[-1]
        if len(submitted) == 1:
            [(namespace_id,)] = here.sql("SELECT id FROM namespaces")
            message_batches.advance(default_deployment().resources, namespace_id, lambda: None)
        return mine

    monkeypatch.setattr(AnthropicBatchProvider, "submit", frozen)
    if not listed:
        monkeypatch.setattr(AnthropicBatchProvider, "submitted_since", lambda *_: [])
    dream(*SESSIONS)
    run()
    assert (len(submitted), slow.cancelled_batches()) == ((1, []) if listed else (2, submitted[:1]))
    assert here.sql("SELECT api_id FROM message_batches") == [(submitted[-1],)]
    slow.end_batches()
    later(here)
    assert (digested(here), spent(here)) == (3, [(True, 3)])


def test_another_namespace_s_batch_is_not_taken_for_the_one_that_was_cut_off(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    dream(*SESSIONS)
    run()
    with monkeypatch.context() as patch:
        patch.setattr(AnthropicBatchProvider, "submit", lambda *_: 1 / 0)
        dream(*SESSIONS, namespace="other")
        run()
    later(here)
    assert slow.counters.batches == 2
    slow.end_batches()
    later(here)
    assert (digested(here), spent(here)) == (6, [(True, 6)])


@pytest.mark.usefixtures("here")
def test_a_job_that_gave_up_is_not_asked_for_again_until_it_is_retried() -> None:
    """Otherwise a batch whose results kill each worker would make dead letters for ever."""
    dream(SESSIONS[0])
    run()
    [claim] = [one for one in waiting() if one.kind == "submit_batch"]
    engine.storage.dead_letter(claim, None)
    engine.claims.drop(claim.key)
    Reconciler(engine).round()
    assert "submit_batch" not in {one.kind for one in (*pending(), *waiting())}
    Nexus().retry_job(claim.job_id)
    engine.claims.drop(claim.key)
    Reconciler(engine).round()
    assert "submit_batch" in {one.kind for one in (*pending(), *waiting())}


def test_a_flushed_redis_forgets_no_batch(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    run()
    here.flush()
    Reconciler(engine).round()
    assert "submit_batch" in {claim.kind for claim in pending()}
    # Reconcile asks for the digests too, and nobody knows any more how urgent they are: what is in a batch is awaited.
    asked = [digests.request(NAMESPACE, key, "dream_digest") for key in SESSIONS]
    follow_ups.ask(default_deployment(), [replace(one, anew=True) for one in asked])
    run()
    assert calls(slow) == (1, 0, 0)
    slow.end_batches()
    later(here)
    assert (digested(here), calls(slow)) == (3, (1, 3, 0))


@pytest.mark.parametrize("fault", [faults.expired(), faults.overloaded()], ids=["expired", "errored"])
def test_an_item_without_an_answer_goes_live(here: Sandbox, slow: StandIn, fault: faults.Fault) -> None:
    slow.when(lambda call: bool(call.batch) and "house one" in call.text, fault)
    dream(*SESSIONS)
    run()
    slow.end_batches()
    later(here)
    later(here)
    assert digested(here) == 3
    assert calls(slow)[2] == 1


@pytest.mark.parametrize("lost", [False, True])
def test_a_batch_that_the_provider_has_cancelled_or_lost_goes_live(here: Sandbox, slow: StandIn, lost: bool) -> None:
    dream(*SESSIONS)
    run()
    if lost:
        here.sql("UPDATE message_batches SET api_id = 'msgbatch_unknown'")
    else:
        [(api_id,)] = here.sql("SELECT api_id FROM message_batches")
        provider = default_deployment().resources.model.batches_for("digest")
        assert provider is not None
        provider.cancel(api_id)
    later(here)
    later(here)
    assert (digested(here), calls(slow)) == (3, (1, 0, 3))
    assert reasons() == {}


def test_somebody_else_s_batch_is_not_taken_for_ours(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    dream(*SESSIONS)
    provider = default_deployment().resources.model.batches_for("digest")
    assert provider is not None
    params = {"model": "claude-haiku-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}
    submit, cut = AnthropicBatchProvider.submit, []

    def nothing_arrives(self: AnthropicBatchProvider, items: Any) -> str:
        if cut:
            return submit(self, items)
        cut.append(submit(self, {f"other-{number}": params for number in range(3)}))
        raise Transient("Connection lost.")

    monkeypatch.setattr(AnthropicBatchProvider, "submit", nothing_arrives)
    run()
    later(here)  # takes the other one for ours
    slow.end_batches()
    later(here)  # and finds out
    later(here)
    slow.end_batches()
    later(here)
    assert digested(here) == 3
    assert slow.counters.batches == 2
    assert spent(here) == [(True, 3)]


def named(lines: list[dict[str, Any]], number: str) -> str:
    return f"{lines[0]['custom_id'].partition('-')[0]}-{number}"


def unlike(lines: list[dict[str, Any]], **message: Any) -> dict[str, Any]:
    result = lines[0]["result"]
    return {**lines[0], "result": {**result, "message": {**result["message"], **message}}}


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


STRANGE: dict[str, Callable[[list[dict[str, Any]]], list[Any]]] = {
    "a custom id with a digit that is no number": lambda lines: [{**lines[0], "custom_id": named(lines, "²")}, *lines],
    "a custom id beyond the largest id": lambda lines: [{**lines[0], "custom_id": named(lines, "9" * 30)}, *lines],
    "a custom id that is a number": lambda lines: [{**lines[0], "custom_id": 7}, *lines],
    "no result": lambda lines: [{**lines[0], "result": None}, *lines[1:]],
    "a message without usage": lambda lines: [unlike(lines, usage=None), *lines[1:]],
    "a message that is a text": lambda lines: [
        {**lines[0], "result": {"type": "succeeded", "message": "x"}},
        *lines[1:],
    ],
    "a line that is no object": lambda lines: [None, [1], *lines],
    "each line three times": lambda lines: lines * 3,
    "a stop reason that the SDK does not know": lambda lines: [unlike(lines, stop_reason="brand_new"), *lines[1:]],
    "a block that is nothing": lambda lines: [
        unlike(lines, content=[None, *lines[0]["result"]["message"]["content"]]),
        *lines[1:],
    ],
    "a character that Postgres cannot store": lambda lines: [
        unlike(lines, content=[{"type": "text", "text": '{"short": "a\x00", "long": "\ud800"}'}]),
        *lines[1:],
    ],
    "a number that is none": lambda lines: [
        unlike(lines, usage={"input_tokens": 5, "output_tokens": 5, "share": float("nan")}),
        *lines[1:],
    ],
    "a message nested too deeply to be stored": lambda lines: [unlike(lines, more=nested(400)), *lines[1:]],
    "tokens that no column holds": lambda lines: [
        unlike(lines, usage={"input_tokens": -5, "output_tokens": 10**30}),
        *lines[1:],
    ],
}


@pytest.mark.parametrize("strange", STRANGE)
def test_a_strange_result_costs_no_other_item_its_answer(here: Sandbox, slow: StandIn, strange: str) -> None:
    slow.change_results = STRANGE[strange]
    dream(*SESSIONS)
    run()
    slow.end_batches()
    for _ in range(4):
        later(here)
    asks_again = "stop reason" in strange  # its answer counts as invalid
    assert digested(here) == 3 - asks_again
    assert here.sql("SELECT 1 FROM dead_letters") == []
    assert here.sql("SELECT 1 FROM model_calls WHERE cost_usd < 0") == []


def test_a_result_answers_no_request_of_another_namespace(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    dream(*SESSIONS, namespace="other")
    run()
    [(_, mine), (_, theirs)] = here.sql("SELECT namespace_id, array_agg(id) FROM batch_requests GROUP BY 1 ORDER BY 1")

    def claimed(lines: list[dict[str, Any]]) -> list[Any]:
        if lines[0]["custom_id"].endswith(tuple(f"-{number}" for number in theirs)):
            return []
        return [*({**lines[0], "custom_id": named(lines, str(number))} for number in theirs), *lines]

    slow.change_results = claimed
    slow.end_batches("msgbatch_0001")
    here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
    time_passes(here)
    work_as_asked(without=["derive_memory", "digest_session"])
    answered = {number for (number,) in here.sql("SELECT id FROM batch_requests WHERE state = 'answered'")}
    assert answered == set(mine)


def test_an_answer_that_no_job_takes_is_pruned(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    run()
    slow.end_batches()
    here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
    time_passes(here)
    work_as_asked(without=["derive_memory", "digest_session"])
    for days, left in ((29, 3), (2, 0)):
        here.sql("UPDATE batch_requests SET created_at = created_at - make_interval(days => :days)", days=days)
        with default_deployment().database.transaction() as tx:
            pruning.prune(tx)
        assert here.sql("SELECT count(*) FROM batch_requests WHERE state = 'answered'") == [(left,)]


def test_a_live_request_goes_ahead_of_the_batch(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    run()
    Nexus().digest(NAMESPACE, "one")
    run()
    assert (digested(here), calls(slow)) == (1, (1, 0, 1))
    slow.end_batches()
    later(here)
    assert (digested(here), calls(slow)) == (3, (1, 3, 1))
    assert spent(here) == [(False, 1), (True, 3)], "the answer that nobody wanted is paid for, too"

    say("I moved again.", session="two")
    digest_session.delay(namespace=NAMESPACE, session_key="two", reason="dream_digest")
    run()
    Nexus().digest(NAMESPACE, "two")
    run()
    assert (digested(here), calls(slow)) == (3, (1, 3, 2))
    assert here.sql("SELECT 1 FROM batch_requests") == []


def test_an_answer_that_nobody_wanted_is_used_when_it_is_wanted_again(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    run()
    slow.when(lambda call: not call.batch, faults.overloaded())
    live = Nexus().digest(NAMESPACE, "one")
    run()  # went ahead, and got no answer
    assert here.sql("SELECT count(*) FROM batch_requests WHERE wanted") == [(2,)]
    Nexus().drop_job(live.id)
    digest_session.delay(namespace=NAMESPACE, session_key="one", reason="dream_digest")
    run()
    slow.end_batches()
    later(here)
    assert (digested(here), spent(here), slow.counters.batches) == (3, [(True, 3)], 1)


def test_a_session_that_grows_while_its_digest_is_in_a_batch_is_not_asked_about_twice(
    here: Sandbox, slow: StandIn
) -> None:
    dream(*SESSIONS)
    run()
    say("I moved out again.", session="one")
    digest_session.delay(namespace=NAMESPACE, session_key="one", reason="dream_digest")
    slow.end_batches()
    later(here)
    assert here.sql("SELECT digest_end_seq FROM sessions ORDER BY session_key") == [(1,), (1,), (1,)]
    here.sql("UPDATE batch_requests SET created_at = now() - interval '10 minutes'")
    later(here)  # what was said meanwhile, in a request of its own
    later(here)
    assert (digested(here), calls(slow)) == (3, (1, 3, 1))
    assert here.sql("SELECT 1 FROM saved_answers UNION ALL SELECT 1 FROM open_questions") == []


@pytest.mark.parametrize("submitted", [True, False])
def test_a_live_digest_of_a_session_that_has_grown_leaves_no_request_for_a_batch(
    here: Sandbox, slow: StandIn, submitted: bool
) -> None:
    dream(*SESSIONS[: 3 if submitted else 2])
    run()
    say("I moved out again.", session="one")
    Nexus().end_session(NAMESPACE, "one")
    run()
    assert calls(slow) == (int(submitted), 0, 1)
    assert here.sql("SELECT count(*) FROM batch_requests WHERE wanted") == [(2 if submitted else 1,)]
    dream(*SESSIONS[3 if submitted else 2 :])
    run()
    assert calls(slow) == (int(submitted), 0, 1)


def test_a_batch_answers_a_session_whose_messages_name_a_time_zone(here: Sandbox, slow: StandIn) -> None:
    """Before, the rerun showed the times in UTC. This was another request, and its answer was paid too."""
    for key in SESSIONS:
        said = {"content": f"I moved to house {key}.", "author": "ann", "time_zone": "Asia/Tokyo"}
        say(said, session=key)
        digest_session.delay(namespace=NAMESPACE, session_key=key, reason="dream_digest")
    run()
    slow.end_batches()
    later(here)
    assert (digested(here), calls(slow)) == (3, (1, 3, 0))
    assert here.sql("SELECT 1 FROM batch_requests") == []


def test_too_few_go_live_after_ten_minutes(here: Sandbox, slow: StandIn) -> None:
    dream("one", "two")
    run()
    later(here)
    assert calls(slow) == (0, 0, 0)
    here.sql("UPDATE batch_requests SET created_at = now() - interval '10 minutes'")
    later(here)
    later(here)
    assert (digested(here), calls(slow)) == (2, (0, 0, 2))
    assert reasons() == {}


def test_a_batch_keeps_to_the_budget(claude: Callable[..., Sandbox], slow: StandIn) -> None:
    here = claude(NEXUS_BATCH_THRESHOLD="1", NEXUS_BUDGET_USD_PER_DAY="0.003", NEXUS_MAX_TOKENS_DIGEST="8000")
    dream(*SESSIONS)  # each may cost 0.002 USD: one fits under the budget
    run()
    assert [why for _, why in sorted((c.kind, c.wait_reason) for c in waiting() if c.kind == "digest_session")] == [
        "batch",
        "reserved",
        "reserved",
    ]
    assert slow.counters.batch_items == 1
    assert here.sql("SELECT count(*) FROM budget_holds") == [(1,)]
    slow.end_batches()
    later(here)
    for _ in range(4):
        slow.end_batches()
        later(here)
    assert (digested(here), slow.counters.batch_items, calls(slow)[2]) == (3, 3, 0)
    assert here.sql("SELECT count(*) FROM budget_holds") == [(0,)]


# --- a batch that cannot be submitted or read -------------------------------------------------------------------------
NO_ENDPOINT = faults.status(404, "not_found_error", "Not found")


def old(here: Sandbox, minutes: float = 10.5) -> None:
    """Let the requests be so old."""
    here.sql("UPDATE batch_requests SET created_at = created_at - make_interval(secs => :s)", s=minutes * 60)


def nothing_is_left(here: Sandbox) -> bool:
    return here.sql("SELECT 1 FROM batch_requests UNION ALL SELECT 1 FROM message_batches") == []


@pytest.mark.parametrize(
    ("fault", "patience"),
    [
        (faults.status(400, "invalid_request_error", "batches are not enabled"), False),
        (faults.status(403, "permission_error", "no batches for this key"), False),
        (NO_ENDPOINT, False),
        (faults.throttled("3600"), True),
        (faults.payment_required(), True),
        (faults.server_error(), True),
    ],
    ids=["400", "403", "404", "429", "402", "500"],
)
def test_requests_of_a_batch_that_cannot_be_submitted_go_live(
    here: Sandbox, slow: StandIn, fault: faults.Fault, patience: bool
) -> None:
    slow.batch_faults["create"] = fault
    dream(*SESSIONS)
    run()
    if patience:
        assert (digested(here), reasons()) == (0, {"digest_session": "batch", "submit_batch": "batch"})
        [due] = [claim.due_at for claim in waiting() if claim.kind == "submit_batch"]
        assert due is not None
        assert due - default_deployment().claims.now() <= message_batches.PATIENCE
        old(here)
        later(here)
    later(here)
    assert (digested(here), calls(slow)) == (3, (0, 0, 3))
    assert reasons() == {}
    assert default_deployment().claims.paused() == {}
    assert here.sql("SELECT 1 FROM dead_letters") == []
    later(here)
    assert nothing_is_left(here)


def test_a_provider_without_batches_is_remembered(here: Sandbox, slow: StandIn) -> None:
    slow.batch_faults["create"] = NO_ENDPOINT
    dream(*SESSIONS)
    run()
    assert calls(slow) == (0, 0, 3)
    slow.batch_faults.clear()
    dream("four", "five", "six")
    run()
    assert (digested(here), calls(slow)) == (6, (0, 0, 6)), "nothing waited"
    here.sql("UPDATE namespaces SET no_batches_until = now() - interval '1 s'")
    dream("seven", "eight", "nine")
    run()
    assert calls(slow) == (1, 0, 6), "a day later it is tried again"
    slow.end_batches()
    later(here)
    assert digested(here) == 9


def test_a_batch_that_arrived_although_its_submission_failed_is_found_and_not_submitted_again(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, cut = AnthropicBatchProvider.submit, list[str]()

    def cut_off(self: AnthropicBatchProvider, items: Any) -> str:
        cut.append(submit(self, items))
        raise Transient("500")

    monkeypatch.setattr(AnthropicBatchProvider, "submit", cut_off)
    dream(*SESSIONS)
    run()
    later(here)
    slow.end_batches()
    later(here)
    assert (len(cut), digested(here), calls(slow), spent(here)) == (1, 3, (1, 3, 0), [(True, 3)])


def test_what_went_live_is_in_the_ledger_twice_when_the_batch_is_answered_after_all(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = AnthropicBatchProvider.submit

    def cut_off(self: AnthropicBatchProvider, items: Any) -> str:
        submit(self, items)
        raise Transient("500")

    monkeypatch.setattr(AnthropicBatchProvider, "submit", cut_off)
    slow.batch_faults["list"] = faults.server_error()
    dream(*SESSIONS)
    run()
    old(here)
    later(here)
    later(here)
    assert (digested(here), calls(slow)[2]) == (3, 3)
    slow.heal()
    slow.end_batches()
    for _ in range(3):
        later(here)
    assert spent(here) == [(False, 3), (True, 3)]
    assert nothing_is_left(here)
    assert reasons() == {}


@pytest.mark.parametrize("submitted", [False, True])
def test_a_paused_kind_keeps_no_request_from_going_live(here: Sandbox, slow: StandIn, submitted: bool) -> None:
    """The job that submits and collects cannot run. The job that asks sees for itself that it has waited enough."""
    sessions = SESSIONS if submitted else SESSIONS[:2]
    dream(*sessions)
    run()
    default_deployment().claims.pause("submit_batch", "a test")
    old(here, 21)
    later(here)
    assert digested(here) == (0 if submitted else 2)
    old(here, 26 * 60)
    later(here)
    assert (digested(here), calls(slow)) == (len(sessions), (int(submitted), 0, len(sessions)))
    default_deployment().engine.publisher.publish(default_deployment().claims.resume("submit_batch"))
    slow.end_batches()
    later(here)
    later(here)
    assert spent(here) == ([(False, 3), (True, 3)] if submitted else [(False, 2)])
    assert nothing_is_left(here)


PAGES = {
    "a request that is refused": faults.status(400, "invalid_request_error", "try another day"),
    "a gateway that finds nothing": faults.status(404, "", "", body="<html>no backend</html>"),
    "a page of a gateway": faults.Fault(name="page", status=203, body="<html>Sign in</html>"),
}


@pytest.mark.parametrize("page", PAGES)
def test_an_answer_while_polling_does_not_mean_that_the_batch_is_unknown(
    here: Sandbox, slow: StandIn, page: str
) -> None:
    dream(*SESSIONS)
    run()
    slow.end_batches()
    for verb in ("get", "results"):
        slow.batch_faults = {verb: PAGES[page]}
        later(here)
        assert (digested(here), reasons()) == (0, {"digest_session": "batch", "submit_batch": "batch"})
    assert here.sql("SELECT 1 FROM dead_letters") == []
    slow.heal()
    later(here)
    assert (digested(here), calls(slow), spent(here)) == (3, (1, 3, 0), [(True, 3)])


def test_a_workers_clock_does_not_say_how_long_a_batch_took(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    dream(*SESSIONS)
    run()
    slow.end_batches()
    clock_is(monkeypatch, -2 * DAY)
    later(here)
    assert here.sql("SELECT count(*), min(seconds) >= 0 FROM model_calls WHERE batched") == [(3, True)]


def test_results_that_are_cut_off_are_fetched_again(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    run()
    slow.end_batches()
    slow.batch_faults["results"] = faults.cut()
    later(here)
    assert digested(here) < 3
    [claim] = [claim for claim in waiting() if claim.kind == "submit_batch"]
    assert (claim.wait_reason, claim.errors) == ("batch", 0)
    slow.heal()
    later(here)
    later(here)
    assert (digested(here), calls(slow), spent(here)) == (3, (1, 3, 0), [(True, 3)])


CAME: dict[str, Callable[[list[dict[str, Any]]], list[Any]]] = {
    "nothing": lambda _: [],
    "one of them": lambda lines: lines[:1],
    "an error of the gateway": lambda _: [{"type": "error", "error": {"type": "overloaded_error", "message": "no"}}],
    "names that are none": lambda lines: [{**lines[0], "custom_id": None}, {**lines[0], "custom_id": 7}],
    "a line that the SDK cannot read": lambda lines: [{**lines[0], "_fields_set": "x"}, *lines],
    "a line nested too deeply": lambda lines: [{**lines[0], "more": nested(930)}, *lines],
}


@pytest.mark.parametrize("came", CAME)
def test_results_that_a_gateway_spoils_without_an_error_are_not_paid_for_twice(
    here: Sandbox, slow: StandIn, came: str
) -> None:
    dream(*SESSIONS)
    run()
    slow.end_batches()
    slow.change_results = CAME[came]
    later(here)
    later(here)
    assert calls(slow)[::2] == (1, 0), "nothing is asked again"
    assert here.sql("SELECT 1 FROM dead_letters") == []
    slow.change_results = lambda lines: lines
    later(here)
    assert (digested(here), calls(slow), spent(here)) == (3, (1, 3, 0), [(True, 3)])
    assert nothing_is_left(here)


LISTS: dict[str, Callable[[dict[str, Any]], Reply]] = {
    "a page": lambda _: Reply(203, "<html>Sign in</html>", kind="text/html"),
    "batches that are none": lambda _: Reply(200, {"data": ["x", None], "has_more": False}),
    "batches without a time": lambda found: Reply(200, {**found, "data": [{"id": "msgbatch_1"}]}),
}


@pytest.mark.parametrize("strange", LISTS)
def test_a_list_of_batches_that_is_none_is_asked_for_again(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch, strange: str
) -> None:
    cut_off_after_the_submission(monkeypatch)
    dream(*SESSIONS)
    run()
    with monkeypatch.context() as patch:
        patch.setattr(slow, "batch_list", lambda: LISTS[strange]({}))
        later(here)
        [claim] = [claim for claim in waiting() if claim.kind == "submit_batch"]
        assert (claim.wait_reason, claim.errors) == ("batch", 0)
    slow.end_batches()
    later(here)
    later(here)
    assert (digested(here), calls(slow), spent(here)) == (3, (1, 3, 0), [(True, 3)])


def test_an_error_on_a_further_page_of_batches_is_waited_out(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off_after_the_submission(monkeypatch)
    dream(*SESSIONS)
    run()
    first = slow.batch_list().body
    assert isinstance(first, dict)
    others = {**first, "data": [{**first["data"][0], "id": "msgbatch_other", "request_counts": COUNTS}]}
    pages = [Reply(200, {**others, "has_more": True}), Reply.of(faults.server_error(529))]
    with monkeypatch.context() as patch:
        patch.setattr(slow, "batch_list", lambda: pages.pop(0))
        later(here)
        [claim] = [claim for claim in waiting() if claim.kind == "submit_batch"]
        assert (pages, claim.wait_reason, claim.errors) == ([], "batch", 0)
    slow.end_batches()
    later(here)
    later(here)
    assert (digested(here), calls(slow), spent(here)) == (3, (1, 3, 0), [(True, 3)])


@pytest.mark.parametrize("further", ["the same", "others"])
def test_a_list_of_batches_without_an_end_is_given_up(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch, further: str
) -> None:
    """A gateway that does not know the parameter `after_id` gives the first page again and again."""
    monkeypatch.setattr(anthropic_batches, "MOST_LISTED", 5)
    cut_off_after_the_submission(monkeypatch)
    dream(*SESSIONS)
    run()
    first = slow.batch_list().body
    assert isinstance(first, dict)
    pages = 0

    def page() -> Reply:
        nonlocal pages
        pages += 1
        if pages > 20:
            return Reply.of(faults.status(400, "invalid_request_error", "no end"))
        number = pages if further == "others" else 1
        data = [{**first["data"][0], "id": f"msgbatch_other_{number}", "request_counts": COUNTS}]
        return Reply(200, {"data": data, "has_more": True, "first_id": "x", "last_id": "x"})

    with monkeypatch.context() as patch:
        patch.setattr(slow, "batch_list", page)
        later(here)
    assert pages <= 6
    [claim] = [claim for claim in waiting() if claim.kind == "submit_batch"]
    assert (claim.wait_reason, claim.errors) == ("batch", 0)
    slow.end_batches()
    later(here)
    later(here)
    assert (digested(here), calls(slow), spent(here)) == (3, (1, 3, 0), [(True, 3)])


COUNTS = {"processing": 0, "succeeded": 9, "errored": 0, "canceled": 0, "expired": 0}


def cut_off_after_the_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the answer to the submission be lost."""
    submit = AnthropicBatchProvider.submit

    def cut_off(self: AnthropicBatchProvider, items: Any) -> str:
        submit(self, items)
        raise Transient("500")

    monkeypatch.setattr(AnthropicBatchProvider, "submit", cut_off)


def test_a_batch_whose_page_comes_instead_of_its_results_is_waited_for(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    run()
    slow.end_batches()
    slow.batch_faults["get"] = PAGES["a page of a gateway"]
    [(api_id,)] = here.sql("SELECT api_id FROM message_batches")
    provider = default_deployment().resources.model.batches_for("digest")
    assert provider is not None
    with pytest.raises(Transient):
        list(provider.results(api_id))


def test_cut_results_are_a_transient_error(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    run()
    slow.end_batches()
    slow.batch_faults["results"] = faults.cut()
    [(api_id,)] = here.sql("SELECT api_id FROM message_batches")
    provider = default_deployment().resources.model.batches_for("digest")
    assert provider is not None
    with pytest.raises(Transient):
        list(provider.results(api_id))


def test_a_batch_that_cannot_be_read_for_a_day_goes_live_and_is_paid_for(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    run()
    slow.end_batches()
    slow.batch_faults["get"] = faults.server_error()
    here.sql("UPDATE message_batches SET created_at = now() - interval '26 hours'")
    later(here)
    later(here)
    assert (digested(here), calls(slow)) == (3, (1, 3, 3))
    slow.heal()
    later(here)
    assert spent(here) == [(False, 3), (True, 3)]
    assert nothing_is_left(here)


@pytest.mark.parametrize("answered", [True, False])
def test_a_deployment_that_changes_to_a_model_without_batches_enters_what_they_cost(
    here: Sandbox, slow: StandIn, answered: bool
) -> None:
    dream(*SESSIONS)
    run()
    if answered:
        slow.end_batches()
    [(namespace_id,)] = here.sql("SELECT id FROM namespaces")
    offline = replace(default_deployment().resources, model=OfflineModel())
    for _ in range(2):
        here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
        message_batches.advance(offline, namespace_id, lambda: None)
        slow.end_batches()
    assert (len(slow.cancelled_batches()), spent(here)) == ((0, [(True, 3)]) if answered else (1, []))
    assert nothing_is_left(here)


# --- erasing ----------------------------------------------------------------------------------------------------------
def test_erasing_leaves_no_text_and_keeps_the_bill(here: Sandbox, slow: StandIn) -> None:
    dream(*SESSIONS)
    run()
    [(namespace_id, memory_id)] = here.sql("SELECT namespace_id, id FROM memories WHERE content LIKE '%house one%'")
    with default_deployment().database.transaction() as tx:
        assert batches.erase_texts(tx, namespace_id, [memory_id]) == 1
    assert here.sql("SELECT 1 FROM batch_requests WHERE params::text LIKE '%house one%'") == []
    slow.end_batches()
    here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
    message_batches.advance(default_deployment().resources, namespace_id, lambda: None)
    assert spent(here) == [(True, 3)]
    assert here.sql("SELECT count(*) FROM batch_requests WHERE result::text LIKE '%house one%'") == [(0,)]


@pytest.mark.parametrize("answered", [False, True])
def test_erasing_what_the_digest_before_told_leaves_no_text(here: Sandbox, slow: StandIn, answered: bool) -> None:
    """The request has the text of the digest before, and no message that it rests on."""
    [told] = say("I hid the key under the zanzibarium.", session=SESSIONS[0])
    digest_session.delay(namespace=NAMESPACE, session_key=SESSIONS[0], reason="manual_digest")
    run()
    dream(*SESSIONS)
    run()
    quoting = "SELECT count(*) FROM batch_requests AS r WHERE r::text LIKE '%zanzibarium%'"
    assert here.sql(quoting) == [(1,)]
    if answered:
        slow.end_batches()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(follow_ups, "hurry_all", lambda *_: None)  # no job takes its answer yet
            here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
            time_passes(here)
            work_as_asked(without=["derive_memory", "digest_session"])
    Nexus().forget(NAMESPACE, memory_id=told)
    assert here.sql(quoting) == [(0,)]


def test_what_is_erased_before_it_is_written_down_is_not_sent(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, erased = message_batches.find_answer, list[Any]()

    def late(*arguments: Any) -> Any:
        if not erased:
            [(target,)] = here.sql("SELECT id FROM memories WHERE content LIKE '%house one%'")
            erased.append(Nexus().forget(NAMESPACE, memory_id=target))
        return look(*arguments)

    monkeypatch.setattr(message_batches, "find_answer", late)
    dream("one")
    run()
    assert erased
    assert here.sql("SELECT 1 FROM batch_requests UNION ALL SELECT 1 FROM open_questions") == []
    assert slow.counters.batches == 0


def test_erasing_between_the_submission_and_the_id_of_a_batch_submits_nothing_twice(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked for at the provider has three items, although one of them is erased here."""
    with monkeypatch.context() as patch:
        patch.setattr(batches, "record_api_id", lambda *_, **__: 1 / 0)
        dream(*SESSIONS)
        run()
    [(target,)] = here.sql("SELECT id FROM memories WHERE content LIKE '%house one%'")
    Nexus().forget(NAMESPACE, memory_id=target)
    assert here.sql("SELECT 1 FROM batch_requests WHERE params::text LIKE '%house one%'") == []
    later(here)
    slow.end_batches()
    later(here)
    assert (calls(slow)[:2], spent(here)[-1]) == ((1, 3), (True, 3))
    assert nothing_is_left(here)


@pytest.mark.parametrize("answered", [False, True])
def test_erasing_a_namespace_cancels_its_batch_and_keeps_the_bill(here: Sandbox, slow: StandIn, answered: bool) -> None:
    dream(*SESSIONS)
    run()
    [(api_id,)] = here.sql("SELECT api_id FROM message_batches")
    if answered:
        slow.end_batches()
    Nexus().forget(NAMESPACE, everything=True)
    assert here.sql("SELECT 1 FROM batch_requests WHERE wanted OR params <> '{}' OR sources <> '{}'") == []
    later(here)
    later(here)
    assert slow.cancelled_batches() == ([] if answered else [api_id])
    assert spent(here) == ([(True, 3)] if answered else [])
    assert nothing_is_left(here)
    assert here.sql("SELECT 1 FROM budget_holds") == []
    assert reasons() == {}


def test_erasing_a_namespace_forgets_a_batch_that_was_not_sent(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(batches, "begin_submission", lambda *_: 1 / 0)
        dream(*SESSIONS)
        run()
    assert here.sql("SELECT count(*) FROM message_batches") == [(1,)]
    Nexus().forget(NAMESPACE, everything=True)
    assert nothing_is_left(here)
    later(here)
    assert slow.counters.batches == 0


@pytest.mark.parametrize("everything", [False, True])
def test_an_erasure_before_a_run_looks_for_its_answer_lets_no_answer_stay(
    here: Sandbox, slow: StandIn, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    """A digest has read messages. They and the text of its batch request are erased. Then it looks for its answer."""
    dream(*SESSIONS)
    run()
    assert calls(slow) == (1, 0, 0)
    real = batches.lock_request

    def after_an_erasure(*arguments: Any) -> Any:
        monkeypatch.setattr(batches, "lock_request", real)
        Nexus().forget(NAMESPACE, **({"everything": True} if everything else {"session_key": "one"}))
        return real(*arguments)

    monkeypatch.setattr(batches, "lock_request", after_an_erasure)
    follow_ups.hurry(default_deployment(), "batch", [digests.request(NAMESPACE, "one", "dream_digest")])
    run()
    assert batches.lock_request is real
    slow.end_batches()
    later(here)
    later(here)
    assert here.sql("SELECT id FROM batch_requests WHERE concat(params, result) LIKE '%house one%'") == []
    assert here.sql("SELECT 1 FROM batch_requests UNION ALL SELECT 1 FROM message_batches") == []
    assert spent(here) == [(True, 3)]
