"""``nexus doctor`` finds each of thirty planted faults and no other, and ends with the remedy that it prints.

The faults are planted on servers, a worker and a beat of the test's own, one after the other. The words in backticks of
a remedy are executed as they stand.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from nexus_tasks import Message, Nexus, embedded, reflect_namespace
from nexus_tasks.cli.checks import claims, workers
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.embedded.places import locate
from nexus_tasks.embedded.postgres import postgres_server
from nexus_tasks.embedded.redis import redis_server
from nexus_tasks.embedded.server import halt
from nexus_tasks.storage import schema
from tests.commandline import nexus
from tests.databases import durable, make_template
from tests.integration.jobkinds import ROOT, WITH_KINDS, play
from tests.sandbox import Sandbox, app, engine, eventually, sandbox

pytestmark = pytest.mark.long

Checks = Mapping[str, Mapping[str, Any]]


@dataclass
class Patient:
    """The deployment that the faults are planted in."""

    here: Sandbox
    home: Path
    stack: ExitStack
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def servers(self) -> ServerAddresses:
        return self.here.servers

    def set(self, **variables: str | None) -> None:
        """Set or unset environment variables of the commands from here on."""
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def sql(self, *statements: str) -> None:
        """Run statements in one session, as in psql."""
        address = self.here.database_url.replace("+psycopg", "")
        with psycopg.connect(address, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def redis(self, command: str) -> None:
        self.here.redis().execute_command(*command.split())

    def restart_postgres(self) -> None:
        self.stop_postgres()
        self.start_servers()

    def stop_postgres(self) -> None:
        places = locate(self.home)
        assert places is not None
        assert halt(postgres_server(places))

    def stop_redis(self) -> None:
        places = locate(self.home)
        assert places is not None
        assert halt(redis_server(places))

    def start_servers(self) -> None:
        embedded.ensure(self.home, announce=False)
        self.here.deployment.database.dispose()  # the next command is a new process, without old connections

    def stop_workers(self) -> None:
        for worker in self.here.workers:
            if worker.process.poll() is None:
                worker.stop()

    def celery(self, *words: str) -> None:
        """``celery -A nexus_tasks WORDS``, as a remedy says."""
        if words[0] == "worker":
            self.here.worker(*words[1:], concurrency=8)
            return
        command = [sys.executable, "-m", "celery", "-A", "nexus_tasks", *words]
        self.children.append(subprocess.Popen(command, env=self.here.environment, cwd=self.here.folder))

    def apply(self, remedy: str) -> int:
        """Do what the backticks of a remedy say. Returns how many commands they had."""
        done, statements = 0, []
        for command in re.findall(r"`([^`]+)`", remedy):
            words = shlex.split(command)
            match words[0]:
                case "nexus":
                    ran = nexus(*words[1:])
                    assert ran.returncode == 0, ran.stderr
                case "celery":
                    assert words[1:3] == ["-A", "nexus_tasks"], command
                    self.celery(*words[3:])
                case "chmod":
                    subprocess.run(words, check=True)
                case "unset":
                    self.set(**dict.fromkeys(words[1:]))
                case "ALTER" | "SELECT" | "SET":
                    statements.append(command)
                case "CONFIG" | "REPLICAOF" | "BGSAVE":
                    self.redis(command)
                case _:
                    continue
            done += 1
        if statements:
            self.sql(*statements)
        return done


@dataclass(frozen=True)
class Fault:
    """One fault: how it is planted, which checks may fail with it, and what ends it beside the remedy's commands."""

    check: str
    plant: Callable[[Patient], object]
    cure: Callable[[Patient, str], object] | None = None  # None: the commands of the remedy
    also: frozenset[str] = frozenset()  # checks that may fail as a consequence
    after: Callable[[Patient], object] = lambda _: None


def fault(check: str, plant: Callable[[Patient], object], *also: str, **options: Any) -> Fault:
    return Fault(check, plant, also=frozenset(also), **options)


