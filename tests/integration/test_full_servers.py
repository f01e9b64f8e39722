"""Servers that can be reached and take no writes: Redis at its memory limit, Postgres on a full disk."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from nexus_tasks import Message, Nexus, embedded
from nexus_tasks.cli.checks.examine import examine
from nexus_tasks.cognition import derive
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.errors import NexusError, QueueUnavailable, StorageUnavailable
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.kind import JobKind
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.services import access
from nexus_tasks.storage import webhooks
from tests import sentinel
from tests.databases import administer, make_template
from tests.integration import inline
from tests.integration.http_client import api, as_token, ok
from tests.integration.jobkinds import ROOT, WITH_KINDS, attempts, go, play
from tests.sandbox import Sandbox, engine, eventually, sandbox
from tests.silence import proxy

POOLS = [pytest.param(("threads", 4), id="threads"), pytest.param(("processes", 2), id="prefork")]


@pytest.fixture
def own_servers() -> Iterator[Path]:
    """Servers on a disk of their own, which a test may fill."""
    if os.geteuid() != 0:
        pytest.skip("a disk of its own takes root")
    home = Path(tempfile.mkdtemp(prefix="nexus-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=500m", "tmpfs", str(home)], check=False, capture_output=True
    )
    if mounted.returncode:
        shutil.rmtree(home)
        pytest.skip("this root may mount nothing")
    try:
        make_template(embedded.ensure(home / "home"))
        yield home / "home"
    finally:
        embedded.stop(home / "home")
        subprocess.run(["umount", "--lazy", str(home)], check=True)
        shutil.rmtree(home, ignore_errors=True)


class Disk:
    """The disk of ``own_servers``."""

    def __init__(self, home: Path) -> None:
        self._ballast = home.parent / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(65_536))
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(512))

    def free(self) -> None:
        self._ballast.unlink()


def postgres_disk() -> dict[str, Any]:
    """What `nexus doctor` says of the disk of Postgres."""
    return next(check for check in examine(canary=False)["checks"] if check["name"] == "postgres disk")


def test_storage_does_not_answer_while_its_disk_is_full(own_servers: Path) -> None:
    """Postgres still connects and reads. Without a trial write, jobs would begin, fail and wait again and again."""
    with sandbox(embedded.ensure(own_servers)) as here:
        disk = Disk(own_servers)
        assert engine.storage.answers()
        assert postgres_disk()["ok"]
        disk.fill()
        assert here.sql("SELECT count(*) FROM namespaces") == [(0,)], "reading works"
        assert not engine.storage.answers()
        told = postgres_disk()
        assert not told["ok"]
        assert "No space left on device" in told["found"]
        assert told["remedy"].startswith("Free space on the database server's disk")
        disk.free()
        eventually(engine.storage.answers, within=20)
        assert here.sql("SELECT count(*) FROM namespaces") == [(0,)], "the trial write leaves no row"


@contextmanager
def database_with(here: Sandbox, setting: str, value: str) -> Iterator[None]:
    """Let new connections to the database have a setting. The user of a database may have such settings too."""
    here.sql(f"ALTER DATABASE \"{here.database_name}\" SET {setting} = '{value}'")
    here.deployment.database.dispose()  # a new connection reads the setting
    try:
        yield
    finally:
        with here.deployment.database.dedicated_connection() as connection:
            connection.exec_driver_sql("SET default_transaction_read_only = off")
            connection.exec_driver_sql(f'ALTER DATABASE "{here.database_name}" RESET {setting}')
        here.deployment.database.dispose()


def test_storage_does_not_answer_while_postgres_only_reads(here: Sandbox) -> None:
    """As after a failover to a replica."""
    assert engine.storage.answers()
    with database_with(here, "default_transaction_read_only", "on"):
        assert here.sql("SELECT count(*) FROM namespaces") == [(0,)], "reading works"
        assert not engine.storage.answers()
    assert engine.storage.answers()


def test_a_process_connects_anew_when_postgres_takes_no_writes(here: Sandbox) -> None:
    """Connections to a former primary stay open behind a proxy. Before, a process used them for half an hour."""
    nexus = Nexus(here.deployment)
    nexus.ingest("acme", "shop", [Message(content="It opens in June.", author="ann", id="before")])
    with database_with(here, "default_transaction_read_only", "on"):
        assert nexus.ingest("acme", "shop", [Message(content="It opens in July.", author="ann", id="during")]).buffered
        administer(here.servers, f'ALTER DATABASE "{here.database_name}" RESET default_transaction_read_only')
        after = Message(content="It opens in May.", author="ann", id="after")
        eventually(lambda: not nexus.ingest("acme", "shop", [after]).buffered, within=20)
        assert here.sql("SELECT external_id FROM memories ORDER BY seq") == [("before",), ("during",), ("after",)]


def test_connections_in_use_are_replaced_after_a_refused_write(here: Sandbox) -> None:
    """Before, each stayed open until Python's garbage collector found it, and with many requests none was left."""
    database, session = here.deployment.database, text("SELECT pg_backend_pid()")

    def sessions(look: Callable[[], object]) -> set[int]:
        with ExitStack() as in_use:
            used = [in_use.enter_context(database.reading()) for _ in range(3)]
            found = {tx.execute(session).scalar_one() for tx in used}
            look()
            return found

    with database_with(here, "default_transaction_read_only", "on"):
        gc.disable()
        try:
            old = sessions(engine.storage.answers)
            assert old.isdisjoint(sessions(lambda: None))
            left = f"SELECT 1 FROM pg_stat_activity WHERE pid IN ({', '.join(map(str, old))})"
            eventually(lambda: here.sql(left) == [], within=20)
        finally:
            gc.enable()


