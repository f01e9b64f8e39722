"""Connections that go silent while new ones are fine, as after a failover without RST: all goes on within 30 s."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from nexus_tasks import Nexus, embedded
from nexus_tasks.errors import QueueUnavailable
from tests.faults.test_outages import own_home, server  # noqa: F401 - a fixture
from tests.hosts import SERVER, Host, host
from tests.integration.jobkinds import ROOT, WITH_KINDS, attempts, go, play
from tests.sandbox import Sandbox, Worker, eventually, sandbox
from tests.silence import Proxy, proxy

BOUND = 30.0
POOLS = [pytest.param(("threads", 8), id="threads"), pytest.param(("processes", 2), id="prefork")]


class Wires:
    """The proxies between a worker and its servers."""

    def __init__(self, here: Sandbox, stack: ExitStack, host: Host | None = None) -> None:
        self.here, self.host = here, host
        postgres, address = urlsplit(here.database_url), "0.0.0.0" if host else "127.0.0.1"
        self.redis = stack.enter_context(proxy(Path(urlsplit(here.servers.redis_url).path), address))
        socket = Path(parse_qs(postgres.query)["host"][0]) / ".s.PGSQL.5432"
        self.postgres = stack.enter_context(proxy(socket, address))

    def worker(self, pool: tuple[str, int], *options: str, **environment: str) -> Worker:
        """A worker that reaches its servers through the proxies only."""
        server = SERVER if self.host else "127.0.0.1"
        return self.here.worker(
            *options,
            pool=pool[0],
            concurrency=pool[1],
            within=self.host.within if self.host else (),
            NEXUS_DATABASE_URL=f"postgresql+psycopg://nexus@{server}:{self.postgres.port}/{self.here.database_name}",
            NEXUS_REDIS_URL=f"redis://{server}:{self.redis.port}/0",
            **environment,
        )


@pytest.fixture
def wires(here: Sandbox) -> Iterator[Wires]:
    with ExitStack() as stack:
        yield Wires(here, stack)


class Talk:
    """Messages said at a steady pace."""

    def __init__(self, here: Sandbox) -> None:
        self.here, self.nexus, self.said = here, Nexus(), 0

    def go_on(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.said += 1
            self.nexus.ingest(
                "n", f"s{self.said}", [{"author": "ann", "content": f"I moved to city {self.said}."}], end=True
            )
            time.sleep(0.25)

    def derived(self) -> int:
        [(done,)] = self.here.sql("SELECT count(*) FROM derivations WHERE state = 'done'")
        return int(done)

    def catch_up(self, within: float, why: str = "") -> None:
        eventually(
            lambda: self.derived() == self.said,
            within=within,
            why=why or f"{self.derived()} of {self.said} are derived",
        )


def struck(talk: Talk, strike: Callable[[], object]) -> float:
    """Strike amid the work; returns the seconds after which all is derived that was said by then, and 10 s longer."""
    talk.go_on(3)
    talk.catch_up(30)
    talk.go_on(2)
    at = time.monotonic()
    assert strike(), "nothing was struck"
    talk.go_on(10)
    talk.catch_up(60)
    took = time.monotonic() - at
    print(f"all is derived {took:.1f} s after the silence")
    return took


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool", POOLS)
def test_a_silent_redis_holds_nobody_up_for_long(here: Sandbox, wires: Wires, pool: tuple[str, int]) -> None:
    wires.worker(pool)
    assert struck(Talk(here), wires.redis.silence) < BOUND


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool", POOLS)
def test_a_silent_postgres_holds_nobody_up_for_long(here: Sandbox, wires: Wires, pool: tuple[str, int]) -> None:
    wires.worker(pool)
    assert struck(Talk(here), wires.postgres.silence) < BOUND


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("how", [Proxy.silence, Proxy.cut])
def test_a_consumer_whose_own_connection_is_lost_consumes_again(
    here: Sandbox, wires: Wires, pool: tuple[str, int], how: Callable[[Proxy, bytes], int]
) -> None:
    wires.worker(pool)
    assert struck(Talk(here), lambda: how(wires.redis, b"BRPOP")) < BOUND


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool", POOLS)
def test_acknowledgements_that_are_lost_do_not_fill_the_worker(wires: Wires, pool: tuple[str, int]) -> None:
    """As many runs as the worker has slots end while Redis is silent."""
    Nexus().create_namespace("acme")
    wires.worker(pool, *WITH_KINDS, **ROOT)
    names = [f"n{n}" for n in range(pool[1])]
    for name in names:
        play.delay(name=name, plan=("hold",))
    eventually(lambda: all(attempts(name) for name in names))
    wires.redis.silence()
    for name in names:
        go(name)
    started = time.monotonic()
    play.delay(name="next")
    eventually(lambda: attempts("next"), within=2 * BOUND)
    assert time.monotonic() - started < BOUND


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool", POOLS)
def test_the_loss_of_the_servers_host_holds_nobody_up_for_long(here: Sandbox, pool: tuple[str, int]) -> None:
    """A real link goes down: no RST, no acknowledgement. The servers are at another address from then on."""
    with ExitStack() as stack:
        lost = stack.enter_context(host())
        worker = Wires(here, stack, lost).worker(pool)
        assert struck(Talk(here), lost.fail_over) < BOUND
        worker.kill()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_frozen_redis_is_waited_for(own_home: Path) -> None:  # noqa: F811 - the fixture
    """SIGSTOP: the kernel takes connections and bytes, and nothing answers. After 40 s it goes on, and so do all."""
    with sandbox(embedded.ensure(own_home)) as here:
        Nexus().create_namespace("acme")
        worker = here.worker(*WITH_KINDS, concurrency=4, **ROOT)
        play.delay(name="before")
        eventually(lambda: attempts("before"))
        frozen = server(own_home, "redis-server")
        os.kill(frozen, signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(QueueUnavailable):
                play.delay(name="refused")
            assert time.monotonic() - started < 10, "a producer is not held up either"
            time.sleep(40)
        finally:
            os.kill(frozen, signal.SIGCONT)
        play.delay(name="after")
        started = time.monotonic()
        eventually(lambda: attempts("after"), within=2 * BOUND, why=worker.text()[-3_000:])
        assert time.monotonic() - started < BOUND
        assert worker.process.poll() is None