def corrected(**variables: str | None) -> Callable[[Patient, str], object]:
    """The cure that sets variables, as the remedy says in words."""
    return lambda patient, _remedy: patient.set(**variables)


def price(patient: Patient, remedy: str) -> None:
    [row] = re.findall(r"NEXUS_PRICES='(.*?)'", remedy)
    patient.set(NEXUS_PRICES=re.sub("INPUT|OUTPUT|CACHE_WRITE|CACHE_READ", "1.5", row))


def crowd(patient: Patient) -> None:
    address = patient.here.database_url.replace("+psycopg", "")
    for _ in range(185):
        patient.stack.enter_context(psycopg.connect(address))


def fill_redis(patient: Patient) -> None:
    """Beside 20 MB, the memory that connections take and give back is nothing."""
    patient.redis("SETRANGE ballast 20000000 x")
    patient.redis(f"CONFIG SET maxmemory {int(patient.here.redis().info()['used_memory'] * 1.05)}")


def lose_folder(patient: Patient) -> None:
    folder = tempfile.mkdtemp(prefix="nexus-gone-")
    patient.redis(f"CONFIG SET dir {folder}")
    shutil.rmtree(folder)
    patient.redis("BGSAVE")
    eventually(lambda: patient.here.redis().info()["rdb_last_bgsave_status"] == "err")


def make_folder(patient: Patient, remedy: str) -> None:
    patient.redis(f"CONFIG SET dir {patient.home / 'redis'}")
    assert patient.apply(remedy) == 1
    eventually(lambda: patient.here.redis().info()["rdb_last_bgsave_status"] == "ok")


def send_nonsense(_: Patient) -> None:
    with app.connection_for_write() as connection, connection.Producer() as producer:
        producer.publish([[], {}, {}], serializer="json", routing_key="maintenance")
    eventually(lambda: engine.claims.redis.llen(f"{engine.claims.prefix}:quarantine"))


def buffer_an_old_message(patient: Patient) -> None:
    patient.stop_postgres()
    assert Nexus().ingest("acme", "chat", [Message(content="Hello there.")]).buffered
    patient.start_servers()
    for file in (patient.here.folder / "buffer").rglob("*"):
        os.utime(file, (time.time() - 7_200,) * 2)


def half_a_worker(patient: Patient) -> None:
    patient.stop_workers()
    patient.here.worker("--queues", "derive", concurrency=8)


def strange_job(_: Patient) -> None:
    play.delay(namespace="acme", name="unknown to the worker")
    eventually(engine.claims.not_understood)


def worker_that_knows(patient: Patient, remedy: str) -> None:
    assert "--include" in remedy
    patient.here.worker(*WITH_KINDS, **ROOT)
    eventually(lambda: not engine.claims.not_understood())


def clock_is_wrong(patient: Patient) -> None:
    right = time.time
    patient.stack.enter_context(patch("time.time", lambda: right() + 90.0))


def last_patch_ends(patient: Patient, remedy: str) -> None:
    assert "NTP" in remedy
    patient.stack.close()


