"""Which calls wait for a silent cell."""

from __future__ import annotations

from contextlib import suppress

import pytest

from nexus_tasks import silence
from nexus_tasks.errors import InvalidInput, StorageMisconfigured, StorageUnavailable, Transient
from nexus_tasks.silence import Silence


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(silence, "time", made)
    return made


def transaction(silent: Silence, clock: Clock, error: Exception | None = None, seconds: float = 0.0) -> bool:
    """A transaction of the cell ``two`` that takes so long."""
    begun = clock.now
    clock.now += seconds
    silent.note("two", begun, error)
    if error:
        raise error
    return True


def fail(silent: Silence, clock: Clock, error: Exception, seconds: float = 5.0) -> None:
    with pytest.raises(type(error)):
        silent.ask("two", lambda: transaction(silent, clock, error, seconds))


def answers(silent: Silence, clock: Clock) -> bool:
    return silent.ask("two", lambda: transaction(silent, clock), instead=lambda: False)


def test_after_a_long_wait_calls_are_refused_until_one_is_answered(clock: Clock) -> None:
    silent = Silence()
    fail(silent, clock, StorageUnavailable("No answer."))
    assert not answers(silent, clock)
    with pytest.raises(StorageUnavailable, match="No answer"):
        silent.ask("two", lambda: True)
    assert silent.ask("one", lambda: True), "another cell"
    clock.now += 1.5
    assert answers(silent, clock)
    assert answers(silent, clock)
    assert not silent.holds("two")


@pytest.mark.parametrize(
    "error", [InvalidInput("wrong"), StorageMisconfigured("a password"), StorageUnavailable("soon")]
)
def test_a_quick_error_and_a_refusal_are_no_silence(clock: Clock, error: Exception) -> None:
    silent = Silence()
    fail(silent, clock, error, 5.0 if isinstance(error, StorageMisconfigured) else 0.1)
    assert answers(silent, clock)


def test_a_statement_that_took_too_long_is_no_silence(clock: Clock) -> None:
    silent, error = Silence(), StorageUnavailable("A statement took too long.")
    error.outage = False
    fail(silent, clock, error, 30.0)
    assert answers(silent, clock)


def test_a_call_that_is_long_on_its_way_leaves_the_next_try_to_others(clock: Clock) -> None:
    silent = Silence()
    fail(silent, clock, StorageUnavailable("No answer."))
    clock.now += 1.5

    def question() -> str:
        assert not answers(silent, clock)
        clock.now += 11  # its first transaction waits
        assert answers(silent, clock)
        return "an answer after a minute"

    assert silent.ask("two", question)


def test_the_first_answer_ends_the_silence_and_not_the_end_of_a_long_call(clock: Clock) -> None:
    silent = Silence()
    fail(silent, clock, StorageUnavailable("No answer."))
    clock.now += 1.5

    def question() -> str:
        transaction(silent, clock)
        assert answers(silent, clock), "the model is still at work"
        return "an answer after a minute"

    assert silent.ask("two", question)


@pytest.mark.parametrize("error", [None, Transient("Another transaction was in the way.")])
def test_a_long_call_of_a_cell_that_answers_is_no_silence(clock: Clock, error: Exception | None) -> None:
    """A write that waits for another one of its namespace is buffered."""
    silent = Silence()

    def write() -> str:
        with suppress(Transient):
            transaction(silent, clock, error, 16.0)
        return "buffered"

    assert silent.ask("two", write) == "buffered"
    assert not silent.holds("two")


def test_a_connection_that_is_silent_alone_is_no_silent_cell(clock: Clock) -> None:
    silent, begun = Silence(), clock.now
    clock.now += 1
    assert answers(silent, clock)
    clock.now += 4
    silent.note("two", begun, StorageUnavailable("No answer."))
    assert answers(silent, clock)
    assert not silent.holds("two")


def wrong() -> None:
    raise InvalidInput("wrong")


def test_an_error_before_the_cell_was_asked_leaves_the_next_try_to_others(clock: Clock) -> None:
    silent = Silence()
    fail(silent, clock, StorageUnavailable("No answer."))
    clock.now += 1.5
    with pytest.raises(InvalidInput):
        silent.ask("two", wrong)
    assert silent.holds("two")
    assert answers(silent, clock)


def test_a_server_that_was_not_asked_for_long_counts_as_back(clock: Clock) -> None:
    """Before, one call waited, and the others of the same moment were refused, an hour after the only failure."""
    silent = Silence()
    fail(silent, clock, StorageUnavailable("No answer."))
    assert silent.holds("two")
    clock.now += 3_600.0
    begun = clock.now
    for _ in range(2):  # as two calls at a time: neither has noted anything
        assert silent.ask("two", lambda: "asked") == "asked"
    assert clock.now == begun
    assert not silent.holds("two")
