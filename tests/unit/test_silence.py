"""Which calls wait for a silent cell."""

from __future__ import annotations

import pytest

from nexus_tasks.errors import InvalidInput, StorageMisconfigured, StorageUnavailable
from nexus_tasks.services.cells import silence
from nexus_tasks.services.cells.silence import Silence


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


def failing(clock: Clock, error: Exception, seconds: float) -> str:
    clock.now += seconds
    raise error


def fail(silent: Silence, clock: Clock, error: Exception, seconds: float = 5.0) -> None:
    with pytest.raises(type(error)):
        silent.ask("two", lambda: failing(clock, error, seconds))


def answers(silent: Silence) -> bool:
    return silent.ask("two", lambda: True, instead=lambda: False)


def test_after_a_long_wait_calls_are_refused_until_one_is_answered(clock: Clock) -> None:
    silent = Silence()
    fail(silent, clock, StorageUnavailable("No answer."))
    assert not answers(silent)
    with pytest.raises(StorageUnavailable, match="No answer"):
        silent.ask("two", lambda: True)
    assert silent.ask("one", lambda: True), "another cell"
    clock.now += 1.5
    assert answers(silent)
    assert answers(silent)
    assert not silent.holds("two")


@pytest.mark.parametrize(
    "error", [InvalidInput("wrong"), StorageMisconfigured("a password"), StorageUnavailable("soon")]
)
def test_a_quick_error_and_a_refusal_are_no_silence(clock: Clock, error: Exception) -> None:
    silent = Silence()
    fail(silent, clock, error, 5.0 if isinstance(error, StorageMisconfigured) else 0.1)
    assert answers(silent)


def test_a_statement_that_took_too_long_is_no_silence(clock: Clock) -> None:
    silent, error = Silence(), StorageUnavailable("A statement took too long.")
    error.outage = False
    fail(silent, clock, error, 30.0)
    assert answers(silent)


def test_a_call_that_is_long_on_its_way_leaves_the_next_try_to_others(clock: Clock) -> None:
    silent = Silence()
    fail(silent, clock, StorageUnavailable("No answer."))
    clock.now += 1.5

    def question() -> str:
        assert not answers(silent)
        clock.now += 11
        assert answers(silent)
        return "an answer after a minute"

    assert silent.ask("two", question)


def test_an_error_before_the_cell_was_asked_leaves_the_next_try_to_others(clock: Clock) -> None:
    silent = Silence()
    fail(silent, clock, StorageUnavailable("No answer."))
    clock.now += 1.5
    fail(silent, clock, InvalidInput("wrong"), 0.0)
    assert silent.holds("two")
    assert answers(silent)
