"""Readers, both jobs and a producer against each other on one session: no deadlock, and no read fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from sqlalchemy import text

from nexus_tasks import Nexus
from nexus_tasks.cognition.observing import condense, observe
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import JobError
from nexus_tasks.services import observation
from tests.integration.inline import NAMESPACE, job_context
from tests.sandbox import Sandbox

HUNDREDTH = {
    "NEXUS_OBSERVATION_MESSAGE_TOKENS": "300",
    "NEXUS_OBSERVATION_BUFFER_TOKENS": "60",
    "NEXUS_OBSERVATION_BLOCK_AFTER_TOKENS": "360",
    "NEXUS_OBSERVATION_MAX_BATCH_TOKENS": "100",
    "NEXUS_PREVIOUS_OBSERVER_TOKENS": "20",
    "NEXUS_REFLECTION_OBSERVATION_TOKENS": "400",
    "NEXUS_REFLECTION_BLOCK_AFTER_TOKENS": "480",
}


@dataclass
class Contention:
    """What threads do on one session for some seconds.

    ``took`` are the times of reads in seconds, ``failed`` their errors.
    """

    seconds: float
    pause: float = 0.0  # seconds after each turn
    took: list[float] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    def run(self, *roles: Callable[[int], None]) -> None:
        """Run a thread for each role: by default a producer, both jobs and three readers."""
        until = time.monotonic() + self.seconds
        roles = roles or (self.produce, self.observe, self.reflect, self.read, self.read, self.read)
        threads = [threading.Thread(target=self._repeat, args=(role, until)) for role in roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, role: Callable[[int], None], until: float) -> None:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            role(turn)
            time.sleep(self.pause)  # an agent is not always reading

    def produce(self, turn: int) -> None:
        said = [{"content": f"My plan number {turn}-{n} is to visit Lisbon {n} times."} for n in range(4)]
        with suppress(JobError):  # in a deadlock Postgres may choose the producer
            Nexus().ingest(NAMESPACE, "chat", said, observe=True, observers=[])

    def observe(self, _turn: int) -> None:
        with suppress(JobError):
            observe.observe(default_deployment().resources, job_context(), "chat", urgent=False)

    def reflect(self, _turn: int) -> None:
        with suppress(JobError):
            condense.condense(default_deployment().resources, job_context(), "chat")

    def read(self, _turn: int) -> None:
        began = time.monotonic()
        try:
            Nexus().context(NAMESPACE, session_key="chat", observe=True)
        except Exception as error:
            self.failed.append(error)
        self.took.append(time.monotonic() - began)


def deadlocks(here: Sandbox) -> int:
    """The deadlocks that Postgres has ended in the test's own database."""
    [(found,)] = here.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = :name", name=here.database_name)
    return int(found)


def contend(deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(observation, "LONGEST_WAIT", 0.0)
    here = deploy(**HUNDREDTH)
    Nexus().ingest(NAMESPACE, "chat", [{"content": "Hello there."}], observe=True, observers=[])
    before = deadlocks(here)
    contention = Contention(seconds)
    deadline = time.monotonic() + 10 * seconds  # a busy machine takes longer to write and to condense the notes
    while True:
        contention.run()
        here.sql("SELECT pg_stat_clear_snapshot()")
        [(generations, rewritten)] = here.sql("SELECT generation, rewritten FROM observation_logs")
        if rewritten or time.monotonic() > deadline:
            break
    assert contention.failed == []
    assert deadlocks(here) == before
    assert rewritten > 0, (generations, len(contention.took))  # else nothing met


def test_readers_and_jobs_do_not_wait_in_a_circle(
    deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    contend(deploy, monkeypatch, 4.0)


@pytest.mark.long
def test_readers_and_jobs_do_not_wait_in_a_circle_for_minutes(
    deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    contend(deploy, monkeypatch, 130.0)


def test_a_read_does_not_wait_for_a_lock(deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody holds the session, or the log: a read stores nothing, and is short nevertheless."""
    monkeypatch.setattr(observation, "LONGEST_WAIT", 0.0)
    here = deploy(**HUNDREDTH)
    nexus, contention = Nexus(), Contention(0.0)
    contention.produce(0)
    for turn in range(1, 3):
        contention.produce(turn)
        contention.observe(turn)
    for turn in range(3, 9):
        contention.produce(turn)
    locks = (
        "SELECT 1 FROM sessions FOR UPDATE",
        "SELECT 1 FROM observation_logs FOR UPDATE",
    )
    for lock in locks:
        with here.deployment.database.transaction() as tx:
            tx.execute(text(lock))
            began = time.monotonic()
            block = nexus.context(NAMESPACE, session_key="chat", observe=True)
            assert time.monotonic() - began < 2.0  # a lock is waited for up to 16 s
            assert "<observation-log>" in block.text
            assert here.sql("SELECT generation FROM observation_logs") == [(0,)]
    assert nexus.context(NAMESPACE, session_key="chat", observe=True).text == block.text
    assert here.sql("SELECT generation FROM observation_logs") == [(1,)]
