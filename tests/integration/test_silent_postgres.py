"""A statement whose connection goes silent ends within 10 s; a long statement that Postgres works on goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from celery.concurrency.prefork import TaskPool as ProcessPool
from celery.concurrency.thread import TaskPool as ThreadPool
from sqlalchemy import event, text

from nexus_tasks import Message, Nexus
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NotFound, StorageUnavailable, Transient
from nexus_tasks.silence import Silence
from nexus_tasks.storage import silent_connections
from nexus_tasks.storage.engine import Database
from nexus_tasks.worker import DatabasePoolStep
from tests.sandbox import Sandbox, eventually
from tests.silence import Proxy, proxy


@pytest.fixture
def wire(here: Sandbox) -> Iterator[Proxy]:
    with proxy(Path(parse_qs(urlsplit(here.database_url).query)["host"][0]) / ".s.PGSQL.5432") as made:
        yield made


@pytest.fixture
def database(here: Sandbox, wire: Proxy) -> Iterator[Database]:
    made = Database(f"postgresql+psycopg://nexus@127.0.0.1:{wire.port}/{here.database_name}", pool_size=2)
    yield made
    made.dispose()


def one(database: Database, meanwhile: Callable[[], object] | None = None, then: str = "SELECT 1") -> object:
    """Execute two statements in a transaction; something happens between them."""
    with database.transaction() as tx:
        tx.execute(text("SELECT 1"))
        if meanwhile:
            meanwhile()
        return tx.execute(text(then)).scalar_one() if then else None


def test_a_statement_on_a_silent_connection_ends(database: Database, wire: Proxy) -> None:
    started = time.monotonic()
    with pytest.raises(StorageUnavailable, match="silent"):
        one(database, wire.silence)
    assert time.monotonic() - started < 10
    started = time.monotonic()
    assert one(database) == 1
    assert time.monotonic() - started < 2, "the next user gets a new connection"


def test_a_commit_on_a_silent_connection_ends(database: Database, wire: Proxy) -> None:
    started = time.monotonic()
    with pytest.raises(StorageUnavailable, match="silent"):
        one(database, wire.silence, then="")
    assert time.monotonic() - started < 10


def test_an_idle_connection_that_went_silent_is_replaced_before_its_use(database: Database, wire: Proxy) -> None:
    assert one(database) == 1
    wire.silence()
    time.sleep(1.1)
    started = time.monotonic()
    assert one(database) == 1
    assert time.monotonic() - started < 10


def test_a_long_statement_on_a_live_connection_goes_on(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent_connections, "QUIET", 0.3)
    with database.transaction() as tx:
        assert tx.execute(text("SELECT 'done' FROM pg_sleep(3)")).scalar_one() == "done"


def test_an_answer_that_is_cut_off_in_the_middle_counts_as_silence(
    database: Database, wire: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_connections, "QUIET", 0.3)
    with pytest.raises(StorageUnavailable, match="silent"):
        one(database, wire.deafen, then="SELECT repeat('x', 100000000)")


def test_a_first_statement_without_answer_ends_too(
    database: Database, wire: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_connections, "QUIET", 0.3)
    wire.silent_from(b"hnsw")
    with pytest.raises(StorageUnavailable, match="silent"):
        one(database)


def test_a_pool_that_is_in_use_to_the_last_connection_is_a_passing_fault(here: Sandbox) -> None:
    database = Database(here.database_url, pool_size=1)
    database.engine.pool._timeout = 0.1  # type: ignore[attr-defined]
    try:
        with database.transaction() as first, database.transaction() as second:
            first.execute(text("SELECT 1"))
            second.execute(text("SELECT 1"))
            with pytest.raises(Transient, match="in use") as caught:
                one(database)
            assert not isinstance(caught.value, StorageUnavailable), "Postgres answers: nothing need wait for it"
    finally:
        database.dispose()


@pytest.mark.parametrize(("pool", "size"), [(ThreadPool, 36), (ProcessPool, 10)])
def test_the_pool_of_a_worker_fits_its_threads(here: Sandbox, pool: type, size: int) -> None:
    worker = SimpleNamespace(
        app=here.deployment.app, pool_cls=pool, max_concurrency=None, concurrency=32, autoscale=None
    )
    DatabasePoolStep(worker)
    assert here.deployment.database.engine.pool.size() == size  # type: ignore[attr-defined]


def test_a_server_that_only_reads_is_an_outage(here: Sandbox) -> None:
    database = Database(here.database_url, pool_size=1)
    event.listen(database.engine, "begin", lambda c: c.exec_driver_sql("SET TRANSACTION READ ONLY"))
    try:
        with pytest.raises(StorageUnavailable):
            one(database, then="CREATE TABLE t ()")
    finally:
        database.dispose()


def test_a_silent_postgres_does_not_hold_the_threads_of_an_event_loop(here: Sandbox, wire: Proxy) -> None:
    """Before, 30 such calls with four threads took 80 s, and the application could look up no host meanwhile."""
    address = f"postgresql+psycopg://nexus@127.0.0.1:{wire.port}/{here.database_name}"
    given = here.deployment.settings
    silent = Deployment(given.model_copy(update={"database_url": type(given.database_url)(address)}))
    nexus = Nexus(silent)
    nexus.remember("harbour", "The first message.")

    async def turn(number: int) -> int:
        with suppress(StorageUnavailable):
            await nexus.asearch("harbour", "message")
        said = [Message(content=f"Message {number}.", id=f"m{number}")]
        return (await nexus.aingest("harbour", f"chat-{number}", said)).buffered

    async def turns() -> int:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
        return sum(await asyncio.gather(*map(turn, range(30))))

    with closing(silent):
        wire.silent_from(b"user")  # that is: from the first bytes of each connection on
        wire.silence()
        begun = time.monotonic()
        assert asyncio.run(turns()) == 30
        assert time.monotonic() - begun < 30
        wire.silent_from(b"")
        wire.cut()
        stored = "SELECT count(*) FROM memories WHERE content LIKE 'Message %.'"
        eventually(lambda: nexus.session("harbour", "notes") and here.sql(stored) == [(30,)], within=30)


def test_an_answer_ends_the_silence_although_the_call_fails_or_asks_late(here: Sandbox) -> None:
    """Before, all other calls were refused for as long as the one call waited for something else."""
    silence = here.deployment.local(Silence)
    silence.note("Postgres", time.monotonic() - 5.0, StorageUnavailable("No answer."))
    assert silence.holds("Postgres")
    silence._silent["Postgres"] = time.monotonic(), StorageUnavailable("No answer.")  # as a second later

    def late() -> str:
        assert not silence.holds("Postgres")
        raise NotFound("There is no such namespace.")

    with pytest.raises(NotFound):
        here.deployment.unless_silent(late)
