"""While storage is away messages are held back: not for ever, and not against a shutdown."""

from __future__ import annotations

import pytest
from celery.worker import state

from nexus_tasks.idempotency.worker import circuit_breaker
from nexus_tasks.idempotency.worker.circuit_breaker import CircuitBreaker


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(circuit_breaker, "time", made)
    return made


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:  # noqa: ARG001
    """Of a storage that never answers."""
    return CircuitBreaker(lambda: False)


def test_nothing_waits_while_storage_answers(clock: Clock, breaker: CircuitBreaker) -> None:
    assert breaker.wait_until_closed()
    assert clock.slept == 0


def test_a_message_is_given_up_when_the_outage_lasts(clock: Clock, breaker: CircuitBreaker) -> None:
    breaker.trip()
    assert not breaker.wait_until_closed()
    assert circuit_breaker.HOLD_SECONDS <= clock.now < circuit_breaker.HOLD_SECONDS + 1


def test_a_shutdown_waits_for_no_outage(clock: Clock, breaker: CircuitBreaker, monkeypatch: pytest.MonkeyPatch) -> None:
    breaker.trip()
    monkeypatch.setattr(state, "should_stop", 0)  # the exit code of a warm shutdown
    assert not breaker.wait_until_closed()
    assert clock.slept == 0


def test_work_goes_on_once_storage_answers(clock: Clock) -> None:
    breaker = CircuitBreaker(lambda: clock.now > 3)
    breaker.trip()
    assert breaker.wait_until_closed()
    assert 3 < clock.now < 6


def test_a_storage_that_comes_and_goes_is_asked_less_and_less_often(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is all but full: the question passes, the next job fails."""
    breaker = CircuitBreaker(lambda: True)
    while clock.now < 600:
        breaker.trip("Postgres: could not extend file.")
        while not breaker.closed():
            clock.sleep(0.5)
    assert len(caplog.records) < 2 * (5 + 600 / circuit_breaker.ASK_AT_LEAST_EVERY)
    assert "could not extend file" in caplog.text
    clock.now += circuit_breaker.STEADY
    breaker.trip()
    clock.sleep(circuit_breaker.ASK_EVERY)
    assert breaker.closed(), "an outage after a quiet minute is one of its own"