FAULTS = (
    # --- settings and this machine
    fault("variable", lambda p: p.set(NEXUS_MODLE="offline"), cure=corrected(NEXUS_MODLE=None)),
    fault(
        "settings",
        lambda p: p.set(NEXUS_LEASE_SECONDS="long"),
        cure=corrected(NEXUS_LEASE_SECONDS=None),
    ),
    fault("home", lambda p: p.here.folder.chmod(0o777)),
    fault("model", lambda p: p.set(NEXUS_MODEL="anthropic"), cure=corrected(NEXUS_MODEL="offline")),
    fault(
        "prices",
        lambda p: p.set(
            NEXUS_MODEL="anthropic",
            ANTHROPIC_API_KEY="sk-ant-none",
            NEXUS_MODEL_DERIVE="claude-nova-9",
            NEXUS_BUDGET_USD_PER_DAY="1",
        ),
        cure=price,
        after=lambda p: p.set(
            NEXUS_MODEL="offline",
            ANTHROPIC_API_KEY=None,
            NEXUS_MODEL_DERIVE=None,
            NEXUS_BUDGET_USD_PER_DAY=None,
            NEXUS_PRICES=None,
        ),
    ),
    fault("embedder", lambda p: p.set(NEXUS_EMBEDDER="word2vec"), cure=corrected(NEXUS_EMBEDDER=None)),
    fault(
        "embedder",
        lambda p: p.set(
            NEXUS_EMBEDDER="openai-compatible", NEXUS_EMBEDDER_URL="http://127.0.0.1:1/v1", NEXUS_EMBEDDER_MODEL="none"
        ),
        cure=corrected(NEXUS_EMBEDDER=None, NEXUS_EMBEDDER_URL=None, NEXUS_EMBEDDER_MODEL=None),
    ),
    fault("clock", clock_is_wrong, cure=last_patch_ends),
    # --- Postgres
    fault("postgres", Patient.stop_postgres, cure=lambda p, _: p.start_servers()),
    fault("schema", lambda p: schema.downgrade(p.here.database_url, "0024")),
    fault(
        "row security",
        lambda p: (p.set(NEXUS_NAMESPACES="acme"), p.sql("DROP POLICY tenants ON memories")),
        after=lambda p: p.set(NEXUS_NAMESPACES=None),
    ),
    fault("row security", lambda p: p.sql("ALTER TABLE derivations DISABLE ROW LEVEL SECURITY")),
    fault("durability", lambda p: p.sql(f"ALTER DATABASE {p.here.database_name} SET synchronous_commit = off")),
    fault(
        "durability",
        lambda p: (p.sql("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"), time.sleep(0.3)),
    ),
    fault(
        "postgres writes",
        lambda p: p.sql(f"ALTER DATABASE {p.here.database_name} SET default_transaction_read_only = on"),
    ),
    fault("postgres connections", crowd, cure=lambda p, _: p.stack.close()),
    fault("pool", lambda p: p.set(NEXUS_DATABASE_POOL_SIZE="4")),
    fault(
        "connections",
        lambda p: (
            p.set(NEXUS_DATABASE_POOL_SIZE="100"),
            p.sql("ALTER SYSTEM SET max_connections = 60"),
            p.restart_postgres(),
        ),
        cure=lambda p, remedy: (p.apply(remedy), p.restart_postgres()),
        after=lambda p: p.set(NEXUS_DATABASE_POOL_SIZE=None),
    ),
    # --- Redis
    fault("redis", Patient.stop_redis, "broker", cure=lambda p, _: p.start_servers()),
    fault("redis eviction", lambda p: p.redis("CONFIG SET maxmemory-policy allkeys-lru")),
    fault("redis file", lambda p: p.redis("CONFIG SET appendonly no")),
    fault(
        "redis memory",
        fill_redis,
        after=lambda p: (p.redis("CONFIG SET maxmemory 0"), p.redis("DEL ballast")),
    ),
    fault("redis role", lambda p: p.redis("REPLICAOF 127.0.0.1 1"), "broker"),
    fault("redis disk", lose_folder, "broker", cure=make_folder),
    # --- jobs
    fault("identity", lambda p: p.here.redis().set(f"{p.here.name}:storage", "another")),
    fault("paused", lambda _: engine.claims.pause("digest_session", "The key is wrong.")),
    fault("quarantine", send_nonsense),
    fault("buffer", buffer_an_old_message),
    # --- workers
    fault("workers", Patient.stop_workers),
    fault("queues", half_a_worker),
    fault("strange jobs", strange_job, cure=worker_that_knows),
)