def test_a_row_that_a_server_without_writes_refuses_is_an_outage(here: Sandbox) -> None:
    with database_with(here, "default_transaction_read_only", "on"):
        for namespace_id in (1, 2):  # within 5 s of the first refusal, connections are not replaced again
            with pytest.raises(StorageUnavailable, match="read-only"), here.deployment.database.transaction() as tx:
                webhooks.create(tx, namespace_id, "https://example.com/told", ["dream.closed"])


def test_a_process_that_serves_from_a_standby_keeps_its_connections(here: Sandbox) -> None:
    with database_with(here, "default_transaction_read_only", "on"):
        sessions = set()
        for _ in range(10):
            assert not engine.storage.answers()
            sessions |= set(here.sql("SELECT pg_backend_pid()"))
        assert len(sessions) <= 2


def test_tokens_open_a_postgres_that_only_reads(here: Sandbox) -> None:
    """As a standby, or a server whose disk is full. Their uses are written afterwards."""
    nexus = Nexus(here.deployment)
    inline.say("I moved to Lisbon.", namespace="acme")
    made, other = (nexus.create_token("acme", name) for name in ("agent", "other"))
    gone = nexus.create_token("acme", "gone")
    nexus.revoke_token("acme", gone.id)
    with api(here, made.token) as client:
        with database_with(here, "default_transaction_read_only", "on"):
            found = ok(client.post("/v1/search", json={"namespace": "acme", "query": "Lisbon"}))
            assert "Lisbon" in str(found)
            assert client.get("/v1/status", headers=as_token(gone.token)).status_code == 401
            assert client.post("/v1/memories", json={"namespace": "acme", "text": "x"}).status_code == 403
        assert nexus.audit("acme", action="token.use") == []
        ok(client.get("/v1/status", headers=as_token(other.token)))
    assert sorted(one.token_name or "" for one in nexus.audit("acme", action="token.use")) == ["agent", "other"]


def test_a_request_writes_few_of_the_uses_that_postgres_did_not_take(here: Sandbox) -> None:
    """Otherwise each request after an outage writes the uses of thousands of tokens, and so do those beside it."""
    nexus, made = Nexus(here.deployment), 2 * access.KEPT_USES_AT_ONCE + 10
    nexus.create_namespace("acme")
    given = [nexus.create_token("acme", f"agent-{number}").token for number in range(made)]
    checker = access.TokenChecker(here.deployment)
    noted = "SELECT count(*) FROM tokens WHERE last_used_at IS NOT NULL"
    with database_with(here, "default_transaction_read_only", "on"):
        assert not any(checker.check(one).refusal for one in given)
        assert here.sql(noted) == [(0,)]
    written = []
    for number in range(3):
        checker.check(nexus.create_token("acme", f"later-{number}").token)
        written += here.sql(noted)
    assert [count for (count,) in written] == [access.KEPT_USES_AT_ONCE + 1, made - 10 + 2, made + 3]


