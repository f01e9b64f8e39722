"""SIGKILL in the middle: the same memory comes out, and soon."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from nexus_tasks import Nexus
from nexus_tasks.integrations.importers import read
from tests.sandbox import Sandbox, eventually, sandbox

LOCOMO = Path(__file__).parents[3] / "shared" / "data" / "locomo" / "dev.json"


def ingest(nexus: Nexus, conversations: int) -> list[str]:
    """Ingest the first LoCoMo conversations, every session ended; returns their namespaces."""
    names: dict[str, None] = {}
    for one in read(LOCOMO, "locomo", namespace="n"):
        names.setdefault(one.namespace)
        if len(names) > conversations:
            break
        nexus.ingest(one.namespace, one.session_key, one.messages, end=True)
    return list(names)[:conversations]


def quiet(nexus: Nexus) -> bool:
    """Nothing is wanted, nothing is queued."""
    found = nexus.status().namespaces
    return all(one.underived == 0 and one.jobs.waiting + one.jobs.pending + one.jobs.running == 0 for one in found)


def contents(here: Sandbox) -> dict[str, list[tuple[object, ...]]]:
    """What was said, and what each perspective holds; ids and times left out."""
    return {
        "raw": here.sql(
            "SELECT n.name, s.session_key, m.seq, m.author, m.content FROM memories m"
            " JOIN namespaces n ON n.id = m.namespace_id JOIN sessions s ON s.id = m.session_id"
            " WHERE m.level = 'raw' ORDER BY 1, 2, 3"
        ),
        "explicit": here.sql(
            "SELECT n.name, p.observer, p.subject, m.content FROM memories m"
            " JOIN namespaces n ON n.id = m.namespace_id JOIN perspectives p ON p.id = m.perspective_id"
            " WHERE m.level = 'explicit' ORDER BY 1, 2, 3, 4"
        ),
    }


def derived(here: Sandbox) -> int:
    """How many derivations are done."""
    return int(here.sql("SELECT count(*) FROM derivations WHERE state = 'done'")[0][0])


def check(here: Sandbox, turns: int, sessions: int) -> None:
    """Every turn derived once, every session digested, nothing dead."""
    assert here.sql("SELECT count(*) FROM memories WHERE level = 'raw'") == [(turns,)]
    assert here.sql("SELECT state, count(*) FROM derivations GROUP BY 1") == [("done", turns)]
    assert here.sql("SELECT count(*) FROM sessions WHERE digest_end_seq = last_seq") == [(sessions,)]
    assert here.sql("SELECT count(*) FROM dead_letters") == [(0,)]
    assert here.sql("SELECT count(*) FROM job_runs WHERE kind = 'derive_memory' AND status = 'completed'") == [(turns,)]


def undisturbed(here: Sandbox, conversations: int) -> dict[str, list[tuple[object, ...]]]:
    """The contents that a run without faults ends with."""
    with sandbox(here.servers) as calm:
        nexus = Nexus()
        ingest(nexus, conversations)
        calm.worker(concurrency=16)
        eventually(lambda: quiet(nexus), within=1500)
        return contents(calm)


@pytest.mark.parametrize(
    ("conversations", "turns", "sessions", "kills"),
    [(1, 419, 19, 2), (5, 2_960, 136, 3)],
)
@pytest.mark.long
def test_killed_workers_leave_the_same_memory(
    here: Sandbox, conversations: int, turns: int, sessions: int, kills: int
) -> None:
    expected = undisturbed(here, conversations)
    # The undisturbed run has ended: this process's settings point at no deployment any more.
    with sandbox(here.servers, NEXUS_LEASE_SECONDS="3") as struck:
        nexus = Nexus()
        assert len(ingest(nexus, conversations)) == conversations
        for _ in range(kills):
            worker = struck.worker(concurrency=16)
            wanted = min(derived(struck) + random.randint(1, turns // (kills + 1)), turns)
            eventually(lambda wanted=wanted: derived(struck) >= wanted)
            worker.kill()
        struck.worker(concurrency=16)
        started = time.monotonic()
        eventually(lambda: quiet(nexus), within=1500)
        print(f"quiet {time.monotonic() - started:.1f} s after the last start")
        check(struck, turns, sessions)
        assert contents(struck) == expected
