"""Migrations: from empty to exactly the models, and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import OperationalError

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.storage import schema, tenancy
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.migrations import online
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.storage.upgrade_plan import _step, plan
from tests.databases import administer
from tests.sandbox import eventually


@pytest.fixture
def empty(servers: ServerAddresses) -> Iterator[str]:
    """The address of an empty database."""
    administer(servers, "CREATE DATABASE migrations")
    yield servers.database_url.replace("/nexus?", "/migrations?")
    administer(servers, "DROP DATABASE migrations WITH (FORCE)")


def test_upgraded_from_empty_equals_the_models(empty: str) -> None:
    schema.upgrade(empty)
    found, needed = schema.versions(empty)
    assert found == needed
    engine = create_engine(empty)
    with engine.begin() as connection:
        settings = schema.config(empty)
        settings.attributes["connection"] = connection
        command.check(settings)  # raises when a model and its table differ
    engine.dispose()


def test_up_down_up(empty: str) -> None:
    schema.upgrade(empty)
    schema.downgrade(empty, "base")
    engine = create_engine(empty)
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    engine.dispose()
    schema.upgrade(empty)
    schema.upgrade(empty)


def test_two_that_upgrade_at_once_take_turns(empty: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(schema.upgrade, [empty, empty]))
    found, needed = schema.versions(empty)
    assert found == needed


def test_an_upgrade_and_a_stack_of_release_0_1_0_that_starts_meanwhile_do_not_wait_for_each_other(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nexus up` of 0.1.0 waits for its turn to upgrade in a transaction, and an index that is built waits for that."""
    schema.upgrade(empty, "0011")
    engine = create_engine(empty)
    real, waited = schema._migrate, list[str | None]()

    def old(begun: threading.Event) -> None:
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '5s'"))
            connection.execute(text("SELECT 1 FROM alembic_version"))
            begun.set()
            try:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": 0x6E65787573})
                waited.append(None)
            except OperationalError as error:
                waited.append(str(error.orig))

    def while_an_old_one_starts(*arguments: Any, **options: Any) -> None:
        begun = threading.Event()
        thread = threading.Thread(target=old, args=(begun,))
        thread.start()
        begun.wait(10)
        real(*arguments, **options)
        thread.join()

    monkeypatch.setattr(schema, "_migrate", while_an_old_one_starts)
    schema.upgrade(empty)
    engine.dispose()
    assert waited == [None]
    found, needed = schema.versions(empty)
    assert found == needed


