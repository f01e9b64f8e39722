"""`nexus up`, `nexus down` and temporary workers, as processes with the real servers and the real Celery app."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import redis

from nexus_tasks import embedded
from nexus_tasks.cli.stack import commands, flower, lifetime
from nexus_tasks.errors import ConfigurationError, EmbeddedError
from nexus_tasks.file_locks import try_lock

CLI = (
    "import typer; from nexus_tasks.cli.stack import register;"
    "app = typer.Typer(pretty_exceptions_enable=False); register(app); app()"
)
TEMPORARY = """
import sys
from nexus_tasks.cli.stack import temporary_worker, worker_alive
from nexus_tasks.settings import load_settings
with temporary_worker(load_settings(), 2):
    print("alive" if worker_alive(5) else "dead", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="nx-"))
    yield base / "home"
    shutil.rmtree(base)


@pytest.fixture
def home(shared: Path) -> Iterator[Path]:
    """One home for all tests, its database made once; each test must leave it with nothing running."""
    yield shared
    try:
        eventually(lambda: not celery_processes(shared))
    finally:
        for process in celery_processes(shared):
            process.kill()
        embedded.stop(shared)
        shutil.rmtree(shared / "logs", ignore_errors=True)


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def celery_processes(home: Path, name: str = "") -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if "cli.stack" in line and name in line and process.environ().get("NEXUS_HOME") == str(home):
                found.append(process)
    return found


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NEXUS_", "FLOWER_", "CELERY_"))}
    return {**kept, "NEXUS_HOME": str(home), "NEXUS_MODEL": "offline", **more}


def nexus(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CLI, *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=environment(home, **more)
    )


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def get(url: str, user: str = "") -> str:
    asked = urllib.request.Request(url)
    if user:
        asked.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    with suppress(OSError), urllib.request.urlopen(asked, timeout=5) as answer:
        return str(answer.read().decode())
    return ""


def test_flower_has_a_user_that_stays_and_that_nobody_else_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FLOWER_BASIC_AUTH", "FLOWER_AUTH"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    given = flower.user_variables(home)
    assert re.fullmatch(r"nexus:.{32}", given["FLOWER_BASIC_AUTH"])
    assert flower.user_variables(home) == given
    assert stat.S_IMODE((home / "flower.env").stat().st_mode) == 0o600
    assert flower.user_variables(tmp_path / "other") != given
    monkeypatch.setenv("FLOWER_BASIC_AUTH", "me:mine")
    assert flower.user_variables(home) == {}


