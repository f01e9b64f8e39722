"""Two deployments in one process: nothing crosses, each works without the other, and a forked child has its own."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, current_app, signals

from nexus_tasks import Deployment, Nexus, derive_memory, digest_session
from nexus_tasks.deployment import default_deployment, use
from nexus_tasks.errors import NotFound
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.idempotency.worker.executor import execute
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from tests.broker import RABBITMQ
from tests.sandbox import Sandbox, eventually

Pair = tuple[Sandbox, Sandbox]
NAMESPACE = "acme"
CITY = {"a": "Lisbon", "b": "Oslo"}
SAID = {name: f"I live in {city}." for name, city in CITY.items()}
CHILD_SECONDS = 60

in_redis = pytest.mark.skipif(RABBITMQ, reason="looks at the messages in Redis")


@pytest.fixture
def pair(deploy: Callable[..., Sandbox]) -> Pair:
    """Two sandboxes. The second is the default deployment."""
    return deploy(), deploy()


def pending(deployment: Deployment) -> list[Any]:
    claims = deployment.claims
    return [claim for queue in claims.queues() for claim in claims.pending(queue)]


def work(deployment: Deployment) -> int:
    """Run what is pending in a deployment, and what that asks for, in this thread; returns how many jobs that were."""
    count = 0
    while claims := pending(deployment):
        for claim in claims:
            kind = deployment.engine.kind(claim.kind)
            request = kind.request_for(kind.load(claim.args), job_id=claim.job_id)
            execute(deployment.engine, kind, request, published_at="", eager=True)
            count += 1
    return count


def say(deployment: Deployment, text: str, session: str = "chat") -> None:
    Nexus(deployment).ingest(NAMESPACE, session, [{"content": text, "author": "ann"}], end=True)


def facts(here: Sandbox) -> list[str]:
    return [content for (content,) in here.sql("SELECT content FROM memories WHERE level = 'explicit' ORDER BY id")]


def messages(here: Sandbox) -> list[str]:
    """The job ids of all messages in a deployment's Redis lists."""
    redis, found = here.redis(), list[str]()
    for key in redis.scan_iter(f"{here.name}:celery:*"):
        if redis.type(key) == "list":
            found += [json.loads(one)["headers"]["id"] for one in redis.lrange(key, 0, -1)]
    return sorted(found)


# --- nothing crosses --------------------------------------------------------------------------------------------------
@in_redis
def test_what_one_deployment_stores_and_queues_the_other_never_sees(pair: Pair) -> None:
    a, b = pair
    clients = {"a": Nexus(a.deployment), "b": Nexus(b.deployment)}
    for name, client in clients.items():
        client.create_namespace(NAMESPACE, observers=[f"observer-{name}"])
        say(client.deployment, SAID[name])
    asked = {name: sorted(claim.job_id for claim in pending(client.deployment)) for name, client in clients.items()}
    assert not set(asked["a"]) & set(asked["b"])
    assert (messages(a), messages(b)) == (asked["a"], asked["b"])

    assert work(a.deployment) >= 2
    assert (pending(a.deployment), facts(a)) == ([], ["I live in Lisbon."])
    assert (sorted(claim.job_id for claim in pending(b.deployment)), facts(b)) == (asked["b"], [])
    assert b.sql("SELECT count(*) FROM job_runs") == [(0,)]
    assert clients["a"].search(NAMESPACE, "live", observer="observer-a")
    assert clients["b"].search(NAMESPACE, "live", observer="observer-b", levels=["explicit"]) == []

    assert work(b.deployment) >= 2
    assert facts(b) == ["I live in Oslo."]
    for name, client in clients.items():
        text = client.context(NAMESPACE, session_key="chat", query="live", observer=f"observer-{name}").text
        assert [place in text for place in ("Lisbon", "Oslo")] == [name == "a", name == "b"]
        assert all(client.job(job_id).id == job_id for job_id in asked[name])
    with pytest.raises(NotFound):
        clients["a"].job(asked["b"][0])
    assert {key.partition(":")[0] for key in a.redis().scan_iter("*")} == {a.name, b.name}


def test_each_has_its_own_objects_and_caches(pair: Pair) -> None:
    a, b = (one.deployment for one in pair)
    for name in ("database", "claims", "app", "engine", "buffer", "isolation", "resources", "embedder", "model"):
        assert getattr(a, name) is not getattr(b, name), name
        assert getattr(a, name) is getattr(a, name), name
    assert a.engine.heartbeat is not b.engine.heartbeat
    assert a.local(dict) is a.local(dict) is not b.local(dict)
    Nexus(a).create_namespace(NAMESPACE, concurrency=3)
    assert (a.cap(NAMESPACE), b.cap(NAMESPACE)) == (3, b.settings.namespace_concurrency)
    assert derive_memory.on(a).app is a.app
    assert {a.app.tasks[name].app for name in a.app.tasks if name.startswith("nexus_tasks.")} == {a.app}


