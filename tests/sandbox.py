"""One test's own nexus-tasks: a database, a key prefix, and workers as real processes, on the run's shared servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import redis
from sqlalchemy import text

from nexus_tasks.deployment import Deployment, default_deployment, use
from nexus_tasks.embedded import ServerAddresses
from tests import databases, rabbitmq

T = TypeVar("T")


class Current:
    """Stands for an object of the test's own deployment; pytest, which inspects modules, makes none."""

    def __init__(self, get: Callable[[], Any]) -> None:
        self._get = get

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        assert os.environ.get("NEXUS_KEY_PREFIX"), "this test has no sandbox: it must use the fixture `here`"
        return getattr(self._get(), name)


app: Any = Current(lambda: default_deployment().app)  # its Celery application
engine: Any = Current(lambda: default_deployment().engine)


def eventually(look: Callable[[], T], *, within: float = 90.0, why: str = "") -> T:
    """Look until something true comes back, and return it; fail after ``within`` seconds."""
    deadline = time.monotonic() + within
    pause = 0.01
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, why or f"not within {within} s; last seen: {found!r}"
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


@dataclass
class Worker:
    """A Celery worker process of a deployment."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """A warm shutdown, as an operator does it; killed when it takes more than a minute."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")


@dataclass
class Sandbox:
    """One test's own deployment, and the environment of every process that the test starts."""

    deployment: Deployment
    servers: ServerAddresses
    name: str
    environment: dict[str, str]
    folder: Path
    workers: list[Worker] = field(default_factory=list)

    @property
    def database_url(self) -> str:
        """The test's own database."""
        return self.environment["NEXUS_DATABASE_URL"]

    @property
    def database_name(self) -> str:
        """The name of that database."""
        return self.database_url.partition("?")[0].rpartition("/")[2]

    @contextmanager
    def another(self) -> Iterator[Deployment]:
        """Another deployment, of the environment as it is now, and the default one meanwhile."""
        other = Deployment()
        try:
            with use(other):
                yield other
        finally:
            other.close()

    def sql(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Rows of a statement, past the product's own code."""
        with self.deployment.database.transaction() as tx:
            result = tx.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def redis(self) -> redis.Redis:
        """A client to the run's Redis, past the product's own code."""
        return redis.Redis.from_url(self.servers.redis_url, decode_responses=True)

    def flush(self) -> None:
        """Delete every key of this deployment in one step, as FLUSHALL would on a Redis of its own.

        One by one, a claim that is renewed meanwhile would go without the counter that it is counted in.
        """
        every = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('UNLINK', key) end"
        client = redis.Redis.from_url(self.servers.redis_url, socket_timeout=60)  # 100,000 claims take seconds
        client.eval(every, 0, f"{self.name}:*")

    def worker(
        self,
        *options: str,
        concurrency: int = 8,
        pool: str = "threads",
        app: str = "nexus_tasks",
        within: Sequence[str] = (),
        **environment: str,
    ) -> Worker:
        """Start a worker and wait until it consumes; it is stopped at the test's end.

        ``within`` is a command that starts the worker, such as `unshare`.
        """
        log = self.folder / f"worker-{len(self.workers)}.log"
        name = f"w{len(self.workers)}-{uuid.uuid4().hex[:6]}@{self.name}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *within,
                    *(sys.executable, "-m", "celery", "-A", app, "worker", "--hostname", name),
                    # A search for other workers would delay the start by 1 s.
                    *("--loglevel", "INFO", "--pool", pool, "--concurrency", str(concurrency), "--without-mingle"),
                    *options,
                ],
                env={**self.environment, **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        worker = Worker(process, log)
        self.workers.append(worker)
        eventually(
            lambda: process.poll() is not None or " ready." in worker.text(), within=120, why="it does not start"
        )
        assert process.poll() is None, worker.text()
        return worker

    def beat(self, **environment: str) -> Worker:
        """Start a beat, and wait until it has sent its first tick; it is stopped at the test's end."""
        log = self.folder / f"beat-{len(self.workers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "nexus_tasks", "beat", "--loglevel", "INFO"),
                    *("--schedule", f"{log}.schedule", "--pidfile", ""),
                ],
                env={**self.environment, **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        beat = Worker(process, log)
        self.workers.append(beat)
        eventually(lambda: process.poll() is not None or "dream_due" in beat.text(), within=120)
        assert process.poll() is None, beat.text()
        return beat

    def close(self) -> None:
        """End what the test started."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()
        self.flush()


@contextmanager
def sandbox(servers: ServerAddresses, **settings: str) -> Iterator[Sandbox]:
    """A fresh deployment, the default one of this process meanwhile."""
    name = f"t{uuid.uuid4().hex[:12]}"
    database = databases.take(servers)
    ours = {
        "NEXUS_DATABASE_URL": databases.url(servers, database),
        "NEXUS_REDIS_URL": servers.redis_url,
        "NEXUS_KEY_PREFIX": name,
        "NEXUS_MODEL": "offline",
        **settings,
    }
    node = os.environ.get("TEST_RABBITMQ")
    if node:
        ours.setdefault("NEXUS_BROKER_URL", rabbitmq.make_vhost(node, name))
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("NEXUS_", "ANTHROPIC_", "OPENAI_", "AZURE_OPENAI_", "CELERY_"))
    }
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="nexus-test-") as folder:
        ours["NEXUS_HOME"] = folder
        os.environ.clear()
        os.environ.update(kept | ours)
        made = Sandbox(
            deployment=Deployment(),
            servers=servers,
            name=name,
            environment=dict(os.environ),
            folder=Path(folder),
        )
        try:
            with use(made.deployment):
                yield made
                made.close()
        finally:
            made.deployment.close()
            os.environ.clear()
            os.environ.update(before)
            databases.give_back(servers, database)
            if node:
                rabbitmq.drop_vhost(node, name)
