"""A message for which no answer can be had ends alone: its batch is halved, and the innocent get their facts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from nexus_tasks import Nexus, derive_memory
from nexus_tasks.cognition import derive
from nexus_tasks.errors import JobFailed
from nexus_tasks.tasks import derive_memory as derive_jobs
from tests.integration.inline import NAMESPACE, facts, say, time_passes, waiting, work
from tests.sandbox import Sandbox
from tests.standin import Fault, StandIn, faults

Claude = Callable[..., Sandbox]


def poisoned(at: int) -> list[str]:
    """Twelve messages of which one holds what the model stumbles over."""
    return [f"Fact number {i} of mine." + (" POISON" if i == at else "") for i in range(12)]


def dead(here: Sandbox) -> list[tuple[Any, ...]]:
    """Type of the error and text of the message of every open dead letter."""
    return here.sql(
        "SELECT d.error_type, m.content FROM dead_letters d JOIN memories m ON m.id = (d.args->>'memory_id')::bigint"
        " WHERE d.resolution IS NULL ORDER BY m.id"
    )


@pytest.mark.parametrize(
    ("fault", "type", "at"),
    [
        pytest.param(faults.refused(), "Refused", 0, id="refused, the first"),
        pytest.param(faults.refused(), "Refused", 4, id="refused"),
        pytest.param(faults.refused(), "Refused", 11, id="refused, the last"),
        pytest.param(faults.too_large(), "TooLarge", 4, id="413"),
        pytest.param(faults.status(400, "invalid_request_error", "Blocked by policy."), "Permanent", 4, id="400"),
    ],
)
def test_one_message_that_no_answer_can_be_had_for_dies_alone(
    claude: Claude, standin: StandIn, fault: Fault, type: str, at: int
) -> None:
    here = claude()
    said = poisoned(at)
    standin.when("POISON", fault)
    say(*said)
    work("derive_memory")
    assert dead(here) == [(type, said[at])]
    assert waiting() == []
    assert [fact.content for fact in facts()] == [f"ann said: {text}" for i, text in enumerate(said) if i != at]
    assert standin.counters.calls <= 1 + 2 * math.ceil(math.log2(12))
    runs = here.sql("SELECT status, count(*) FROM job_runs GROUP BY 1")
    assert runs == [("completed", 11)]

    standin.heal()
    [(job_id, memory_id)] = here.sql("SELECT job_id, (args->>'memory_id')::bigint FROM dead_letters")
    here.flush()  # and with them the claim's marker
    other = derive_memory.delay(namespace=NAMESPACE, memory_id=memory_id, observer="assistant")
    work("derive_memory")
    with pytest.raises(JobFailed, match="An earlier job for the same work gave up"):
        other.wait(60)
    Nexus().retry_job(job_id)
    work("derive_memory")
    assert dead(here) == []
    assert len(facts()) == 12


def test_one_message_with_an_invalid_answer_is_asked_again_alone_and_dies_alone(
    claude: Claude, standin: StandIn
) -> None:
    here = claude()
    said = poisoned(4)
    standin.when("POISON", faults.invalid_json())
    say(*said)
    work("derive_memory")
    assert len(facts()) == 11  # at once, whatever becomes of the twelfth
    assert standin.counters.calls <= 1 + 2 * math.ceil(math.log2(12))
    for errors in range(1, 5):
        [claim] = waiting()
        assert (claim.wait_reason, claim.errors) == ("retry", errors)
        assert here.sql("SELECT content FROM memories WHERE id = :i", i=claim.args["memory_id"]) == [(said[4],)]
        before = standin.counters.calls
        time_passes(here)
        work("derive_memory")
        assert standin.counters.calls <= before + 2  # with what was said before it, and without
    assert dead(here) == [("InvalidAnswer", said[4])]
    assert len(facts()) == 11
    assert here.sql("SELECT count(*), sum(times_reinforced) FROM memories WHERE level = 'explicit'") == [(11, 0)]

    standin.heal()
    [(job_id,)] = here.sql("SELECT job_id FROM dead_letters")
    Nexus().retry_job(job_id)
    work("derive_memory")
    assert len(facts()) == 12


def test_poison_that_healed_while_it_waited_becomes_a_fact(claude: Claude, standin: StandIn) -> None:
    here = claude()
    standin.when("POISON", faults.schema_violation())
    say(*poisoned(4))
    work("derive_memory")
    standin.heal()
    time_passes(here)
    work("derive_memory")
    assert (waiting(), dead(here)) == ([], [])
    assert len(facts()) == 12


def test_a_batch_of_nothing_but_poison_is_not_asked_about_over_and_over(claude: Claude, standin: StandIn) -> None:
    here = claude()
    standin.always(faults.refused())
    say(*poisoned(4))
    work("derive_memory")
    assert len(dead(here)) == 12
    assert standin.counters.calls <= 2 * 12


def letters_or_facts(many: int, here: Sandbox) -> None:
    """Let the jobs go on until each of ``many`` messages has a fact or a dead letter."""
    for _ in range(40):
        work("derive_memory")
        if len(facts()) + len(dead(here)) == many:
            return
        time_passes(here)
    raise AssertionError("no end")


def test_a_model_that_answers_nothing_costs_a_bounded_number_of_calls(claude: Claude, standin: StandIn) -> None:
    """Each of the five attempts halves the batch far enough to see that no message is the cause."""
    here = claude(NEXUS_DERIVE_BATCH_TOKENS="6000")
    standin.always(faults.invalid_json())
    say(*(f"Fact number {i} of mine." for i in range(100)))
    letters_or_facts(100, here)
    assert {error for error, _ in dead(here)} == {"InvalidAnswer"}
    assert standin.counters.calls <= 5 * derive_jobs.MOST_FAILURES


def test_a_model_that_answers_again_derives_what_it_had_failed_on(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_DERIVE_BATCH_TOKENS="6000")
    standin.always(faults.invalid_json())
    said = [f"Fact number {i} of mine." + (" POISON" if i in (3, 4, 5, 6, 77) else "") for i in range(100)]
    say(*said)
    for _ in range(3):
        work("derive_memory")
        time_passes(here)
    standin.heal()
    standin.when("POISON", faults.invalid_json())
    letters_or_facts(100, here)
    assert len(facts()) == 95
    assert sorted(content for _, content in dead(here)) == sorted(text for text in said if "POISON" in text)


@pytest.mark.long
def test_a_429_now_and_then_does_not_make_a_batch_begin_anew(claude: Claude, standin: StandIn) -> None:
    """What the failed calls have shown is stored: a run that is cut off loses nothing of it."""
    here = claude(NEXUS_DERIVE_BATCH_TOKENS="6000")
    standin.when("POISON", faults.invalid_json())
    standin.when(lambda _: standin.counters.calls % 3 == 0, faults.throttled("1"))
    said = [f"Fact number {i} of mine." + (" POISON" if i in (13, 50) else "") for i in range(64)]
    say(*said)
    letters_or_facts(64, here)
    assert len(facts()) == 62
    asked = sum(call.outcome != "429" for call in standin.counters.requests)
    assert asked <= 2 * (1 + 2 * 2 * math.ceil(math.log2(64))), "about once for each part, and five times each poison"

    standin.always(faults.invalid_json())
    standin.when(lambda _: standin.counters.calls % 3 == 0, faults.throttled("1"))
    before = standin.counters.calls
    say(*(f"Another fact, number {i}." for i in range(64)), session="other")
    letters_or_facts(128, here)
    # The parts of a batch that was cut off go on alone, so this costs more than without the 429s. But it has an end.
    assert standin.counters.calls - before <= 1.5 * 5 * (2 * 64 - 1)


def test_each_poison_of_a_batch_meets_its_own_fate(claude: Claude, standin: StandIn) -> None:
    """A refusal is final and an invalid answer is not: neither drags the other along, whichever comes first."""
    here = claude()
    standin.when("GARBLED", faults.invalid_json())
    standin.when("DECLINED", faults.refused())
    for chat, first, second in (("one", "GARBLED", "DECLINED"), ("two", "DECLINED", "GARBLED")):
        said = ("a", f"b {first}", "c", f"d {second}", "e")
        say(*(f"{text} in chat {chat}" for text in said), session=chat)
    for _ in range(2):
        work("derive_memory")
        time_passes(here)
    work("derive_memory")
    assert len(facts()) == 6
    assert [error for error, _ in dead(here)] == ["Refused", "Refused"]
    assert all("DECLINED" in content for _, content in dead(here))
    assert [claim.wait_detail for claim in waiting()] == ["InvalidAnswer"] * 2

    standin.heal()
    time_passes(here)
    work("derive_memory")
    assert len(facts()) == 8


@pytest.mark.parametrize("fault", [faults.refused(), faults.invalid_json()], ids=["refused", "invalid"])
def test_poison_does_not_spoil_what_is_said_after_it(claude: Claude, standin: StandIn, fault: Fault) -> None:
    """Earlier messages are shown as context: they must not make the model stumble over the innocent ones."""
    here = claude()
    standin.when("POISON", fault)
    say("This is POISON.")
    work("derive_memory")
    for i in range(4):
        say(f"An innocent remark, number {i}.")
        work("derive_memory")
    assert [fact.content for fact in facts()] == [f"ann said: An innocent remark, number {i}." for i in range(4)]
    assert [content for _, content in dead(here)] in ([], ["This is POISON."])
    assert {claim.args["memory_id"] for claim in waiting()} <= {1}
    if fault.name == "refused":
        assert standin.counters.calls == 5  # what has given up is not shown as context any more


def test_an_unknown_error_of_one_message_takes_no_other_along(
    claude: Claude, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = claude()
    drafts = derive._drafts

    def broken(observed: Any, material: Any, *rest: Any) -> Any:
        if any("POISON" in line.content for line in material.lines if not line.context_only):
            raise ZeroDivisionError("a bug")
        return drafts(observed, material, *rest)

    monkeypatch.setattr(derive, "_drafts", broken)
    said = poisoned(4)
    say(*said)
    for _ in range(5):
        work("derive_memory")
        time_passes(here)
    assert dead(here) == [("ZeroDivisionError", said[4])]
    assert len(facts()) == 11
    assert waiting() == []
    assert standin.counters.calls <= 1 + 12  # the answer to the batch is kept; then each is asked about once