def test_an_upgrade_has_no_timeout_for_statements(
    empty: str, servers: ServerAddresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of the database may have one, with which the index of a large table would never be finished."""
    administer(servers, "ALTER DATABASE migrations SET statement_timeout = '1s'")
    real = tenancy.install

    def slow(connection: Connection) -> str:
        connection.execute(text("SELECT pg_sleep(1.5)"))
        return real(connection)

    monkeypatch.setattr(tenancy, "install", slow)
    schema.upgrade(empty)
    found, needed = schema.versions(empty)
    assert found == needed


_PROBED = "SELECT name FROM pg_settings WHERE source = 'session' AND name LIKE 'tcp_keepalives_%' ORDER BY name"


def test_postgres_probes_the_link_of_each_process_and_upgrade(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the locks of a lost machine stayed for 2 hours, and kept the next upgrade or move of a cell waiting."""
    probed = list[list[str]]()

    def look(connection: Connection) -> str:
        probed.append(list(connection.scalars(text(_PROBED))))
        return ""

    guard = schema._turn

    @contextmanager
    def looking(engine: Engine) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(engine, "connect", partial(connect_and_keep, engine.connect))
            with guard(engine):
                probed.append(list(kept[0].scalars(text(_PROBED))))
                yield

    kept = list[Connection]()

    def connect_and_keep(connect: Callable[[], Connection]) -> Connection:
        kept.append(connect())
        return kept[-1]

    monkeypatch.setattr(tenancy, "install", look)
    monkeypatch.setattr(schema, "_turn", looking)
    schema.upgrade(empty)
    database = Database(empty)
    with database.dedicated_connection() as connection:
        look(connection)
    database.dispose()
    assert probed == 3 * [["tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval"]]


def test_what_was_stored_before_gets_its_times_and_standings(empty: str) -> None:
    schema.upgrade(empty)
    schema.downgrade(empty, "0017")
    engine = create_engine(empty)
    memory = (
        "INSERT INTO memories (namespace_id, session_id, perspective_id, level, content, tokens, author, role, seq,"
        " occurred_at, created_at, valid_from, valid_to, superseded_by, message_key, content_key) VALUES (1, {}) "
    )
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO namespaces (name) VALUES ('acme')",
            "INSERT INTO sessions (namespace_id, session_key, last_seq) VALUES (1, 'chat', 3)",
            "INSERT INTO perspectives (namespace_id, observer, subject) VALUES (1, 'assistant', 'ann')",
            # 1 to 3: messages; the second is dated 2099, the third is the assistant's
            *(
                memory.format(
                    f"1, NULL, 'raw', 'Turn {seq}.', 2, '{author}', '{role}', {seq}, '{when}', '2026-01-09', NULL,"
                    f" NULL, NULL, 'id:{seq}', NULL"
                )
                for seq, author, role, when in (
                    (1, "ann", "user", "2026-01-01"),
                    (2, "bob", "user", "2099-01-01"),
                    (3, "assistant", "assistant", "2026-01-03"),
                )
            ),
            # 4: a fact from the message of 2099; 5 and 6: two digests, the later of which is the current one
            memory.format(
                "1, 1, 'explicit', 'Ann runs.', 3, 'ann', NULL, NULL, '2099-01-01', '2026-01-10', '2099-01-01', NULL,"
                " NULL, NULL, 'key'"
            ),
            *(
                memory.format(
                    f"1, NULL, 'summary_short', 'Digest {number}.', 3, NULL, NULL, NULL, '2026-02-0{number}',"
                    f" '2026-02-0{number}', '2026-02-0{number}', {until}, NULL, NULL, NULL"
                )
                for number, until in ((1, "'2026-02-02'"), (2, "NULL"))
            ),
            "UPDATE memories SET superseded_by = 6 WHERE id = 5",
            "INSERT INTO evidence (memory_id, source_id, role, namespace_id) VALUES (4, 2, 'derived_from', 1),"
            " (4, 1, 'derived_from', 1)",
            "INSERT INTO session_digests (namespace_id, session_id, memory_id, kind, end_seq, generation)"
            " VALUES (1, 1, 5, 'short', 1, 0), (1, 1, 6, 'short', 3, 0)",
        ):
            connection.exec_driver_sql(statement)
    schema.upgrade(empty)
    with engine.begin() as connection:
        connection.exec_driver_sql("SET timezone TO 'UTC'")
        rows = connection.exec_driver_sql(
            "SELECT id, occurred_at::date::text, claimed_at::date::text, valid_from::date::text, valid_to::date::text,"
            " event_from::date::text, event_to::date::text, standing FROM memories ORDER BY id"
        ).all()
    engine.dispose()
    assert [tuple(row) for row in rows] == [
        (1, "2026-01-01", None, None, None, None, None, 5),
        (2, "2026-01-09", "2099-01-01", None, None, None, None, 5),
        (3, "2026-01-03", None, None, None, None, None, 3),
        (4, "2026-01-10", None, "2026-01-10", None, None, None, 4),  # of what ann and bob say together
        (5, "2026-01-01", None, "2026-01-01", "2026-01-09", "2026-01-01", "2026-01-01", 5),
        (6, "2026-01-09", None, "2026-01-09", None, "2026-01-01", "2026-01-09", 3),
    ]


def test_a_message_that_comes_while_postings_are_written_anew_waits_and_is_indexed(empty: str) -> None:
    schema.upgrade(empty, "0016")
    engine = create_engine(empty)
    insert = text(
        "INSERT INTO memories (namespace_id, session_id, level, content, tokens, author, role, seq, occurred_at,"
        " created_at, message_key) VALUES (1, 1, 'raw', 'tea', 1, 'ann', 'user', 1, now(), now(), 'id:1')"
    )
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE datname = 'migrations' AND wait_event_type = 'Lock'")

    def write() -> None:
        with engine.begin() as connection:
            connection.execute(insert)

    with engine.begin() as connection:
        connection.execute(text("INSERT INTO namespaces (name) VALUES ('acme')"))
        connection.execute(text("INSERT INTO sessions (namespace_id, session_key, last_seq) VALUES (1, 'chat', 1)"))
    committing = engine.execution_options(isolation_level="AUTOCOMMIT")
    with ThreadPoolExecutor(2) as pool, committing.connect() as watching:
        with engine.begin() as reader:
            reader.execute(text("SELECT count(*) FROM postings"))  # its lock holds the migration up
            upgrade = pool.submit(schema.upgrade, empty, "0017")
            eventually(lambda: watching.scalar(waiting) == 1)
            written = pool.submit(write)
            eventually(lambda: watching.scalar(waiting) == 2)
        upgrade.result(60)
        written.result(60)
        assert watching.execute(text("SELECT DISTINCT memory_id, namespace_id FROM postings")).all() == [(1, 1)]
    engine.dispose()


