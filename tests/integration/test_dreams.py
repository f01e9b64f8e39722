"""Dreams: every due session digested once, then reflections; whatever becomes of the chord."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Message, Nexus, digest_session
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.storage import dreams
from nexus_tasks.tasks import finish_dream, ticks
from nexus_tasks.tasks.finish_dream import Started
from tests.integration.inline import time_passes, waiting, work
from tests.sandbox import Sandbox, app, engine
from tests.standin import StandIn, faults


def start(namespace: str) -> Started:
    return finish_dream.start(default_deployment(), namespace)


def said(sessions: int) -> Nexus:
    """A namespace with open sessions, each with something to digest."""
    nexus = Nexus()
    for number in range(sessions):
        nexus.ingest("acme", f"s{number}", [Message(content=f"I moved to house number {number} in May.", author="ann")])
    return nexus


def digested(here: Sandbox) -> int:
    return int(here.sql("SELECT count(*) FROM sessions WHERE digest_end_seq = last_seq")[0][0])


def states(here: Sandbox) -> list[str]:
    return [state for (state,) in here.sql("SELECT state FROM dreams ORDER BY id")]


def due() -> list[str]:
    with default_deployment().database.transaction() as tx:
        return dreams.due_namespaces(tx)


def dreaming() -> Claim:
    [claim] = [claim for claim in waiting() if claim.kind == "finish_dream"]
    return claim


def ran(here: Sandbox, kind: str) -> list[str]:
    return [status for (status,) in here.sql("SELECT status FROM job_runs WHERE kind = :k ORDER BY id", k=kind)]


@pytest.mark.long
def test_a_dream_digests_every_due_session_and_then_reflects(here: Sandbox) -> None:
    nexus = said(5)
    job = nexus.dream("acme")
    assert job.created
    again = nexus.dream("acme")
    assert (again.id, again.created) == (job.id, False), "a second dream opened while one is open"
    here.worker()
    outcome = job.wait(timeout=120)
    assert (outcome.status, outcome.job_id, outcome.reasons) == ("completed", job.id, ("manual",))
    assert outcome.details["sessions"] == 5
    assert states(here) == ["finished"]
    assert digested(here) == 5
    assert ran(here, "reflect_namespace")
    assert nexus.dream("acme").wait(timeout=120).details["sessions"] == 0, "nothing is due any more"


@pytest.mark.usefixtures("here")
def test_a_dream_says_how_far_it_is_and_is_live_when_somebody_waits() -> None:
    nexus = said(3)
    started = start("acme")
    assert (started.opened, started.sessions) == (True, ("s0", "s1", "s2"))
    urgencies = {claim.fields["urgency"] for claim in _digests()}
    assert urgencies == {"dream"}
    work("digest_session")
    time_passes_for_the_dream()
    [claim] = [one for one in nexus.status("acme").namespaces[0].waits if one.kind == "finish_dream"]
    assert claim.reason == "dream"
    nexus.ingest("acme", "s3", [Message(content="And I moved again in June.", author="ann")])
    assert nexus.dream("acme").created is False, "joined: the session that came meanwhile is the next dream's"


def _digests() -> list[Claim]:
    return [claim for claim in default_deployment().claims.pending("digest") if claim.kind == "digest_session"]


def time_passes_for_the_dream() -> None:
    """The dream looks at once, as when its time to look again has come."""
    with default_deployment().database.transaction() as tx:
        known = default_deployment().namespace("acme")
        assert known is not None
        joined = dreams.join_open(tx, known.id, urgency="dream")
        assert joined is not None
        dream_id, _ = joined
    default_deployment().claims.hurry(finish_dream.REASON, requests=[finish_dream.request("acme", dream_id)])
    work("finish_dream")


@pytest.mark.usefixtures("here")
def test_a_live_request_makes_an_open_dream_live() -> None:
    nexus = said(2)
    start("acme")
    nexus.dream("acme")
    assert {claim.fields["urgency"] for claim in _digests()} == {"live"}
    [row] = nexus.namespaces()
    with default_deployment().database.transaction() as tx:
        opened = dreams.get(tx, default_deployment().namespace("acme").id, 1)  # type: ignore[union-attr]
        assert opened is not None
        assert (row.namespace, opened.urgency) == ("acme", "live")


def test_a_dream_may_have_more_sessions_than_a_statement_has_parameters(here: Sandbox) -> None:
    Nexus().create_namespace("acme")
    here.sql(
        "INSERT INTO dreams (namespace_id, sessions) SELECT id, ARRAY(SELECT generate_series(1, 66000)) FROM namespaces"
    )
    [(namespace_id, dream_id)] = here.sql("SELECT namespace_id, id FROM dreams")
    with default_deployment().database.transaction() as tx:
        dream = dreams.get(tx, namespace_id, dream_id)
        assert dream is not None
        assert dreams.digests_to_come(tx, dream) == 0
        assert dreams.join_open(tx, namespace_id, urgency="live") == (dream_id, ())


def test_a_dream_waits_for_its_digests_and_its_reflections(here: Sandbox) -> None:
    said(3)
    work()
    start("acme")
    assert ran(here, "reflect_namespace") == []
    work("digest_session")  # the last one wakes the dream
    work("finish_dream")
    assert dreaming().wait_detail == "reflections to come"
    work("reflect_namespace")
    assert here.sql("SELECT count(*) FROM perspectives WHERE reflected_through = 0") == [(1,)]
    time_passes_for_the_dream()
    assert dreaming().wait_detail == "reflections to come: 1"
    work()
    assert states(here) == ["finished"]
    assert here.sql("SELECT count(*) FROM perspectives WHERE reflected_through = 0") == [(0,)]


def test_a_long_dream_goes_in_slices_and_is_finished_once(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish_dream, "SLICE", 3)
    headers: list[int] = []
    chord = finish_dream.chord

    def noted(header: list[Any], body: Any) -> Any:
        headers.append(len(header))
        return chord(header, body)

    monkeypatch.setattr(finish_dream, "chord", noted)
    said(8)
    start("acme")
    assert headers == [3, 3, 2]
    for _ in range(3):
        work()
        time_passes(here)
    assert (states(here), digested(here)) == (["finished"], 8)
    assert ran(here, "digest_session") == ["completed"] * 8
    assert ran(here, "finish_dream").count("completed") == 1


def test_a_dream_whose_chord_is_lost_is_finished_by_reconcile(here: Sandbox) -> None:
    said(3)
    with default_deployment().database.transaction() as tx:  # the process died right after it had opened the dream
        known = default_deployment().namespace("acme")
        assert known is not None
        dreams.start(tx, known.id, dreams.due_sessions(tx, known.id), urgency="dream")
    here.flush()
    for _ in range(4):
        Reconciler(engine).round()
        work()
        time_passes(here)
        work()
    assert (states(here), digested(here)) == (["finished"], 3)
    assert ran(here, "reflect_namespace")


def test_a_digest_that_gave_up_does_not_hold_its_dream_open(claude: Callable[..., Sandbox], standin: StandIn) -> None:
    here = claude()
    said(3)
    work("derive_memory")
    standin.when("house number 1", faults.refused())
    start("acme")
    for _ in range(3):
        work()
        time_passes(here)
    assert ("digest_session",) in here.sql("SELECT kind FROM dead_letters WHERE resolution IS NULL")
    assert (states(here), digested(here)) == (["finished"], 2)
    assert start("acme").sessions == (), "what gave up is not asked about night after night"
    Nexus().ingest("acme", "s1", [Message(content="Something new.", author="ann")])
    work()
    time_passes(here)
    work()
    assert start("acme").sessions == ("s1",), "but when something new was said"


def test_a_dream_that_gives_up_makes_room_for_the_next(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    said(1)
    start("acme")
    with monkeypatch.context() as patch:
        patch.setattr(dreams, "digests_to_come", lambda *_: 1 / 0)
        patch.setattr(finish_dream.follow_ups, "hurry_dream", lambda *_: None)
        for _ in range(6):
            work()
            time_passes(here)
    [(letter,)] = here.sql("SELECT job_id FROM dead_letters WHERE kind = 'finish_dream'")
    assert states(here) == ["finished"]
    Nexus().retry_job(letter)
    assert states(here) == ["open"], "retried, it goes on"
    for _ in range(3):
        work()
        time_passes(here)
    assert states(here) == ["finished"]
    assert ran(here, "finish_dream") == ["completed"]


def test_requests_for_one_digest_merge_in_a_dream_too(here: Sandbox) -> None:
    said(1)
    start("acme")
    digest_session.delay(namespace="acme", session_key="s0", reason="manual_rebuild")
    work("digest_session")
    [(reasons, status)] = here.sql("SELECT reasons, status FROM job_runs WHERE kind = 'digest_session'")
    assert (sorted(reasons), status) == (["dream_digest", "manual_rebuild"], "completed")
    assert here.sql("SELECT DISTINCT generation FROM session_digests") == [(1,)]


def test_only_idle_namespaces_with_enough_new_facts_are_due(here: Sandbox) -> None:
    nexus = said(1)
    namespace = "(SELECT id FROM namespaces WHERE name = 'acme')"
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
    assert nexus.status("acme").namespaces[0].memories["explicit"] == 19


def test_a_namespace_that_is_erased_meanwhile_keeps_no_other_from_dreaming(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(1)
    monkeypatch.setattr(dreams, "due_namespaces", lambda _tx: ["gone", "acme"])
    assert ticks.dream_due(default_deployment()) == ["acme"]
    assert states(here) == ["open"]


def test_a_tick_is_done_once_per_slot(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here
    monkeypatch.setattr(Claims, "now", lambda _: 1_800_000_030.0)  # far from the turn of a slot
    assert [ticks._first_in_slot(default_deployment(), "dream_due") for _ in range(3)] == [True, False, False]
    assert {"dream_due", "prune"} <= set(app.conf.beat_schedule)


# --- many namespaces --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("namespaces", "memories"), [(300, 20_000), pytest.param(10_000, 300_000, marks=pytest.mark.long)]
)
def test_the_due_namespaces_are_found_within_a_second(here: Sandbox, namespaces: int, memories: int) -> None:
    """Beside a large namespace, in tables that were never analyzed."""
    add = (
        "INSERT INTO memories (namespace_id, level, content, tokens, occurred_at, created_at)"
        " SELECT n.id, CASE i % 5 WHEN 0 THEN 'explicit' ELSE 'raw' END, '', 0, now(),"
        " now() - interval '1 day' - i * interval '1 second' FROM namespaces AS n, generate_series(1, :each) AS i"
    )
    steps: list[tuple[str, dict[str, int]]] = [
        ("SET LOCAL session_replication_role = replica", {}),
        ("INSERT INTO namespaces (name) SELECT 'n' || i FROM generate_series(1, :many) AS i", {"many": namespaces}),
        (add + " WHERE n.name <> 'n1'", {"each": 5}),
        (add + " WHERE n.name = 'n1'", {"each": memories}),
        ("INSERT INTO dreams (namespace_id, state, sessions) SELECT id, 'finished', '{}' FROM namespaces", {}),
        (
            "UPDATE dreams SET started_at = now() - CASE WHEN name IN ('n1', 'n2') THEN interval '30 days'"
            " ELSE interval '23 hours' END FROM namespaces WHERE namespaces.id = namespace_id",
            {},
        ),
    ]
    with here.deployment.database.transaction() as tx:
        for statement, values in steps:
            tx.execute(text(statement), values)
    started = time.monotonic()
    assert due() == ["n1", "n2"]
    assert time.monotonic() - started < 1.0
