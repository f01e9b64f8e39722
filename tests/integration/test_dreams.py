"""Dreams: every due session digested once, then reflections; whatever becomes of the chord."""

from __future__ import annotations

import pytest

from nexus_tasks import Message, Nexus
from nexus_tasks.celery import app
from nexus_tasks.storage import dreams
from nexus_tasks.tasks import dream, maintenance
from nexus_tasks.tasks.runtime import runtime
from tests.deployment import Deployment, eventually


def said(sessions: int) -> Nexus:
    """A namespace with open sessions, each with something to digest."""
    nexus = Nexus()
    for number in range(sessions):
        nexus.ingest("acme", f"s{number}", [Message(content=f"I moved to house number {number} in May.", author="ann")])
    return nexus


def digested(here: Deployment) -> int:
    return int(here.sql("SELECT count(*) FROM sessions WHERE digest_end_seq = last_seq")[0][0])


def states(here: Deployment) -> list[str]:
    return [state for (state,) in here.sql("SELECT state FROM dreams ORDER BY id")]


def test_a_dream_digests_every_due_session_and_then_reflects(here: Deployment) -> None:
    here.worker()
    said(5)
    started = dream.start("acme")
    assert started.sessions == ("s0", "s1", "s2", "s3", "s4")
    assert dream.start("acme").dream_id is None, "a second dream opened while one is open"
    eventually(lambda: states(here) == ["finished"])
    assert digested(here) == 5
    eventually(lambda: here.sql("SELECT 1 FROM job_runs WHERE kind = 'reflect_namespace'"))
    assert dream.start("acme").sessions == ()
    eventually(lambda: states(here) == ["finished", "finished"])


def test_a_dream_whose_chord_is_lost_is_finished_by_reconcile(here: Deployment) -> None:
    said(3)
    with runtime().database.transaction() as tx:  # the process died right after it had opened the dream
        known = runtime().namespace("acme")
        assert known is not None
        dreams.start(tx, known.id, dreams.due_sessions(tx, known.id), urgency="dream")
    here.worker()
    eventually(lambda: states(here) == ["finished"], within=60)
    assert digested(here) == 3


def test_only_idle_namespaces_with_enough_new_facts_are_due(here: Deployment) -> None:
    nexus = said(1)
    namespace = "(SELECT id FROM namespaces WHERE name = 'acme')"

    def due() -> list[str]:
        with runtime().database.transaction() as tx:
            return dreams.due(tx)

    assert due() == []
    here.sql(
        "INSERT INTO memories (namespace_id, level, content, tokens, occurred_at)"
        f" SELECT {namespace}, 'explicit', 'fact ' || n, 1, now() FROM generate_series(1, 20) AS n"
    )
    assert due() == [], "the namespace is not idle yet"
    here.sql("UPDATE memories SET created_at = now() - interval '11 minutes'")
    assert due() == ["acme"]
    here.sql("DELETE FROM memories WHERE content = 'fact 1'")
    assert due() == [], "one fact too few"
    here.sql("UPDATE namespaces SET created_at = now() - interval '25 hours'")
    assert due() == ["acme"], "anything new after a day"
    here.sql(
        f"INSERT INTO dreams (namespace_id, state, sessions, finished_at) SELECT {namespace}, 'finished', '{{}}', now()"
    )
    assert due() == [], "at least an hour lies between dreams"
    assert nexus.status("acme")["namespaces"][0]["memories"]["explicit"] == 19


def test_two_beats_do_a_tick_once(here: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here
    monkeypatch.setattr(maintenance.time, "time", lambda: 1_800_000_030.0)  # far from the turn of a slot
    assert [maintenance._first_in_slot("dream_due") for _ in range(3)] == [True, False, False]
    assert set(app.conf.beat_schedule) == {"dream_due", "prune"}
