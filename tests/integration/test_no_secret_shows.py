"""No password, and nothing that a user said, shows where it does not belong; no folder is open to other users."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from pydantic import SecretStr, ValidationError
from sqlalchemy import make_url, text
from sqlalchemy.exc import IntegrityError

from nexus_tasks import Nexus, embedded
from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.cli.stack import flower
from nexus_tasks.cli.stack.lifetime import claim
from nexus_tasks.cli.stack.processes import log_file
from nexus_tasks.deployment import Deployment, use
from nexus_tasks.embedded import places
from nexus_tasks.endpoints import endpoints_of
from nexus_tasks.settings import Settings, escape_password, mask_url
from nexus_tasks.transcripts import context_file
from tests.commandline import nexus
from tests.sandbox import Sandbox


@pytest.fixture
def new_home() -> Iterator[Path]:
    """A home that does not exist yet, with a path that is short enough for a socket."""
    base = Path(tempfile.mkdtemp(prefix="nx-"))
    yield base / "home"
    embedded.stop(base / "home")
    shutil.rmtree(base)


# Each holds the mark "SECRET" in its password, and the host cannot be reached.
UNESCAPED = [
    "p@SECRET",
    "p/SECRET",
    "p@a/b@SECRET",
    "p:SECRET",
    "p%SECRET",
    "p#@SECRET",
    "p?a=@SECRET",
    "p[SECRET",
    "@:/%SECRET",
]


@pytest.mark.parametrize("password", UNESCAPED)
def test_a_password_may_contain_what_ends_one(password: str) -> None:
    url = f"postgresql://nexus:{password}@127.0.0.1:1/db"
    escaped = escape_password(url)
    parsed = make_url(escaped)
    assert (parsed.username, parsed.password, parsed.host, parsed.port) == ("nexus", password, "127.0.0.1", 1)
    assert escape_password(escaped) == escaped
    assert mask_url(url) == mask_url(escaped) == "postgresql://nexus:***@127.0.0.1:1/db"
    pool = redis.ConnectionPool.from_url(escape_password(f"redis://:{password}@127.0.0.1:1/0"))
    assert (pool.connection_kwargs["password"], pool.connection_kwargs["host"]) == (password, "127.0.0.1")


@pytest.mark.parametrize(
    "url",
    [
        "unix:///tmp/a@b.sock?db=0",
        "postgresql://nexus@/nexus?host=/x@y",
        "postgresql://one:1,two:2/db?user=a@b",
        "redis://[::1]/0?username=a@b",
        "postgresql://nexus:p%40s@host/db",
        "malformed",
    ],
)
def test_a_well_formed_url_stays(url: str) -> None:
    assert escape_password(url) == url


def test_neither_settings_nor_their_errors_show_a_password() -> None:
    secret = f"S{'ecret'}1"
    url = f"postgresql://me:p@{secret}@host/x"
    settings = Settings(
        database_url=SecretStr(url),
        redis_url=SecretStr(f"redis://:{secret}@host"),
        embedder_url=f"https://me:{secret}@host/v1",
        anthropic_base_url=f"https://me:{secret}@host",
        mcp_token=SecretStr(secret),
    )
    assert secret not in f"{settings!r} {settings} {endpoints_of(settings)!r}"
    assert "https://me:***@host/v1" in repr(settings)
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"database_url": [url], "lease_seconds": secret})
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("database", "broker"),
    [
        ("host=127.0.0.1 port=1 user=me password=SECRET dbname=x", "redis:/:SECRET@127.0.0.1:1"),
        ("me:SECRET@127.0.0.1/x", "SECRET@127.0.0.1"),
    ],
)
def test_the_check_shows_no_address_that_is_no_url(
    database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"HOME": str(tmp_path), "MODEL": "offline", "DATABASE_URL": database, "REDIS_URL": broker}
    for name, value in given.items():
        monkeypatch.setenv(f"NEXUS_{name}", value)
    for options in ((), ("--json",)):
        told = nexus("doctor", *options)
        assert told.returncode == 1
        assert "SECRET" not in told.stdout + told.stderr


@pytest.mark.parametrize(
    "command", [("doctor",), ("doctor", "--json"), ("status",), ("search", "x", "--namespace", "a")]
)
@pytest.mark.parametrize("password", ["p@SECRET", "p/a@SECRET"])
def test_no_command_prints_a_part_of_a_password(
    command: tuple[str, ...], password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))
    monkeypatch.setenv("NEXUS_MODEL", "offline")
    monkeypatch.setenv("NEXUS_DATABASE_URL", f"postgresql://nexus:{password}@127.0.0.1:1/db")
    monkeypatch.setenv("NEXUS_REDIS_URL", f"redis://:{password}@127.0.0.1:1/0")
    with use(Deployment()):
        ran = nexus(*command)
    assert ran.returncode == 1
    assert "SECRET" not in ran.stdout + ran.stderr


def test_the_log_of_postgres_holds_no_content(new_home: Path) -> None:
    endpoints = embedded.ensure(new_home)
    with psycopg.connect(endpoints.database_url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE told (content text UNIQUE, number int)")
        connection.execute("INSERT INTO told VALUES ('a private thing', 1)")
        connection.commit()
        for statement in (
            "INSERT INTO told VALUES ('a private thing', 2)",
            "INSERT INTO told VALUES ('a', 'a private thing')",
            "SELECT 'a private thing' FROM nowhere",
        ):
            with pytest.raises(psycopg.Error):
                connection.execute(statement)
            connection.rollback()
    said = (new_home / "logs" / "postgres.log").read_text()
    assert "private" not in said
    assert "ready to accept connections" in said


HOME_MAKERS: list[Callable[[Path], object]] = [
    lambda home: SessionBuffer(str(home / "buffer")).append("a", "s", "text"),
    lambda home: context_file.take(str(home), "a"),
    lambda home: log_file(home, "worker"),
    lambda home: claim(home).release(),
    flower.user_variables,
    places.prepare_home,
]


def test_home_is_closed_whoever_makes_it_first_and_stays_as_it_was(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for number, make in enumerate(HOME_MAKERS):
            home = tmp_path / f"new{number}" / "nexus"
            make(home)
            folders = [home.parent, home, *(path for path in home.rglob("*") if path.is_dir())]
            assert {stat.S_IMODE(path.stat().st_mode) & ~0o010 for path in folders} == {0o700}, number
            old = tmp_path / f"old{number}"
            old.mkdir(mode=0o755)
            make(old)
            assert stat.S_IMODE(old.stat().st_mode) == 0o755, number
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "wrong",
    [
        "INSERT INTO memories (namespace_id, session_id, level, content) SELECT id, NULL, NULL, 'SECRET'"
        " FROM namespaces",
        "INSERT INTO namespaces (name) SELECT name FROM namespaces",
    ],
)
def test_an_error_of_a_statement_quotes_no_row(here: Sandbox, wrong: str) -> None:
    """Its text and its traceback go into the worker's log, the dead letter and the claim."""
    Nexus().create_namespace("SECRET")
    with pytest.raises(IntegrityError) as caught, here.deployment.database.transaction() as tx:
        tx.execute(text(wrong))
    shown = "".join(traceback.format_exception(caught.value)).replace(wrong, "")
    assert "SECRET" not in shown
    assert "violates" in str(caught.value)
