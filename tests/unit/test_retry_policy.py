"""What an error means for a claim, by its type and the claim's own history."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_tasks.errors import (
    AnswerTimeout,
    ConfigurationError,
    InvalidAnswer,
    InvalidInput,
    JobError,
    Misconfigured,
    OverBudget,
    Permanent,
    QueueUnavailable,
    Refused,
    SchemaOutdated,
    StorageUnavailable,
    Throttled,
    TooLarge,
    Transient,
)
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.worker.retry_policy import PROBE_EVERY, Decision, backoff, decide, usable
from nexus_tasks.idempotency.worker.run import Wait

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC).timestamp()
DAY, HOUR = 86_400.0, 3_600.0


def claim(**fields: Any) -> Claim:
    fixed = {
        "id": "j",
        "kind": "thing",
        "namespace": "n",
        "queue": "q",
        "scope": "{}",
        "args": "{}",
        "state": "running",
    }
    return Claim.parse("key", fixed | {name: str(value) for name, value in fields.items()})


def decided(error: BaseException, **fields: Any) -> Decision:
    return decide(error, claim(**fields), now=NOW, max_attempts=5, retry_for=DAY)


def failing_for(seconds: float) -> dict[str, int]:
    return {"failing_since": int((NOW - seconds) * 1000), "retries": 40}


def test_a_wait_is_what_the_job_says_and_counts_nothing() -> None:
    assert decided(Wait("ripeness", 7.5, "soon")) == Decision(reason="ripeness", seconds=7.5, detail="soon")
    assert decided(Wait("batch", 60.0), errors=4, **failing_for(2 * DAY)) == Decision(reason="batch", seconds=60.0)


@pytest.mark.parametrize("error", [Permanent(), Refused(), TooLarge()])
def test_permanent_errors_are_dead_at_once(error: Exception) -> None:
    assert decided(error) == Decision(dead=True)


@pytest.mark.parametrize("error", [Misconfigured(), ConfigurationError(), SchemaOutdated()])
def test_what_an_operator_must_mend_pauses_the_kind_and_counts_nothing(error: Exception) -> None:
    expected = Decision(reason="pause", seconds=PROBE_EVERY, detail=type(error).__name__, pause=True)
    assert decided(error) == decided(error, errors=4, crashes=4, **failing_for(2 * DAY)) == expected


def test_a_spent_budget_waits_for_the_next_utc_day_and_looks_again_every_hour() -> None:
    assert decided(OverBudget(), errors=4) == Decision(reason="budget", seconds=HOUR, detail="OverBudget")
    assert 0 < OverBudget().wait_seconds(datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC).timestamp()) < 3
    assert OverBudget().wait_seconds(datetime(2026, 11, 21, 23, 30, tzinfo=UTC).timestamp()) == HOUR / 2 + 2
    assert OverBudget().wait_seconds(datetime(2026, 11, 21, tzinfo=UTC).timestamp()) == HOUR


def test_throttling_waits_as_long_as_asked_and_counts_nothing() -> None:
    expected = Decision(reason="throttle", seconds=30.0, detail="Throttled")
    assert decided(Throttled(retry_after=30.0)) == expected
    assert decided(Throttled(retry_after=30.0), errors=4, **failing_for(2 * DAY)) == expected


@pytest.mark.parametrize("error", [Transient(), QueueUnavailable(), StorageUnavailable()])
def test_passing_errors_back_off_for_a_day_and_are_nobodys_error(error: Exception) -> None:
    first = decided(error, errors=4, crashes=4)
    assert (first.reason, first.retry, first.error, first.dead) == ("retry", True, False, False)
    assert not decided(error, **failing_for(DAY - 1)).dead
    assert decided(error, **failing_for(DAY + 1)) == Decision(dead=True)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), InvalidAnswer(), JobError(), InvalidInput(), MemoryError(), SystemExit(), KeyError()]
)
def test_anything_else_counts_until_attempts_are_used_up(error: BaseException) -> None:
    first = decided(error)
    assert (first.reason, first.retry, first.error, first.dead) == ("retry", True, True, False)
    assert first.detail == type(error).__name__
    assert not decided(error, errors=2, crashes=1).dead
    assert decided(error, errors=2, crashes=2) == decided(error, errors=4) == Decision(dead=True)
    assert not decided(error, **failing_for(2 * DAY)).dead  # it is counted, not timed


@given(st.integers(0, 10_000))
def test_backoff_doubles_with_full_jitter_up_to_five_minutes(retries: int) -> None:
    assert 0 <= backoff(retries) <= min(2.0 * 2 ** min(retries, 30), 300.0)


def test_a_call_that_may_be_charged_for_is_tried_less_and_less_often() -> None:
    waits = [[decided(error, retries=20).seconds for _ in range(300)] for error in (AnswerTimeout(), Transient())]
    assert [max(some) > limit - 60 for some, limit in zip(waits, (3_300, 300), strict=True)] == [True, True]
    assert max(waits[0]) <= 3_600
    assert max(waits[1]) <= 300
    assert decided(AnswerTimeout(), retries=1).seconds <= 4  # one slow answer costs no more than another failure


def test_backoff_uses_its_whole_range() -> None:
    tries = [backoff(3) for _ in range(2_000)]
    assert max(tries) > 15
    assert min(tries) < 1


def test_attempts_are_the_runs_so_far() -> None:
    assert claim().attempts == 1
    assert claim(retries=2, crashes=1, errors=2).attempts == 4


def test_a_claim_reads_back_as_it_is_written() -> None:
    found = claim(
        also="x,y", run_force="1", run_reasons="b,a", run_urgency="dream", due_at=1_500, args=json.dumps({"n": 1})
    )
    assert (found.also, found.flags.force, found.flags.reasons) == (("x", "y"), True, ("a", "b"))
    assert (found.flags.urgency, found.due_at, found.args) == ("dream", 1.5, {"n": 1})
    assert (claim().also, claim().flags.reasons, claim().due_at) == ((), (), None)


class Unreadable(Exception):
    """An error of an application whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (Unreadable(), r"raised Unreadable, and its text .* cannot be read \(RuntimeError\)"),
        (Wait("odd", math.nan), "its seconds are not a number .*: nan"),
        (Wait("odd", math.inf), "its seconds are not a number .*: inf"),
        (Wait("odd", 1e12), "its seconds are not a number of at most"),
        (Wait("", 5.0), "its reason is not a line of text"),
        (Wait("a\nb", 5.0), "its reason is not a line of text"),
        (Wait("odd", 5.0, "a\x00b"), r"its detail has characters that are no text: 'a\\x00b'"),
        (Wait("odd", 5.0, "a\ud800b"), "its detail has characters that are no text"),
        (Throttled(retry_after=math.nan), "raised Throttled, and its seconds are not a number .*: nan"),
        (Throttled(retry_after=-math.inf), "its seconds are not a number .*: -inf"),
        (Throttled(retry_after="soon"), "its seconds are not a number .*: 'soon'"),  # type: ignore[arg-type]
    ],
)
def test_an_error_that_cannot_be_recorded_counts_as_a_bug(error: Exception, fault: str) -> None:
    bug = usable(error, now=NOW)
    assert re.search(fault, str(bug))
    assert str(bug).isprintable()
    assert bug.__cause__ is error
    assert decided(bug).error
    assert decided(bug, errors=4).dead


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), Wait("odd", 0, "line\nline"), Throttled(), OverBudget()])
def test_an_error_that_can_be_recorded_stays_as_it_is(error: Exception) -> None:
    assert usable(error, now=NOW) is error