@pytest.fixture
def patient() -> Iterator[Patient]:
    """A deployment in order, but for beat, on servers of its own that lose nothing."""
    home = Path(tempfile.mkdtemp(prefix="nexus-patient-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home)
        servers = embedded.ensure(home, announce=False)
        stack.callback(embedded.stop, home)
        make_template(servers)
        stack.enter_context(durable(servers))
        made = Patient(stack.enter_context(sandbox(servers)), home, ExitStack())
        stack.callback(lambda: [child.kill() for child in made.children])
        stack.enter_context(made.stack)
        made.here.worker(concurrency=8)
        yield made


def failing(*options: str) -> dict[str, str]:
    """The checks that fail, with their remedies. The exit code and ``ok`` say the same."""
    ran = nexus("doctor", "--json", *options)
    document = json.loads(ran.stdout)
    assert "checks" in document, ran
    found = {one["name"]: one["remedy"] for one in document["checks"] if not one["ok"]}
    assert (ran.returncode, document["ok"]) == ((1, False) if found else (0, True))
    return found


@pytest.mark.timeout(600)
def test_each_fault_is_found_and_its_remedy_ends_it(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_ANSWER_SECONDS", 0.7)
    assert len(FAULTS) >= 20
    found = failing()
    assert set(found) == {"beat"}
    patient.apply(found["beat"])
    for one in FAULTS:
        one.plant(patient)
        found = failing()
        if one.check == "paused" and one.check not in found:
            one.plant(patient)  # a worker had just lifted the pause: it probes once a minute
            found = failing()
        found.pop("beat", None)
        # The loop ends at the first error: the fault stands, and every check from here on would see it.
        planted = one.check in found and not set(found) > {one.check} | one.also
        assert planted, f"{one.check} is planted, but these fail: {found}"
        if one.cure:
            one.cure(patient, found[one.check])
        else:
            assert patient.apply(found[one.check]), f"no command in: {found[one.check]}"
        deadline = time.monotonic() + 40.0  # a worker connects again, and Redis may load its file
        while (left := failing().keys() - {"beat"}) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left, f"{one.check} is not ended by: {found[one.check]} (left: {', '.join(left)})"
        one.after(patient)
    eventually(lambda: not failing("--canary"), why="beat does not tick")


# --- faults that need another process or another time -----------------------------------------------------------------
def test_jobs_that_no_worker_sweeps_are_found(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_STUCK_SECONDS", 0.5)
    Nexus().create_namespace("acme")
    reflect_namespace.apply_async(kwargs={"namespace": "acme"}, countdown=0.1)
    eventually(lambda: "stuck jobs" in failing())
    here.worker()
    eventually(lambda: "stuck jobs" not in failing())


def by_process(here: Sandbox, *within: str, **environment: str) -> dict[str, str]:
    """The failing checks, as a process of its own finds them."""
    command = [*within, sys.executable, "-m", "nexus_tasks.cli.main", "doctor", "--json"]
    env = {**here.environment, **environment}
    ran = subprocess.run(command, env=env, cwd=here.folder, capture_output=True, text=True, check=False)
    return {one["name"]: one["remedy"] for one in json.loads(ran.stdout)["checks"] if not one["ok"]}


def test_a_visibility_timeout_that_is_too_short_is_found(here: Sandbox) -> None:
    (here.folder / "short.py").write_text(
        "from nexus_tasks.config import *\n"
        "from nexus_tasks.config import __dir__, __getattr__, broker_transport_options as ours\n"
        "broker_transport_options = {**ours, 'visibility_timeout': 60}\n"
    )
    module = {"CELERY_CONFIG_MODULE": "short", "PYTHONPATH": str(here.folder)}
    assert "celeryconfig.py" in by_process(here, **module)["visibility timeout"]
    assert "visibility timeout" not in by_process(here)


def test_a_disk_that_is_nearly_full_is_found(here: Sandbox) -> None:
    """On a disk of 8 MB, which only the process sees."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    home = here.folder / "small"
    home.mkdir(mode=0o700)
    mounted = f'mount -t tmpfs -o size=8m,mode=0700 none {home}; {{}} exec "$@"'
    full, empty = mounted.format(f"head -c 8000000 /dev/zero > {home}/filler;"), mounted.format("")
    within = ("unshare", "--mount", "sh", "-c")
    assert "NEXUS_HOME" in by_process(here, *within, full, "sh", NEXUS_HOME=str(home))["disk"]
    assert "disk" not in by_process(here, *within, empty, "sh", NEXUS_HOME=str(home))
