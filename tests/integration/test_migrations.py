"""Migrations: from empty to exactly the models, and back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.storage import schema
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
    assert by["0023"].locks == {"memories": "readers and writers", "postings": "searches"}
    assert by["0023"].rewrites == ("memories", "postings")
    assert by["0023"].seconds > 60
    assert not by["0023"].old_workers
    assert by["0024"].locks == {}
    assert by["0024"].old_workers
    assert not found.old_workers
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
    " created_at, message_key) SELECT 1, n, 'raw', 'Tea number ' || n, 3, 'ann', 'user', 1, now(), now(), n"
    " FROM generate_series(1, {0}) AS n",
    "INSERT INTO derivations (namespace_id, memory_id, session_id, observer)"
    " SELECT 1, id, session_id, 'assistant' FROM memories",
)
STRONG = ("ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")  # others wait for these
_TABLES = text(
    "SELECT relname, relfilenode FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
)
_LOCKED = text(
    "SELECT DISTINCT relname FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
    " WHERE pid = pg_backend_pid() AND relkind = 'r' AND mode = ANY(:modes)"
)


def test_each_migration_rewrites_and_locks_only_what_its_plan_says(empty: str) -> None:
    """A lock that lasts for more than a moment is one of a migration that rewrites a table. Its plan names both."""
    schema.upgrade(empty, "0016")
    engine = create_engine(empty)
    with engine.begin() as connection:
        for statement in ROWS:
            connection.exec_driver_sql(statement.format(MANY))
    slow = set()
    for step in plan(empty).steps:
        settings = schema.config(empty)
        with engine.begin() as connection:
            settings.attributes["connection"] = connection
            large = {
                name: file
                for name, file in connection.execute(_TABLES).all()
                if connection.scalar(text(f"SELECT count(*) FROM {name}")) >= MANY
            }
            first = connection.scalar(text("SELECT pg_current_xact_id()::text::bigint"))
            command.upgrade(settings, step.revision)
            files = dict(map(tuple, connection.execute(_TABLES)))
            written = "SELECT count(*) >= 0.5 * :many FROM {} WHERE xmin::text::bigint >= :first"
            rewritten = {
                name
                for name, file in large.items()
                if files[name] != file or connection.scalar(text(written.format(name)), {"many": MANY, "first": first})
            }
            locked = set(connection.scalars(_LOCKED, {"modes": list(STRONG)})) & large.keys()
        assert rewritten == set(step.rewrites), step
        if rewritten:  # otherwise each lock is one of a moment, whatever the number of rows
            assert locked == step.locks.keys(), step
            slow.add(step.revision)
    engine.dispose()
    assert slow == {"0017", "0019", "0023"}


def test_every_migration_says_in_a_sentence_what_it_does() -> None:
    scripts = ScriptDirectory.from_config(schema.config("postgresql://nobody@127.0.0.1:1/none"))
    for script in scripts.walk_revisions():
        says = _step(script, 0).says
        assert says[-1] in ".:", says
        assert 20 < len(says) < 200, says