def test_each_buffers_in_its_own_home(pair: Pair) -> None:
    a, b = (one.deployment for one in pair)
    assert a.settings.home != b.settings.home
    good = a.endpoints.database_url
    a.close()
    away = Deployment(a.settings.model_copy(update={"database_url": type(a.settings.database_url)(_away(good))}))
    try:
        receipt = Nexus(away).ingest(NAMESPACE, "chat", [{"content": SAID["a"], "author": "ann"}])
        assert (receipt.stored, receipt.buffered) == (0, 1)
        say(b, SAID["b"])
        assert (a.buffer.pending(), b.buffer.pending()) == (True, False)
    finally:
        away.close()
    say(a, "I like tea.")  # what was buffered goes first
    assert a.buffer.pending() is False
    assert [row[0] for row in pair[0].sql("SELECT content FROM memories WHERE level = 'raw' ORDER BY id")] == [
        SAID["a"],
        "I like tea.",
    ]


def _away(url: str) -> str:
    return f"{url}&hostaddr=127.0.0.1"  # the same database, at an address where nothing listens


def test_two_threads_work_in_both_at_once(pair: Pair) -> None:
    rounds, failed = 6, list[BaseException]()
    together = threading.Barrier(4)

    def run(here: Sandbox, name: str, session: str) -> None:
        try:
            client = Nexus(here.deployment)
            for n in range(rounds):
                together.wait(30)
                say(here.deployment, f"I live in {CITY[name]} {n} {session}.", session=session)
                work(here.deployment)
                found = client.search(NAMESPACE, "live", observer="assistant", limit=100)
                assert all(CITY[name] in one.content for one in found)
        except BaseException as error:
            failed.append(error)
            together.abort()
            raise

    threads = [
        threading.Thread(target=run, args=(here, name, f"chat-{n}"))
        for here, name in zip(pair, "ab", strict=True)
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    for here, name in zip(pair, "ab", strict=True):
        work(here.deployment)
        assert here.sql("SELECT count(*) FROM memories WHERE level = 'raw'") == [(2 * rounds,)]
        assert facts(here)
        assert all(CITY[name] in fact for fact in facts(here))
        assert here.sql("SELECT count(*) FROM dead_letters") == [(0,)]


@pytest.mark.long
def test_each_has_its_own_worker_process(pair: Pair) -> None:
    for here in pair:
        here.worker(concurrency=2)
    for here, name in zip(pair, "ab", strict=True):
        say(here.deployment, SAID[name])
    for here, name in zip(pair, "ab", strict=True):
        digest = eventually(
            lambda here=here: here.sql("SELECT count(*) FROM memories WHERE level = 'summary_short'")[0][0]
        )
        assert digest == 1
        assert facts(here) == [SAID[name]]
        eventually(lambda here=here: here.deployment.claims.counts(NAMESPACE) == {})


# --- closing ----------------------------------------------------------------------------------------------------------
def test_closing_one_leaves_the_other_working(pair: Pair) -> None:
    a, b = pair
    for here, name in zip(pair, "ab", strict=True):
        say(here.deployment, SAID[name])
        work(here.deployment)
    threads = {thread for thread in threading.enumerate() if thread.name == "nexus-heartbeat"}
    engine, database = b.deployment.engine, b.deployment.database
    a.deployment.close()
    eventually(lambda: sum(thread.is_alive() for thread in threads) <= len(threads) - 1)
    assert (b.deployment.engine, b.deployment.database) == (engine, database)
    say(b.deployment, "I work in Porto.", session="later")
    work(b.deployment)
    assert len(facts(b)) == 2
    say(a.deployment, "I work in Porto.", session="later")  # the next use opens it again
    work(a.deployment)
    assert len(facts(a)) == 2


def test_closing_a_deployment_leaves_another_of_the_same_settings_working(pair: Pair) -> None:
    here, twin = pair[0].deployment, Deployment(pair[0].deployment.settings)
    with here.app.producer_or_acquire(), twin.app.producer_or_acquire():
        pass  # kombu keeps one pool for both
    twin.close()
    signals.before_task_publish.connect(_listen)
    try:
        assert digest_session.on(here).delay(namespace=NAMESPACE, session_key="chat").created
    finally:
        signals.before_task_publish.disconnect(_listen)
    assert here.app.pool.limit == twin.app.pool.limit


# --- the default deployment -------------------------------------------------------------------------------------------
def test_delay_asks_the_default_deployment_and_use_changes_it(pair: Pair) -> None:
    a, b = (one.deployment for one in pair)
    ask = {"namespace": NAMESPACE, "session_key": "chat"}
    assert default_deployment() is b is Nexus().deployment
    job = digest_session.delay(**ask)
    assert job.created
    assert [len(pending(one)) for one in (a, b)] == [0, 1]
    with use(a):
        assert default_deployment() is a is Nexus().deployment
        assert digest_session.delay(**ask).created
        assert digest_session.task.app is a.app
    assert digest_session.delay(**ask).created is False
    assert [len(pending(one)) for one in (a, b)] == [1, 1]
    assert digest_session.on(a).apply_async(kwargs=ask).created is False


@contextmanager
def another_application_is_current() -> Iterator[None]:
    """A Celery application without our jobs, whose broker and results are nowhere."""
    before = current_app._get_current_object()
    foreign = Celery("foreign", broker="redis://127.0.0.1:1/0", backend="redis://127.0.0.1:1/0")
    foreign.conf.broker_connection_retry = False
    foreign.set_current()
    try:
        assert current_app.main == "foreign"
        yield
    finally:
        before.set_current()
        foreign.close()


def _listen(**_: object) -> None:
    """A receiver of Celery's signal: every message is written by Celery, not from a template."""


@in_redis
@pytest.mark.parametrize("written_by", ["template", "celery"])
def test_messages_go_to_the_claims_deployment_whichever_application_is_current(pair: Pair, written_by: str) -> None:
    a, b = pair
    if written_by == "celery":
        signals.before_task_publish.connect(_listen)
    try:
        with another_application_is_current():
            say(a.deployment, SAID["a"])
            derivation = derive_memory.on(a.deployment)
            calls = [{"namespace": NAMESPACE, "memory_id": n, "observer": "x"} for n in range(900, 903)]
            derivation.enqueue_many(calls)
            task = digest_session.on(a.deployment)
            task.si(namespace=NAMESPACE, session_key="one").apply_async()
            (task.si(namespace=NAMESPACE, session_key="two") | task.si(namespace=NAMESPACE, session_key="two")).delay()
            Nexus(a.deployment).dream(NAMESPACE)
            assert messages(b) == pending(b.deployment) == []
            expected = {claim.job_id for claim in pending(a.deployment)}
            assert expected <= set(messages(a))
            a.redis().delete(*(key for key in a.redis().scan_iter(f"{a.name}:celery:*")))
            for index in a.redis().scan_iter(f"{a.name}:published:*"):
                a.redis().zadd(index, dict.fromkeys(a.redis().zrange(index, 0, -1), 0))
            for claim in pending(a.deployment):
                a.redis().hset(claim.key, "published_at", 0)
            Sweeper(a.deployment.engine).tick()
            assert expected <= set(messages(a))
            assert messages(b) == []
            work(a.deployment)
    finally:
        signals.before_task_publish.disconnect(_listen)
    assert "I live in Lisbon." in facts(a)
    assert facts(b) == []


# --- forks ------------------------------------------------------------------------------------------------------------
def in_child(function: Callable[[], Any], fork: Callable[[], int] = os.fork) -> Any:
    """What ``function`` returns in a forked child; fails with its error, or when it takes too long."""
    ours, theirs = os.pipe()
    if pid := fork():
        os.close(theirs)
        timer = threading.Timer(CHILD_SECONDS, os.kill, (pid, 9))
        timer.start()
        with os.fdopen(ours) as answers:
            said = answers.read()
        _, status = os.waitpid(pid, 0)
        timer.cancel()
        assert said, f"the child ended with {status}"
        answer = json.loads(said)
        assert "error" not in answer, answer["error"]
        return answer["value"]
    try:
        os.close(ours)
        try:
            answer = {"value": function()}
        except BaseException as error:
            answer = {"error": repr(error)}
        os.write(theirs, json.dumps(answer).encode())
    finally:
        os._exit(0)


def connections(deployment: Deployment) -> list[int]:
    """The servers' numbers of the connections that this process uses: Postgres', and those of both claims' clients."""
    with deployment.database.engine.connect() as connection:
        backend = connection.connection.dbapi_connection.info.backend_pid
    engine = deployment.engine
    return [backend, deployment.claims.redis.client_id(), engine.heartbeat._claims.redis.client_id()]


@pytest.mark.long
def test_a_forked_child_has_its_own_connections_in_both(pair: Pair) -> None:
    for here, name in zip(pair, "ab", strict=True):
        say(here.deployment, SAID[name], session="before")
        work(here.deployment)
    before = [connections(here.deployment) for here in pair]
    stop, failed = threading.Event(), list[BaseException]()

    def busy(here: Sandbox) -> None:  # holds locks and connections while the process is forked
        while not stop.is_set():
            try:
                Nexus(here.deployment).ingest(NAMESPACE, "busy", [{"content": "Noise.", "id": "noise"}])
            except BaseException as error:
                failed.append(error)
                raise

    def child() -> list[Any]:
        found = []
        for here, name in zip(pair, "ab", strict=True):
            say(here.deployment, f"I work in {CITY[name]}.", session=f"child-{os.getpid()}")
            work(here.deployment)
            beats = [thread.name for thread in threading.enumerate()].count("nexus-heartbeat")
            found.append([connections(here.deployment), beats])
        return found

    threads = [threading.Thread(target=busy, args=(here,)) for here in pair]
    for thread in threads:
        thread.start()
    try:
        children = [in_child(child) for _ in range(4)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []
    for [[a_numbers, a_beats], [b_numbers, b_beats]] in children:
        assert (a_beats, b_beats) == (1, 2), "a thread for each deployment"
        assert not {*a_numbers, *b_numbers} & {*before[0], *before[1]}
    for here, name, numbers in zip(pair, "ab", before, strict=True):
        assert connections(here.deployment)[1:] == numbers[1:]
        say(here.deployment, "I live in Porto after the fork.", session="after")
        work(here.deployment)
        assert "I live in Porto after the fork." in facts(here)
        assert f"I work in {CITY[name]}." in facts(here)
        assert here.sql("SELECT count(*) FROM dead_letters") == [(0,)]


def test_a_child_whose_fork_python_does_not_know_of_has_its_own_connections(pair: Pair) -> None:
    """uWSGI forks its workers so."""
    deployment = pair[0].deployment
    say(deployment, SAID["a"], session="before")
    before, fork = connections(deployment), ctypes.PyDLL(None).fork

    def child() -> list[Any]:
        found = connections(deployment)
        say(deployment, "I work in Faro.", session="child")
        return [found, deployment.engine.heartbeat._thread is None]

    for _ in range(2):
        numbers, has_no_thread = in_child(child, fork)
        assert not {*numbers} & {*before}
        assert has_no_thread
    assert connections(deployment) == before
    assert [one.content for one in Nexus(deployment).session(NAMESPACE, "child").said] == ["I work in Faro."]


def test_a_forked_child_publishes_while_its_parent_uses_every_connection_of_the_pool(pair: Pair) -> None:
    app = pair[0].deployment.app
    signals.before_task_publish.connect(_listen)  # through Celery's and kombu's pools
    held = [app.pool.acquire(block=True) for _ in range(app.pool.limit)]
    try:
        child = in_child(lambda: digest_session.on(pair[0].deployment).delay(namespace=NAMESPACE, session_key="s").id)
    finally:
        signals.before_task_publish.disconnect(_listen)
        for one in held:
            one.release()
    assert [claim.job_id for claim in pending(pair[0].deployment)] == [child]
    again = digest_session.on(pair[0].deployment).delay(namespace=NAMESPACE, session_key="s")
    assert again.id == child


def test_the_childs_end_leaves_the_parents_leases_alone(pair: Pair) -> None:
    """Parent and child hold claims at a time; neither's heartbeat renews or loses the other's."""
    a = pair[0].deployment
    say(a, SAID["a"], session="one")
    work(a)  # the heartbeat's thread runs
    a.engine.heartbeat.hold([], lambda _claim: None)
    assert in_child(lambda: [len(a.engine.heartbeat._held), a.engine.heartbeat._thread is None]) == [0, True]
    assert a.engine.heartbeat._thread is not None
    assert a.engine.heartbeat._thread.is_alive()


# --- nothing starts by itself -----------------------------------------------------------------------------------------
def test_making_a_deployment_starts_nothing(tmp_path: Path) -> None:
    code = """
import os, threading
from pathlib import Path
import nexus_tasks, nexus_tasks.celery, nexus_tasks.client, nexus_tasks.tasks, nexus_tasks.worker
from nexus_tasks import Deployment, Nexus, Settings
from nexus_tasks.deployment import default_deployment
home = Path(os.environ["NEXUS_HOME"])
made = [default_deployment(), *(Deployment(Settings(home=home / name, key_prefix=name)) for name in ("a", "b"))]
for one in made:
    Nexus(one), one.app, one.buffer, one.embedder
    assert any(name.startswith("nexus_tasks.") for name in one.app.tasks)
    one.close()
files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
print(threading.active_count(), [file for file in files if "socket" in file], home.exists())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "NEXUS_HOME": str(tmp_path / "home"),
            "PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[2])),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("1 [] False\n", 0), done.stderr


def test_an_engine_finds_its_tasks_in_its_own_application(pair: Pair) -> None:
    for here in pair:
        assert task_of(here.deployment.engine, "derive_memory").app is here.deployment.app