def test_a_migration_lets_others_pass_while_it_cannot_have_a_table(
    empty: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A dump reads ``namespaces`` for long: the upgrade must not hold up everybody who comes after it."""
    monkeypatch.setattr(schema, "_LOCK_MS", 200)
    schema.upgrade(empty, "0023")
    engine = create_engine(empty)
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as dump:
            dump.execute(text("SELECT count(*) FROM namespaces"))
            upgraded = pool.submit(schema.upgrade, empty)
            eventually(lambda: "tries again" in caplog.text)
            with engine.begin() as reader:
                reader.execute(text("SET lock_timeout = '2s'"))
                reader.execute(text("SELECT count(*) FROM namespaces"))
        upgraded.result(60)
    engine.dispose()
    found, needed = schema.versions(empty)
    assert found == needed


def test_an_upgrade_lets_others_pass_while_it_cannot_have_a_table_for_its_policies(
    empty: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schema, "_LOCK_MS", 200)
    schema.upgrade(empty, "0034")  # all migrations, and no policies yet
    engine = create_engine(empty)
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as dump:
            dump.execute(text("SELECT count(*) FROM memories"))
            upgraded = pool.submit(schema.upgrade, empty)
            eventually(lambda: "tries again" in caplog.text, within=30)
            with engine.begin() as reader:
                reader.execute(text("SET lock_timeout = '2s'"))
                reader.execute(text("SELECT count(*) FROM memories"))
        upgraded.result(60)
    with engine.begin() as connection:
        assert tenancy.unprotected(connection) == []
    engine.dispose()


def test_an_upgrade_that_postgres_stops_to_end_a_deadlock_goes_on(
    empty: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job changes two memories, the later one first; the upgrade changes both, the earlier one first."""
    engine, real = first_release(empty), online.commit
    schema.upgrade(empty, "0018")
    change = text("UPDATE memories SET labels = '{job}' WHERE id = :id")
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE datname = 'migrations' AND wait_event_type = 'Lock'")
    job, watching = engine.connect(), engine.execution_options(isolation_level="AUTOCOMMIT").connect()

    def commit() -> None:
        real()
        if not job.in_transaction() and not caplog.text:
            job.execute(text("SET deadlock_timeout = '1h'"))  # it is the upgrade that Postgres stops
            job.execute(change, {"id": MANY})

    monkeypatch.setattr(online, "commit", commit)
    with ThreadPoolExecutor(1) as pool, job, watching:
        upgraded = pool.submit(schema.upgrade, empty, "0019")
        eventually(lambda: watching.scalar(waiting) == 1, within=30)
        job.execute(change, {"id": 1})
        job.commit()
        upgraded.result(60)
        assert "tries again" in caplog.text
        standings = watching.execute(text("SELECT standing, count(*) FROM memories GROUP BY 1")).all()
    engine.dispose()
    assert [tuple(row) for row in standings] == [(5, MANY)]


def test_migrations_before_one_that_fails_stay_and_the_next_call_goes_on(empty: str) -> None:
    schema.upgrade(empty, "0023")
    engine = create_engine(empty)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE observation_generations (id int)"))  # is in the way of 0025
    with pytest.raises(Exception, match="already exists"):
        schema.upgrade(empty)
    assert schema.versions(empty)[0] == "0024"
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE observation_generations"))
    engine.dispose()
    schema.upgrade(empty)
    found, needed = schema.versions(empty)
    assert found == needed


# --- what an upgrade will do ------------------------------------------------------------------------------------------
def test_a_plan_names_each_missing_migration_its_locks_and_its_time(empty: str) -> None:
    schema.upgrade(empty, "0016")
    engine = create_engine(empty)
    with engine.begin() as connection:
        connection.execute(text("UPDATE pg_class SET reltuples = 2e6 WHERE relname = 'memories'"))
    engine.dispose()
    found = plan(empty)
    assert [step.revision for step in found.steps][:2] == ["0017", "0018"]
    assert (found.found, found.memories) == ("0016", 2_000_000)
    by = {step.revision: step for step in found.steps}
    assert by["0017"].rewrites == ("postings",)
    assert by["0019"].rewrites == ("memories",)
    assert by["0019"].seconds > 10
    assert all(step.locks == {} for step in found.steps)
    assert found.old_workers
    assert schema.versions(empty)[0] == "0016"


def test_a_plan_of_an_empty_and_of_a_new_database(empty: str) -> None:
    assert plan(empty).steps[0].revision == "0001"
    assert plan(empty).seconds == 0
    schema.upgrade(empty)
    assert plan(empty).steps == ()


# Rows of each table that grows with messages, in the schema of the first release.
MANY = 300
ROWS = (
    "INSERT INTO namespaces (name) VALUES ('acme')",
    "INSERT INTO sessions (namespace_id, session_key, last_seq) SELECT 1, n, 1 FROM generate_series(1, {0}) AS n",
    "INSERT INTO perspectives (namespace_id, observer, subject) SELECT 1, 'a', n FROM generate_series(1, {0}) AS n",
    "INSERT INTO memories (namespace_id, session_id, level, content, tokens, author, role, seq, occurred_at,"
    " created_at, message_key, valid_to) SELECT 1, n, 'raw', 'Tea number ' || n, 3, 'ann', 'user', 1, now(), now(), n,"
    " now() FROM generate_series(1, {0}) AS n",
    "INSERT INTO reflections (namespace_id, perspective_id, job_id, judged) VALUES (1, 1, 'job', '{{}}')",
    "INSERT INTO reflection_changes (namespace_id, reflection_id, memory_id, superseded) SELECT 1, 1, id, true"
    " FROM memories",
    "INSERT INTO derivations (namespace_id, memory_id, session_id, observer)"
    " SELECT 1, id, session_id, 'assistant' FROM memories",
)
STRONG = ("ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")  # others wait for these
_TABLES = text(
    "SELECT relname, relfilenode FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
)
_LOCKED = (
    "SELECT relname, mode FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
    " WHERE pid = pg_backend_pid() AND relkind = 'r' AND mode = ANY(%s)"
)


def first_release(empty: str) -> Engine:
    """An engine for the database, which now has the schema of the first release and its rows."""
    schema.upgrade(empty, "0010")
    engine = create_engine(empty)
    with engine.begin() as connection:
        for statement in ROWS:
            connection.exec_driver_sql(statement.format(MANY))
    return engine


@dataclass(eq=False)
class Watch:
    """What the transactions of one migration do to large tables. It looks before each commit."""

    large: dict[str, int]  # the tables with at least MANY rows, with the number of their file
    first: int  # the first transaction of the migration
    locked: set[str] = field(default_factory=set)  # while an index is made, or many rows are written

    def __call__(self, connection: Connection) -> None:
        cursor = connection.connection.cursor()
        cursor.execute(_LOCKED, [list(STRONG)])
        modes = cursor.fetchall()  # a table may be locked in several modes
        names = {name for name, _ in modes}
        assert not {"namespaces", "memories"} <= names, "a writer that has one and waits for the other would fail"
        locked = names & self.large.keys()
        self.locked |= {name for name in locked if (name, "ShareLock") in modes}  # CREATE INDEX
        cursor.execute("SELECT pg_current_xact_id_if_assigned()::text::bigint")
        [own] = cursor.fetchone()
        if locked and own and any(self.written(cursor, name, f"= {own}") for name in self.large):
            self.locked |= locked

    def written(self, cursor: Any, name: str, transactions: str) -> bool:
        """Whether the file of a table is another one, or many of its rows are of certain transactions."""
        cursor.execute("SELECT relfilenode FROM pg_class WHERE oid = to_regclass(%s)", [name])
        if cursor.fetchone() != (self.large[name],):
            return True
        cursor.execute(f"SELECT count(*) >= {MANY // 2} FROM {name} WHERE xmin::text::bigint {transactions}")
        return bool(cursor.fetchone()[0])


def test_each_migration_rewrites_and_locks_only_what_its_plan_says(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock lasts for more than a moment when its transaction makes an index or writes many rows. The plan says so."""
    monkeypatch.setattr(online, "MEMORIES_AT_ONCE", 200)
    monkeypatch.setattr(online, "PAGES_AT_ONCE", 2)
    engine = first_release(empty)
    slow = set()
    for step in plan(empty).steps:
        settings = schema.config(empty)
        with engine.connect() as connection:
            large = {
                name: file
                for name, file in connection.execute(_TABLES).all()
                if connection.scalar(text(f"SELECT count(*) FROM {name}")) >= MANY
            }
            watch = Watch(large, connection.scalar(text("SELECT pg_current_xact_id()::text::bigint")))
            connection.rollback()
            settings.attributes["connection"] = connection
            event.listen(engine, "commit", watch)
            command.upgrade(settings, step.revision)
            event.remove(engine, "commit", watch)
            cursor = connection.connection.cursor()
            rewritten = {name for name in large if watch.written(cursor, name, f">= {watch.first}")}
        assert rewritten == set(step.rewrites), step
        assert watch.locked == step.locks.keys(), step
        if rewritten:
            slow.add(step.revision)
    engine.dispose()
    assert slow == {"0017", "0019", "0022"}


def test_readers_and_writers_go_on_while_a_large_table_is_changed(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade from the first release, in ranges of a few rows, beside a client that writes in short transactions."""
    monkeypatch.setattr(online, "MEMORIES_AT_ONCE", 50)
    monkeypatch.setattr(online, "PAGES_AT_ONCE", 1)
    engine = first_release(empty)
    between, real = [], online.commit

    def commit() -> None:
        real()
        number = MANY + 1 + len(between)
        with engine.begin() as client:  # in the migration's own thread: a lock that it still had would end the test
            client.execute(text("SET LOCAL lock_timeout = '2s'"))
            client.execute(
                text("INSERT INTO sessions (namespace_id, session_key, last_seq) VALUES (1, :n, 1)"), {"n": number}
            )
            client.execute(
                text(
                    "INSERT INTO memories (namespace_id, session_id, level, content, tokens, author, role, seq,"
                    " occurred_at, created_at, message_key) SELECT 1, id, 'raw', 'src/late_tea.py', 3, 'ann', 'user',"
                    " 1, now(), now(), session_key FROM sessions WHERE session_key = :n"
                ),
                {"n": str(number)},
            )
            client.execute(text("UPDATE memories SET content = 'milk' WHERE id = :id"), {"id": len(between) % MANY + 1})
            client.execute(text("DELETE FROM memories WHERE id = :id"), {"id": MANY - len(between)})
            between.append(number)

    monkeypatch.setattr(online, "commit", commit)
    schema.upgrade(empty)
    assert len(between) > 30
    database = Database(empty)
    assert upkeep.run(database).reworded
    database.dispose()
    with engine.begin() as connection:
        wrong = connection.execute(text(_INDEX_IS_WRONG)).all()
        unknown = connection.scalar(
            text("SELECT count(*) FROM memories WHERE standing IS NULL AND id <= :n"), {"n": MANY}
        )
        words = connection.scalars(
            text("SELECT tsv::text FROM memories WHERE content = 'src/late_tea.py' LIMIT 1")
        ).one()
    engine.dispose()
    assert (wrong, unknown) == ([], 0)
    assert "'late':" in words


def test_an_upgrade_that_ends_after_any_of_its_commits_goes_on(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "MEMORIES_AT_ONCE", 200)
    monkeypatch.setattr(online, "PAGES_AT_ONCE", 2)
    engine = first_release(empty)
    left, real = 0, online.commit

    def commit() -> None:
        nonlocal left
        real()
        left -= 1
        if left < 0:
            raise InterruptedError

    monkeypatch.setattr(online, "commit", commit)
    for attempt in range(100):
        left = attempt
        try:
            schema.upgrade(empty, "0030")
        except InterruptedError:
            continue
        break
    assert 8 < attempt < 99
    schema.upgrade(empty)
    database = Database(empty)
    assert upkeep.run(database).reworded == MANY
    database.dispose()
    with engine.begin() as connection:
        assert connection.execute(text(_INDEX_IS_WRONG)).all() == []
        standings = connection.execute(text("SELECT standing, count(*) FROM memories GROUP BY 1")).all()
        assert [tuple(row) for row in standings] == [(5, MANY)]
    engine.dispose()


# Postings that no memory has, and words of memories without a posting.
_INDEX_IS_WRONG = """
    WITH wanted AS (
        SELECT DISTINCT hashtextextended(word.lexeme, m.namespace_id) AS key, m.id AS memory_id, m.namespace_id
        FROM memories AS m CROSS JOIN LATERAL unnest(search_terms(m.content)) AS word
    )
    SELECT * FROM wanted FULL JOIN postings USING (key, memory_id)
    WHERE wanted.namespace_id IS NULL OR postings.namespace_id IS DISTINCT FROM wanted.namespace_id
"""


def test_every_migration_says_in_a_sentence_what_it_does() -> None:
    scripts = ScriptDirectory.from_config(schema.config("postgresql://nobody@127.0.0.1:1/none"))
    for script in scripts.walk_revisions():
        says = _step(script, 0).says
        assert says[-1] in ".:", says
        assert 20 < len(says) < 200, says