def test_work_on_whole_tables_has_no_timeout_for_statements(here: Sandbox) -> None:
    """Otherwise upkeep would begin the index of a large namespace again and again, and never end it."""
    with database_with(here, "statement_timeout", "300ms"):
        with pytest.raises(StorageUnavailable, match="statement timeout"):
            here.sql("SELECT pg_sleep(20)")
        with here.deployment.database.dedicated_connection() as connection:
            connection.exec_driver_sql("SELECT pg_sleep(0.6)")


def test_a_statement_that_takes_too_long_holds_up_no_other_job(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, no job of any namespace began until Postgres was tested again, which took up to 30 s."""
    tripped: list[object] = []
    monkeypatch.setattr(engine.breaker, "trip", tripped.append)
    inline.say("I drink green tea.")

    def slow(*_: object, **__: object) -> None:
        here.sql("SET LOCAL statement_timeout = 50; SELECT pg_sleep(20)")

    monkeypatch.setattr(derive, "plan_derivation", slow)
    inline.work("derive_memory")
    [claim] = inline.waiting()
    assert (claim.wait_reason, claim.wait_detail) == ("retry", "StorageUnavailable")
    wanted, looked = engine.storage.wanted, list[str]()

    def slow_for_one(kind: JobKind, after: int, limit: int) -> Any:
        if kind.name == "derive_memory":
            slow()
        looked.append(kind.name)
        return wanted(kind, after, limit)

    monkeypatch.setattr(engine.storage, "wanted", slow_for_one)
    Reconciler(engine).round()
    assert {"digest_session", "reflect_perspective", "finish_dream"} <= set(looked)

    newest = engine.storage.newest

    def slow_newest(kind: JobKind, most: int) -> Any:
        if kind.name == "derive_memory":
            slow()
        return newest(kind, most)

    looked.clear()
    monkeypatch.setattr(engine.storage, "newest", slow_newest)
    engine.claims.move_cursor("derive_memory", 7)
    Reconciler(engine).round()
    assert {"digest_session", "reflect_perspective", "finish_dream"} <= set(looked)
    assert engine.claims.cursor("derive_memory") == 7, "the rows behind the slow page are read in the next round"
    assert tripped == []


@pytest.mark.parametrize(
    ("setting", "refusing", "usual", "remedy"),
    [
        ("maxmemory", "1", "0", "maxmemory"),
        ("min-replicas-to-write", "1", "0", "min-replicas-to-write"),
        ("replicaof", "127.0.0.1 1", "NO ONE", "primary"),
    ],
)
def test_a_redis_that_takes_no_writes_is_told_with_what_helps(
    own_servers: Path, setting: str, refusing: str, usual: str, remedy: str
) -> None:
    with sandbox(embedded.ensure(own_servers)) as here:
        change: Any = here.redis().replicaof if setting == "replicaof" else partial(here.redis().config_set, setting)
        change(*refusing.split())
        try:
            with pytest.raises(QueueUnavailable, match="takes no writes") as refused:
                play.delay(name="refused")
        finally:
            change(*usual.split())
        assert remedy in refused.value.remedy
        assert play.delay(name="taken").id


@pytest.mark.parametrize(("denied", "said"), [("-evalsha", "no permissions"), ("-set", "permission|can't run")])
def test_a_user_of_redis_without_a_right_is_told_with_what_helps(own_servers: Path, denied: str, said: str) -> None:
    with sandbox(embedded.ensure(own_servers)) as here:
        rights = ["+@all", denied]
        here.redis().acl_setuser("poor", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=rights)
        claims = Claims(here.servers.redis_url.replace("unix://", "unix://poor@"), here.name)
        with pytest.raises(QueueUnavailable, match=said) as refused:
            claims.set_cap("acme", 1)
        assert "redis-users.acl" in refused.value.remedy


def test_a_replica_that_has_lost_its_primary_is_told_with_what_helps(own_servers: Path) -> None:
    with sandbox(embedded.ensure(own_servers)) as here:
        client = here.redis()
        client.config_set("replica-serve-stale-data", "no")
        client.replicaof("127.0.0.1", "1")
        try:
            with pytest.raises(QueueUnavailable) as refused:
                play.delay(name="refused")
        finally:
            client.replicaof("NO", "ONE")
            client.config_set("replica-serve-stale-data", "yes")
        assert "primary" in refused.value.remedy


def test_a_process_connects_anew_when_redis_takes_no_writes(deploy: Callable[..., Sandbox]) -> None:
    """Connections to a former primary stay open behind a proxy. Before, a process used them until it ended."""
    with sentinel.pair() as pair, proxy(pair.servers[0][0]) as address:
        first, second = (pair.client(port) for port, _ in pair.servers)
        deploy(NEXUS_REDIS_URL=f"redis://:{quote(sentinel.PASSWORD)}@127.0.0.1:{address.port}/1")
        assert play.delay(name="before").id
        assert first.wait(1, 30_000) == 1
        second.replicaof("NO", "ONE")
        first.replicaof("127.0.0.1", str(pair.servers[1][0]))
        address.target = pair.servers[1][0]
        with pytest.raises(QueueUnavailable, match="takes no writes"):
            play.delay(name="refused")
        assert play.delay(name="taken").id


def test_a_statement_that_postgres_ends_is_told_with_what_helps(here: Sandbox) -> None:
    with pytest.raises(StorageUnavailable) as ended:
        here.sql("SET LOCAL statement_timeout = 50; SELECT pg_sleep(20)")
    assert "statement timeout" in str(ended.value)
    assert "statement_timeout" in ended.value.remedy


def records(here: Sandbox) -> int:
    """Log records so far, tracebacks not counted."""
    return sum(line.startswith("[20") for worker in here.workers for line in worker.text().splitlines())


def derived(here: Sandbox) -> int:
    with suppress(NexusError):
        [(done,)] = here.sql("SELECT count(*) FROM derivations WHERE state = 'done'")
        return int(done)
    return -1


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool", POOLS)
def test_workers_outlive_a_redis_at_its_memory_limit_and_say_so(own_servers: Path, pool: tuple[str, int]) -> None:
    with sandbox(embedded.ensure(own_servers)) as here:
        Nexus().create_namespace("acme")
        worker = here.worker(*WITH_KINDS, pool=pool[0], concurrency=pool[1], **ROOT)
        play.delay(name="held", plan=("hold",))
        eventually(lambda: attempts("held"))
        for n in range(20):
            play.delay(name=f"n{n}", plan=("hold",))
        here.redis().config_set("maxmemory", "1mb")
        started, before = time.monotonic(), records(here)
        for n in range(20):
            go(f"n{n}")
        go("held")
        eventually(lambda: "OOM command not allowed" in worker.text(), within=30)
        eventually(lambda: time.monotonic() - started > 20)
        assert worker.process.poll() is None, worker.text()[-2_000:]
        said = records(here) - before
        print(f"{said} records in {time.monotonic() - started:.0f} s")
        assert said < 60
        here.redis().config_set("maxmemory", "0")
        eventually(lambda: here.deployment.claims.counts("acme") == {}, within=90)
        assert worker.process.poll() is None


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("both", [False, True], ids=["of Postgres", "of both servers"])
def test_a_full_disk_is_an_outage(own_servers: Path, servers: ServerAddresses, both: bool) -> None:
    """Connecting and reading work, writing does not. No job begins, few lines are logged; with space all goes on."""
    own = embedded.ensure(own_servers)
    with sandbox(own if both else replace(own, redis_url=servers.redis_url)) as here:
        nexus, said = Nexus(), [{"author": "ann", "content": "I moved to another city. " * 40}]
        held = here.worker(*WITH_KINDS, concurrency=8, **ROOT)
        held.process.send_signal(signal.SIGSTOP)
        for n in range(150):
            nexus.ingest("n", f"s{n}", said, end=True)
        disk = Disk(own_servers)
        disk.fill()
        started, before = time.monotonic(), records(here)
        held.process.send_signal(signal.SIGCONT)
        eventually(lambda: time.monotonic() - started > 30)
        told, done = records(here) - before, derived(here)
        print(f"{told} records in {time.monotonic() - started:.0f} s, {done} derived")
        disk.free()
        embedded.ensure(own_servers)  # a server may have ended: what a process manager does
        assert held.process.poll() is None, held.text()[-2_000:]
        eventually(lambda: derived(here) == 150, within=150, why=held.text()[-3_000:])
        assert here.sql("SELECT count(*) FROM dead_letters") == [(0,)]
        assert "takes no writes" in held.text() if both else "Storage does not answer" in held.text()
        assert told < 250