@pytest.mark.parametrize("text", ["", "FLOWER_COOKIE_SECRET=x\n", "FLOWER_BASIC_AUTH=\n", "\0\0\0"])
def test_flower_does_not_run_without_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for name in ("FLOWER_BASIC_AUTH", "FLOWER_AUTH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "flower.env").write_text(text)
    with pytest.raises(EmbeddedError, match="names no user"):
        flower.user_variables(tmp_path)


@pytest.mark.long
def test_detached_stack_heals_and_stops(home: Path) -> None:
    port = free_port()
    started = nexus(home, "up", "--detach", "--flower", "--concurrency", "2", FLOWER_PORT=port)
    assert started.returncode == 0, started.stderr
    assert f"http://127.0.0.1:{port}" in started.stdout
    assert read(home / "logs" / "worker.log").count("ready.") == 1
    pid = lifetime.supervisor_pid(home)
    assert f"pid {pid}" in started.stdout
    assert {process.pid for process in celery_processes(home, "stack.run")} == {pid}

    again = nexus(home, "up", "--detach")
    assert again.returncode == 1
    assert f"already runs (pid {pid})" in again.stderr
    assert "nexus down" in again.stderr

    page, user = f"http://127.0.0.1:{port}/broker", flower.user_variables(home)["FLOWER_BASIC_AUTH"]
    eventually(lambda: 'id="derive"' in get(page, user))
    assert "flower_" in get(f"http://127.0.0.1:{port}/metrics", user)
    for closed in (page, f"http://127.0.0.1:{port}/metrics"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(closed, timeout=5)

    before = embedded.running(home)
    assert before is not None
    with redis.Redis.from_url(before.redis_url) as client:
        os.kill(client.info("server")["process_id"], signal.SIGKILL)
    (worker,) = celery_processes(home, "worker")
    worker.kill()
    eventually(lambda: read(home / "logs" / "worker.log").count("ready.") == 2)
    assert [process.pid for process in celery_processes(home, "worker")] != [worker.pid]
    assert embedded.running(home) == before

    stopped = nexus(home, "down")
    assert stopped.stdout == "Stopped: worker and companions, Redis, Postgres.\n", stopped.stderr
    assert celery_processes(home) == []
    assert embedded.running(home) is None
    assert nexus(home, "down").stdout == "Nothing was running.\n"
    assert [path.name for path in home.iterdir() if path.name.startswith("beat-schedule")]


def foreground(home: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLI, "up", *arguments]
    process = subprocess.Popen(
        command,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("The stack runs"):
            return process
    process.wait()
    raise AssertionError("".join(lines))


@pytest.mark.long
def test_ctrl_c_leaves_nothing_behind(home: Path) -> None:
    with foreground(home) as process:
        assert len(celery_processes(home, "stack.child")) == 2
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert "worker | worker: Warm shutdown" in out
    assert celery_processes(home) == []
    assert embedded.running(home) is None


@pytest.mark.long
def test_servers_that_others_use_go_on(home: Path) -> None:
    found = embedded.ensure(home)
    with redis.Redis.from_url(found.redis_url) as client, foreground(home) as process:
        assert client.ping()
        process.terminate()
        out, _ = process.communicate(timeout=90)
        assert "another process uses them" in out
        assert client.ping()
    assert nexus(home, "down").stdout == "Stopped: Redis, Postgres.\n"


@pytest.mark.long
def test_killed_supervisor_takes_its_children_along(home: Path) -> None:
    assert nexus(home, "up", "--detach").returncode == 0
    pid = lifetime.supervisor_pid(home)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert nexus(home, "up", "--detach").returncode == 0, "it waits for the children of the killed one"
    assert len(celery_processes(home, "stack.child")) == 2
    assert lifetime.supervisor_pid(home) not in (None, pid)
    assert nexus(home, "down").stdout.startswith("Stopped: worker")


def test_a_stack_whose_home_is_gone_ends_and_makes_no_new_one() -> None:
    base = Path(tempfile.mkdtemp(prefix="nx-"))
    home, renamed = base / "home", base / "renamed"
    try:
        assert nexus(home, "up", "--detach").returncode == 0
        home.rename(renamed)
        eventually(lambda: not celery_processes(home))
        assert not (home / "postgres").exists(), "an empty database has taken the place of the memory"
        assert "was deleted or renamed" in read(renamed / "logs" / "stack.log")
        assert nexus(renamed, "up", "--detach").returncode == 0
        assert nexus(renamed, "down").stdout == "Stopped: worker and companions, Redis, Postgres.\n"
    finally:
        for process in celery_processes(home):
            process.kill()
        for one in (home, renamed):
            embedded.stop(one)
        shutil.rmtree(base)


@pytest.mark.long
def test_worker_that_cannot_start(home: Path) -> None:
    (home.parent / "broken_celery.py").write_text("raise RuntimeError('no such luck')\n")
    more = {"CELERY_CONFIG_MODULE": "broken_celery", "PYTHONPATH": str(home.parent)}
    failed = nexus(home, "up", "--detach", **more)
    assert failed.returncode == 1
    assert "no such luck" in failed.stderr
    assert "worker.log" in failed.stderr
    assert celery_processes(home) == []
    failed = nexus(home, "up", **more)
    assert failed.returncode == 1
    assert "worker | RuntimeError: no such luck" in failed.stdout
    assert celery_processes(home) == []
    assert embedded.running(home) is None


def test_pid_file_of_a_dead_stack_is_not_believed(home: Path) -> None:
    home.mkdir(exist_ok=True)
    with subprocess.Popen(["sleep", "60"]) as foreign:
        (home / "stack.pid").write_text(f"{foreign.pid}\n")
        assert nexus(home, "down").stdout == "Nothing was running.\n"
        assert foreign.poll() is None
        # The supervisor was killed, its children are still ending: its pid is no longer its own.
        held = lifetime.claim_children(home)
        threading.Timer(0.3, held.release).start()
        assert lifetime.end(home)
        assert foreign.poll() is None
        foreign.kill()


def test_a_process_that_has_the_pid_of_a_stack_elsewhere_is_not_ended(tmp_path: Path) -> None:
    """A stack in another container may share the home folder. Its pid is another process's here."""
    held = try_lock(tmp_path / "stack.pid")
    assert held is not None
    with subprocess.Popen(["sleep", "60"]) as foreign:
        held.write(f"{foreign.pid}\n")
        threading.Timer(0.5, held.release).start()
        assert lifetime.end(tmp_path)
        assert foreign.poll() is None
        foreign.kill()


@pytest.mark.long
def test_own_servers_are_neither_started_nor_stopped(home: Path) -> None:
    servers = embedded.ensure(home)
    urls = {"NEXUS_DATABASE_URL": servers.database_url, "NEXUS_REDIS_URL": servers.redis_url}
    other = home.parent / "other"
    started = nexus(other, "up", "--detach", **urls)
    assert started.returncode == 0, started.stderr
    assert nexus(other, "down", **urls).stdout == "Stopped: worker and companions.\n"
    assert not (other / "postgres").exists()
    assert embedded.running(home) == servers


# Ctrl-C is what `test_ctrl_c_during_a_wait_is_130_and_leaves_no_worker` presses.
@pytest.mark.parametrize("ending", [pytest.param("Ctrl-C", marks=pytest.mark.long), "kill -9"])
def test_temporary_worker(home: Path, ending: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TEMPORARY],
        env=environment(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "alive\n", process.stderr and process.stderr.read()
        (worker,) = celery_processes(home, "stack.child")
        if ending == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
        elif ending == "kill -9":
            process.kill()
        process.communicate(timeout=90)
        if ending != "kill -9":
            assert not worker.is_running(), "it was still there when the command had ended"
    eventually(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_flower_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("FLOWER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(ConfigurationError, match="FLOWER_PORT"):
            commands._flower_port()
    monkeypatch.setattr(commands, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"nexus-tasks\[flower\]"):
        commands._flower_port()
