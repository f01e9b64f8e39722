"""What Postgres wants is asked for again after Redis lost it: each kind of it, among any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from nexus_tasks import Nexus, digest_session, reflect_perspective
from nexus_tasks.cognition.digest import digest_session as digesting
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import NotFound
from nexus_tasks.idempotency import claim_index
from nexus_tasks.idempotency.worker import reconciler
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.services import ingestion
from nexus_tasks.storage import embeddings
from nexus_tasks.tasks import derive_memory, finish_dream
from tests.derivations import want_derivations
from tests.integration.inline import NAMESPACE, pending, say, time_passes, work
from tests.sandbox import Sandbox, engine


@pytest.fixture
def here(deploy: Callable[..., Sandbox]) -> Sandbox:
    """Everything is wanted after a single message."""
    return deploy(
        NEXUS_REFLECT_MIN_NEW="1", NEXUS_OBSERVATION_BUFFER_TOKENS="10", NEXUS_OBSERVATION_MESSAGE_TOKENS="20"
    )


def derivation(_here: Sandbox) -> None:
    say("I like green tea.")


def digest(_here: Sandbox) -> None:
    say("I like green tea.")
    work("derive_memory")
    Nexus().digest(NAMESPACE, "chat")


def open_dream(_here: Sandbox) -> None:
    say("I like green tea.")
    work("derive_memory")
    finish_dream.start(default_deployment(), NAMESPACE)


def facts(_here: Sandbox) -> None:
    say("I like green tea.")
    work("derive_memory")


def gap(_here: Sandbox) -> None:
    Nexus().create_namespace(NAMESPACE)
    with default_deployment().database.transaction() as tx:
        known = default_deployment().namespace(NAMESPACE)
        assert known is not None
        embeddings.record_gap(tx, known.id)


def unobserved(_here: Sandbox) -> None:
    say("I like green tea. " * 10, observe=True)


def long_log(here: Sandbox) -> None:
    say("I like green tea.", observe=True)
    here.sql("UPDATE observation_logs SET reflecting = 'wanted'")


def batch(here: Sandbox) -> None:
    say("I like green tea.")
    here.sql(
        "INSERT INTO batch_requests (namespace_id, request_hash, job_id, purpose, model, params, sources)"
        " SELECT id, 'hash', 'job', 'digest', 'model', '{}', '{}' FROM namespaces"
    )


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("derive_memory", derivation),
        ("digest_session", digest),
        ("finish_dream", open_dream),
        ("reflect_perspective", facts),
        ("embed_memories", gap),
        ("observe_session", unobserved),
        ("reflect_observations", long_log),
        ("submit_batch", batch),
    ],
)
def test_what_postgres_wants_outlives_a_flush(here: Sandbox, kind: str, wanted: Callable[[Sandbox], None]) -> None:
    wanted(here)
    here.flush()
    assert pending() == []
    assert Reconciler(engine).tick()
    assert kind in {claim.kind for claim in pending()}


# --- what falls due ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("then", ["the worker dies after its commit", "redis is flushed"])
def test_a_rollover_that_fell_due_is_not_forgotten_when(
    deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    here = deploy(NEXUS_DIGEST_MIN_MESSAGES="3")
    if then == "the worker dies after its commit":
        monkeypatch.setattr(derive_memory, "_follow_up", lambda *_: None)
    say("I like tea.", "I like figs.", "I like Porto.")
    work("derive_memory")
    here.flush()
    Reconciler(engine).round()
    [asked] = [claim for claim in pending() if claim.kind == "digest_session"]
    assert not asked.flags.force
    assert [one["status"] for one in work("digest_session")] == ["completed"]
    assert here.sql("SELECT * FROM digest_requests") == []


@pytest.mark.parametrize("how", ["delay", "enqueue_many", "canvas"])
def test_a_rebuild_that_delay_asked_for_outlives_a_flush(here: Sandbox, how: str) -> None:
    say("I like tea.")
    work()
    asked = {"namespace": NAMESPACE, "session_key": "chat", "reason": "manual_rebuild"}
    if how == "delay":
        digest_session.delay(**asked)
    elif how == "enqueue_many":
        digest_session.enqueue_many([asked])
    else:
        digest_session.si(**asked).apply_async(link=digest_session.si(**asked))
    here.flush()
    Reconciler(engine).round()
    assert [one["status"] for one in work("digest_session")] == ["completed"]
    assert here.sql("SELECT digest_generation FROM sessions") == [(1,)]
    assert here.sql("SELECT * FROM digest_requests") == []


def test_a_digest_of_a_namespace_that_nobody_made_is_an_error_in_the_producer(here: Sandbox) -> None:
    with pytest.raises(NotFound, match="acmee"):
        digest_session.delay(namespace="acmee", session_key="chat", reason="manual_rebuild")
    assert here.redis().keys(f"{here.name}:job:*") == []


def test_a_rollover_that_falls_due_while_a_digest_is_made_is_not_forgotten(
    deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy(NEXUS_DIGEST_MIN_MESSAGES="3")
    say("I like tea.", "I like figs.", "I like Porto.")
    work("derive_memory")
    make = digesting.summarize

    def summarize(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        monkeypatch.setattr(derive_memory, "_follow_up", lambda *_: None)
        say("I like rain.", "I like snow.", "I like fog.")
        work("derive_memory")
        return make(*args, **options)

    monkeypatch.setattr(digesting, "summarize", summarize)
    assert work("digest_session")[0]["status"] == "completed"
    here.flush()
    Reconciler(engine).round()
    assert [one["status"] for one in work("digest_session")] == ["completed"]
    assert here.sql("SELECT digest_end_seq FROM sessions") == [(6,)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_session_that_ends_again_while_it_is_digested_is_digested_again(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    say("I like tea.", end=True)
    work("derive_memory")
    make = digesting.summarize

    def summarize(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        if lost:
            monkeypatch.setattr(ingestion.follow_ups, "ask", lambda *_: [])
        say("I like tea no more.", end=True)
        return make(*args, **options)

    monkeypatch.setattr(digesting, "summarize", summarize)
    time_passes(here)
    made = work("digest_session")
    if lost:
        work("derive_memory")
        here.flush()
        Reconciler(engine).round()
        monkeypatch.undo()
        made += [*work("derive_memory"), *work("digest_session")]
    digests = [one for one in made if one["kind"] == "digest_session"]
    assert [one.get("end_seq") for one in digests] == [1, 2]
    assert here.sql("SELECT * FROM digest_requests") == []


# --- among many rows --------------------------------------------------------------------------------------------------
def lose(memory_id: int) -> None:
    """Redis loses the claim of one derivation."""
    claims = default_deployment().claims
    claims.drop(claims.key(derive_memory.request(NAMESPACE, memory_id, "assistant")))


def lost(memory_id: int) -> bool:
    request = derive_memory.request(NAMESPACE, memory_id, "assistant")
    return bool(default_deployment().claims.missing(request.kind, [request.scope]))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, here: Sandbox) -> Sandbox:
    """Rounds that look at few rows; 200 rows want derivations, and each has a claim."""
    monkeypatch.setattr(reconciler, "NEWEST", 20)
    monkeypatch.setattr(reconciler, "FURTHER", 30)
    monkeypatch.setattr(reconciler, "PAGE", 10)
    want_derivations(here, NAMESPACE, 200)
    claims = default_deployment().claims
    claims.claim([derive_memory.request(NAMESPACE, n, "assistant") for n in range(1, 201)])
    return here


def test_a_lost_claim_of_a_new_row_is_asked_for_by_the_next_round(small: Sandbox) -> None:  # noqa: ARG001
    lose(185)
    assert Reconciler(engine).round() == 1
    assert not lost(185)


def test_a_lost_claim_of_any_row_is_found_by_workers_that_take_turns(small: Sandbox) -> None:  # noqa: ARG001
    for once_more in range(2):  # the last row is followed by the first
        lose(1)
        lose(170)
        made = [Reconciler(engine).round() for _ in range(6)]  # each of them could be another worker's
        assert sum(made) == 2, (once_more, made)
        assert not lost(1)
        assert not lost(170)


# --- one namespace does not fill Redis ------------------------------------------------------------------------------
ROOM, STEP = 30, 5
OBSERVERS = ["assistant", "critic", "scribe"]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, here: Sandbox) -> Sandbox:
    """A namespace may have 30 jobs at a time, and a call asks for 5 in a step."""
    monkeypatch.setattr(claim_index, "NAMESPACE_JOBS", ROOM)
    monkeypatch.setattr(ingestion, "AT_ONCE", STEP)
    monkeypatch.setattr(reconciler, "PAGE", STEP)
    return here


def jobs(namespace: str) -> int:
    counts = default_deployment().claims.counts(namespace)
    return counts.get("waiting", 0) + counts.get("pending", 0) + counts.get("running", 0)


def test_a_namespace_gets_no_more_jobs_than_its_share_of_redis(narrow: Sandbox) -> None:
    said = [f"I like tea number {number}." for number in range(20)]
    for session in ("one", "two", "three"):
        say(*said, session=session, observers=OBSERVERS)
        for number in range(10):  # a call for one message asks for a job too
            say(f"I like figs number {number}.", session=session, observers=OBSERVERS)
        assert ROOM <= jobs(NAMESPACE) < ROOM + len(OBSERVERS) * STEP, session
    Reconciler(engine).round()
    assert jobs(NAMESPACE) < ROOM + len(OBSERVERS) * STEP
    say("I like rain.", namespace="other")
    narrow.flush()  # then reconcile asks for all jobs, one namespace's behind the other's
    Reconciler(engine).round()
    assert ROOM <= jobs(NAMESPACE) < ROOM + STEP
    assert jobs("other") == 1


def test_the_derivations_that_had_no_room_are_made_when_there_is_room(narrow: Sandbox) -> None:
    for session in ("one", "two", "three"):
        say(*(f"I like tea number {number}." for number in range(20)), session=session, observers=OBSERVERS)
    for _ in range(10):
        work("derive_memory")
        Reconciler(engine).round()
    assert narrow.sql("SELECT state, count(*) FROM derivations GROUP BY 1") == [("done", 180)]


@pytest.mark.parametrize("waits", ["digests", "a countdown"])
def test_jobs_that_wait_for_others_take_no_room_from_them(narrow: Sandbox, waits: str) -> None:
    """The digest of an ended session waits for its derivations, which would wait for room."""
    for number in range(2 * ROOM):
        say("I like tea.", session=f"chat {number}", end=waits == "digests")
    if waits == "a countdown":
        later = [{"namespace": NAMESPACE, "observer": "ann", "subject": f"s{n}"} for n in range(2 * ROOM)]
        for one in later:
            reflect_perspective.apply_async(kwargs=one, countdown=3_600)
    for _ in range(10):
        work()
        Reconciler(engine).round()
    assert narrow.sql("SELECT state, count(*) FROM derivations GROUP BY 1") == [("done", 2 * ROOM)]


def test_other_kinds_find_room_in_a_full_namespace(narrow: Sandbox) -> None:
    say(*(f"I like tea number {number}." for number in range(2 * ROOM)))
    gap(narrow)
    Reconciler(engine).round()
    assert jobs(NAMESPACE) > ROOM
    assert Nexus().jobs(namespace=NAMESPACE, kind="embed_memories")


# --- rounds -----------------------------------------------------------------------------------------------------------
def test_one_worker_at_a_time_looks_for_wanted_rows(small: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr(Reconciler, "round", lambda self: asked.append(self._lock.local.token) or 0)
    workers = [Reconciler(engine) for _ in range(5)]
    for worker in workers:
        worker.tick()
    assert len(asked) == 1
    small.flush()  # with the claims the lock is gone, and work goes on at once
    workers[3].tick()
    assert len(asked) == 2


def test_rows_that_wait_and_rows_that_cannot_be_read_hold_up_no_other(
    small: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "PAGE", 2)
    small.sql("UPDATE derivations SET observer = '' WHERE memory_id = 184")  # no observer has this name
    lose(185)
    assert Reconciler(engine).round() == 1
    kind = engine.kinds()["digest_session"]
    say("Hello.", session="busy", observers=["bob"])
    for session in ("busy", "busy", "busy", "idle"):
        small.sql(
            "INSERT INTO sessions (namespace_id, session_key) SELECT id, :key FROM namespaces ON CONFLICT DO NOTHING",
            key=session,
        )
        small.sql(
            "INSERT INTO digest_requests (namespace_id, session_id, reason)"
            " SELECT namespace_id, id, 'session_end' FROM sessions WHERE session_key = :key",
            key=session,
        )
    assert [row is not None for _, row in engine.storage.wanted(kind, 0, 10)] == [False, False, False, True]
    Reconciler(engine).round()
    assert [claim.scope for claim in pending() if claim.kind == kind.name] == [
        '{"namespace":"acme","session_key":"idle"}'
    ]


@pytest.mark.parametrize("kind", ["digest_session", "reflect_perspective"])
def test_a_name_with_a_character_that_this_python_does_not_know_holds_up_no_other(here: Sandbox, kind: str) -> None:
    """A process with a later Python may store it: the newest emoji are printable only there."""
    unknown = "a\u0378"  # no version of Unicode has this character
    for name in (NAMESPACE, "zebra"):
        say("I like green tea.", namespace=name)
        work("derive_memory")
        Nexus().digest(name, "chat")
    which = "namespace_id = (SELECT id FROM namespaces WHERE name = :n)"
    here.sql(f"UPDATE sessions SET session_key = :name WHERE {which}", name=unknown, n=NAMESPACE)
    here.sql(f"UPDATE perspectives SET subject = :name WHERE {which}", name=unknown, n=NAMESPACE)
    here.flush()
    Reconciler(engine).round()
    assert "zebra" in {claim.namespace for claim in pending() if claim.kind == kind}


@pytest.mark.parametrize("kind", ["derive_memory", "digest_session", "reflect_perspective", "extract_session"])
def test_a_page_is_read_by_an_index_also_without_statistics(here: Sandbox, kind: str) -> None:
    """Of 50,000 rows in tables that were never analyzed, a page costs what it returns."""
    here.sql("TRUNCATE namespaces CASCADE")  # forgets what is known of the rows of an earlier test
    # Statistics that are made during the insert count none of its rows, and the planner then sorts them.
    here.sql("ALTER TABLE derivations SET (autovacuum_enabled = off)")
    want_derivations(here, NAMESPACE, 50_000)
    here.sql("INSERT INTO namespaces (name) SELECT 'other-' || n FROM generate_series(1, 5000) AS n")
    for table in ("namespaces", "sessions", "digest_requests", "perspectives", "extractions", "memories"):
        here.sql(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    many = f"FROM namespaces, generate_series(1, 20000) AS n WHERE name = '{NAMESPACE}'"
    here.sql(f"INSERT INTO sessions (namespace_id, session_key) SELECT id, n {many}")
    here.sql(f"INSERT INTO perspectives (namespace_id, observer, subject) SELECT id, 'assistant', n {many}")
    each = "SELECT namespace_id, id FROM sessions"
    here.sql(
        "INSERT INTO digest_requests (namespace_id, session_id, reason)"
        " SELECT namespace_id, id, 'rollover' FROM sessions"
    )
    here.sql(f"INSERT INTO extractions (namespace_id, session_id) {each}")
    here.sql("UPDATE extractions SET state = 'wanted'")
    here.sql(
        "INSERT INTO memories (namespace_id, perspective_id, level, content, tokens, occurred_at)"
        " SELECT namespace_id, id, 'explicit', 'A fact.', 2, now() FROM perspectives WHERE id % 5 = 0"
    )
    declared = engine.kinds()[kind]
    statements = list[str]()

    def explain(connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, _many: bool) -> None:
        if statement.lstrip().startswith("SELECT") and "set_config" not in statement:
            plan = connection.connection.cursor().execute("EXPLAIN (ANALYZE) " + statement, values).fetchall()
            statements.append("\n".join(line for (line,) in plan))

    event.listen(here.deployment.database.engine, "before_cursor_execute", explain)
    try:
        engine.storage.wanted(declared, 10_000, 500)
        engine.storage.newest(declared, 1_000)
    finally:
        event.remove(here.deployment.database.engine, "before_cursor_execute", explain)
    assert len(statements) == 3  # the namespaces that other cells have, and the two pages
    for plan in statements:
        assert "Seq Scan" not in plan, plan
        assert "Bitmap" not in plan, plan
        assert "Sort" not in plan, plan
