"""While storage is away messages are held back: not for ever, and not against a shutdown."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from celery.worker import state

from nexus_tasks.idempotency.worker import circuit_breaker


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
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Storage that never answers."""
    made = Clock()
    monkeypatch.setattr(circuit_breaker, "time", made)
    monkeypatch.setattr(circuit_breaker, "_looked_at", float("-inf"))
    away = SimpleNamespace(storage=SimpleNamespace(answers=lambda: False))
    monkeypatch.setattr(circuit_breaker, "binding", lambda: away)
    circuit_breaker._away.clear()
    yield made
    circuit_breaker._away.clear()


def test_nothing_waits_while_storage_answers(clock: Clock) -> None:
    assert circuit_breaker.outlasted()
    assert clock.slept == 0


def test_a_message_is_given_up_when_the_outage_lasts(clock: Clock) -> None:
    circuit_breaker.note()
    assert not circuit_breaker.outlasted()
    assert circuit_breaker.HOLD_SECONDS <= clock.now < circuit_breaker.HOLD_SECONDS + 1


def test_a_shutdown_waits_for_no_outage(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    circuit_breaker.note()
    monkeypatch.setattr(state, "should_stop", 0)  # the exit code of a warm shutdown
    assert not circuit_breaker.outlasted()
    assert clock.slept == 0


def test_work_goes_on_once_storage_answers(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    circuit_breaker.note()
    back = SimpleNamespace(storage=SimpleNamespace(answers=lambda: clock.now > 3))
    monkeypatch.setattr(circuit_breaker, "binding", lambda: back)
    assert circuit_breaker.outlasted()
    assert 3 < clock.now < 6
