"""The servers and workers that the chaos benchmark disturbs: two Redis servers, proxies, and a fleet of workers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import redis

from nexus_tasks.embedded.redis import executable
from tests.sandbox import Sandbox
from tests.silence import Proxy, proxy

ROOT = Path(__file__).parents[1]
POOLS = ("threads", "processes")
CONFIG = {"CELERY_CONFIG_MODULE": "benchmarks.chaos_config"}
CLOCK_STEP = 20  # seconds by which the second Redis server's clock is behind, where libfaketime is installed


@dataclass
class RedisPair:
    """A Redis server and its replica, behind one address. The address can be moved to the replica, which lags."""

    folder: Path
    ports: list[int] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    master: int = 0  # index of the server behind the address
    clocks_differ: bool = False

    def start(self, n: int, port: int) -> None:
        """Start a server with a unix socket and a port."""
        environment, preload = dict(os.environ), _faketime()
        if n == 1 and preload:
            environment |= {"LD_PRELOAD": preload, "FAKETIME": f"-{CLOCK_STEP}s"}
            self.clocks_differ = True
        command = [
            *(executable(), "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket(n))),
            *("--dir", str(self.folder), "--dbfilename", f"{n}.rdb", "--save", "", "--maxmemory-policy", "noeviction"),
            *("--repl-diskless-sync-delay", "0"),
        ]
        with (self.folder / f"redis-{n}.log").open("wb") as log:
            self.processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        self.ports.append(port)
        until = time.monotonic() + 30
        while True:
            with suppress(redis.RedisError, OSError):
                self.client(n).ping()
                return
            if time.monotonic() > until:
                raise RuntimeError((self.folder / f"redis-{n}.log").read_text())
            time.sleep(0.05)

    def socket(self, n: int) -> Path:
        """The unix socket of a server."""
        return self.folder / f"redis-{n}.sock"

    def client(self, n: int | None = None) -> redis.Redis:
        """A client that connects past the proxy to server ``n``, by default to the server behind the address."""
        at = self.master if n is None else n
        return redis.Redis(unix_socket_path=str(self.socket(at)), decode_responses=True, socket_timeout=10)

    def fail_over(self, wire: Proxy, lag: float) -> None:
        """Stop the replication, and after ``lag`` seconds move the address to the replica.

        Writes of these seconds are lost.
        """
        old, new = self.master, 1 - self.master
        self.client(new).replicaof("NO", "ONE")
        time.sleep(lag)
        wire.target = self.socket(new)
        self.master = new
        wire.cut()
        self.client(old).replicaof("127.0.0.1", str(self.ports[new]))


def _faketime() -> str:
    found = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), *Path("/usr/lib").glob("faketime/libfaketimeMT*")]
    return str(found[0]) if found else ""


@contextmanager
def redis_pair(folder: Path, ports: tuple[int, int]) -> Iterator[RedisPair]:
    """Start both servers, and stop them at the end of the block."""
    pair = RedisPair(folder)
    try:
        for n, port in enumerate(ports):
            pair.start(n, port)
        pair.client(1).replicaof("127.0.0.1", str(ports[0]))
        yield pair
    finally:
        for process in pair.processes:
            process.kill()
            process.wait()


@dataclass
class Fleet:
    """Workers of both pools, some of them of an earlier commit. A worker that ends is replaced."""

    here: Sandbox
    environment: dict[str, str]
    log: Path
    old: Path | None  # a work tree of an earlier commit
    alive: list[tuple[subprocess.Popen[bytes], str]] = field(default_factory=list)  # each with its flavour
    exits: int = 0  # workers that ended by themselves

    def start(self, flavour: str) -> None:
        """Start a worker. ``flavour`` is its pool, followed by ``old`` for a worker of the earlier commit."""
        pool, _, age = flavour.partition(" ")
        home, environment = (self.old, self.environment) if age and self.old else (ROOT, self.environment | CONFIG)
        command = [sys.executable, "-m", "celery", "-A", "nexus_tasks", "worker", "--loglevel", "INFO", "--pool", pool]
        with self.log.open("ab") as output:
            worker = subprocess.Popen(
                [*command, "--concurrency", "4", "--hostname", f"c{time.time_ns()}@chaos"],
                env={**environment, "PYTHONPATH": str(home)},
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.alive.append((worker, flavour))

    def pick(self, dice: random.Random) -> tuple[subprocess.Popen[bytes], str]:
        """A random worker."""
        return dice.choice(self.alive)

    def kill(self, victim: tuple[subprocess.Popen[bytes], str]) -> None:
        """SIGKILL a worker with its children, and start another one."""
        self.alive.remove(victim)
        _signal(victim[0], signal.SIGKILL)
        victim[0].wait()
        self.start(victim[1])

    def replace_dead(self) -> None:
        """Replace each worker that has ended by itself."""
        for worker in [one for one in self.alive if one[0].poll() is not None]:
            self.exits += 1
            self.kill(worker)

    def end_rollout(self) -> None:
        """Kill the workers of the earlier commit for good. They drop every message of a kind that they do not know."""
        for victim in [one for one in self.alive if one[1].endswith(" old")]:
            self.alive.remove(victim)
            _signal(victim[0], signal.SIGKILL)
            victim[0].wait()

    def close(self) -> None:
        """Kill all workers."""
        for worker, _ in self.alive:
            _signal(worker, signal.SIGKILL)
            worker.wait()
        self.alive.clear()


def _signal(worker: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, number)


def freeze(worker: subprocess.Popen[bytes]) -> None:
    """SIGSTOP a worker with its children."""
    _signal(worker, signal.SIGSTOP)


def thaw(worker: subprocess.Popen[bytes]) -> None:
    """SIGCONT a worker with its children."""
    _signal(worker, signal.SIGCONT)


@contextmanager
def earlier_commit(folder: Path, commit: str) -> Iterator[Path | None]:
    """A work tree of ``commit``; ``None`` when the name is empty or this clone lacks the commit."""
    home = folder / "before"
    git = ("git", "-C", str(ROOT), "worktree")
    add = [*git, "add", "--detach", str(home), commit]
    made = commit and subprocess.run(add, capture_output=True, check=False).returncode == 0
    try:
        yield home if made else None
    finally:
        if made:
            subprocess.run([*git, "remove", "--force", str(home)], capture_output=True, check=False)
            shutil.rmtree(home, ignore_errors=True)


@dataclass
class World:
    """Everything that a fault can hit."""

    here: Sandbox
    pair: RedisPair
    redis: Proxy
    postgres: Proxy
    fleet: Fleet


@contextmanager
def world(here: Sandbox, pair: RedisPair, wire: Proxy, old: Path | None, log: Path) -> Iterator[World]:
    """The servers and a fleet without workers yet. Its workers will reach Redis and Postgres through proxies.

    A proxy can cut connections or make them silent.
    """
    with ExitStack() as stack:
        folder = Path(parse_qs(urlsplit(here.database_url).query)["host"][0])
        postgres = stack.enter_context(proxy(folder / ".s.PGSQL.5432"))
        environment = {
            **here.environment,
            "NEXUS_DATABASE_URL": f"postgresql+psycopg://nexus@127.0.0.1:{postgres.port}/{here.database_name}",
        }
        fleet = Fleet(here, environment, log, old)
        stack.callback(fleet.close)
        yield World(here, pair, wire, postgres, fleet)
