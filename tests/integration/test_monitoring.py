"""The pages of a worker and of beat (metrics, liveness, readiness), and ``nexus health``, which asks for them."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from nexus_tasks import Nexus, digest_session
from nexus_tasks.idempotency import claims as claims_of_redis
from nexus_tasks.idempotency.worker import vitals
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.idempotency.worker.vitals import Vitals
from nexus_tasks.llm.base import Usage
from nexus_tasks.model_totals import count_call
from nexus_tasks.monitoring import endpoint, server, sources
from nexus_tasks.monitoring.definitions import BOUNDS, METRICS, MOST_LABELS, Sample, bounded, cumulative
from nexus_tasks.monitoring.endpoint import Monitor
from nexus_tasks.monitoring.sources import counters
from nexus_tasks.storage.ledger import PaidCall, cost_usd
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, say, work
from tests.sandbox import Sandbox, Worker, eventually


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def get(port: int, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def figures(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def port_of(worker: Worker) -> int:
    return int(eventually(lambda: re.search(r"Metrics and health: http://[\d.]+:(\d+)/", worker.text()))[1])


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_a_worker_counts_what_its_runs_did(here: Sandbox, pool: str) -> None:
    say("I drink green tea.", "I moved to Lisbon.", end=True)
    worker = here.worker(pool=pool, concurrency=2, NEXUS_METRICS_PORT=str(free_port()))
    port = port_of(worker)

    def counted() -> dict[tuple[str, ...], float] | None:
        found = figures(get(port, "metrics")[1])
        return found if found.get(("nexus_jobs_ended_total", "completed", "derive_memory"), 0) >= 2 else None

    found = eventually(counted)
    assert found["nexus_runs_begun_total", "derive_memory"] >= 1
    assert found["nexus_dependency_up", "postgres"] == found["nexus_dependency_up", "redis"] == 1
    assert found["nexus_process_pool_slots",] == 2
    assert found["nexus_jobs_requested_total", "derive_memory", "enqueued"] == 2
    assert found["nexus_wait_seconds_bucket", "+Inf", "derive_memory"] >= 1
    assert found["nexus_run_seconds_count", "derive_memory"] >= 1
    assert found["nexus_run_seconds_bucket", "30", "derive_memory"] == found["nexus_run_seconds_count", "derive_memory"]
    assert found["nexus_claims", "derive_memory", "running"] == 0
    assert found["nexus_model_calls_total", "derive", "live", "offline"] >= 1
    if pool == "processes":
        eventually(lambda: "nexus_process_pool_heartbeat_age_seconds " in get(port, "metrics")[1])
    assert ("nexus_queued_messages", "derive") in found
    loops = {"nexus-sweep", "nexus-reconcile", "consumer"}  # the watchdog first asks the consumer after 5 s
    eventually(
        lambda: loops <= {key[1] for key in figures(get(port, "metrics")[1]) if "nexus_process_loop_age_seconds" in key}
    )
    assert NAMESPACE not in get(port, "metrics")[1], "no page names a namespace"
    assert get(port, "livez")[0] == get(port, "readyz")[0] == 200
    assert get(port, "nonsense")[0] == 404
    worker.stop()
    with pytest.raises(urllib.error.URLError):
        get(port, "livez")


def test_the_metrics_in_the_docs_are_those_of_the_endpoint() -> None:
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| (`nexus_.*?) \|", page, re.MULTILINE))
    names = {name for row in told for name in re.findall(r"`(\w+)`", row)}
    assert names == {name for name, metric in METRICS.items() if metric.labels[:1] != ("namespace",)}


def test_a_second_worker_takes_the_next_port(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with _endpoint(here, free_port(), monkeypatch) as first, _endpoint(here, first.port, monkeypatch) as second:
        assert first.port < second.port < first.port + endpoint.PORTS
        assert get(second.port, "livez")[0] == 200


def test_a_port_that_cannot_be_used_is_said(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoint, "PORTS", 1)
    with _endpoint(here, free_port(), monkeypatch) as first, here.another() as other:
        assert first.port == other.settings.metrics_port
        with caplog.at_level(logging.ERROR):
            assert endpoint.start(Monitor(other)) is None
    assert "Set NEXUS_METRICS_PORT" in caplog.text


@contextmanager
def _endpoint(here: Sandbox, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("NEXUS_METRICS_PORT", str(port))
    with here.another() as other:
        started = endpoint.start(Monitor(other))
        assert started is not None
        try:
            yield started
        finally:
            started.close()


def test_beat_serves_its_pages(here: Sandbox) -> None:
    port, log = free_port(), here.folder / "beat.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "nexus_tasks", "beat", "--loglevel", "INFO"],
            env={**here.environment, "NEXUS_METRICS_PORT": str(port)},
            cwd=here.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "Metrics and health" in log.read_text())
        assert get(port, "readyz")[0] == 200
        assert ("nexus_dead_letters",) in figures(get(port, "metrics")[1])
    finally:
        process.kill()
        process.wait()


def test_while_servers_are_away_the_pages_say_so_and_keep_what_is_known(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("I drink green tea.")
    monkeypatch.setattr(sources, "READ_EVERY", 0.0)
    monitor = Monitor(here.deployment)
    before = {(one.name, one.labels): one.value for one in monitor.samples()}
    assert before["nexus_wanted_derivations", ()] == 1
    monkeypatch.setenv("NEXUS_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    monkeypatch.setenv("NEXUS_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("NEXUS_BROKER_URL", "redis://127.0.0.1:1/0")
    with here.another() as away:
        monitor.deployment = away
        for source, gone in zip(monitor._sources, sources.sources_of(away), strict=True):
            source._read = gone._read
        after = {(one.name, one.labels): one.value for one in monitor.samples()}
        assert after["nexus_wanted_derivations", ()] == 1
        assert [after["nexus_dependency_up", (name,)] for name in ("postgres", "redis", "broker")] == [0, 0, 0]
        assert monitor.live() == []
        assert len(monitor.ready()) == 3


def test_a_source_that_hangs_holds_up_no_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(sources, "WAIT", 0.05)
    hanging = sources.Source("postgres", lambda: [Sample("nexus_dead_letters", (), float(release.wait(30)))])
    sources.refresh([hanging])
    assert "has not answered" in hanging.fault
    release.set()
    eventually(lambda: not hanging.fault, within=10)
    assert hanging.samples[0].value == 1


def test_a_loop_that_does_not_turn_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(vitals.time, "monotonic", lambda: now)
    one = Vitals()
    one.turned(vitals.HEARTBEAT)
    one.ask_consumer()
    assert one.stuck(lease=10) == []
    now += vitals.STUCK_AFTER + 1
    one.turned(vitals.HEARTBEAT)
    assert len(one.stuck(lease=10)) == 1
    one.consumer_turned()
    assert one.stuck(lease=10) == []
    now += 31
    assert "heartbeat" in one.stuck(lease=10)[0]


@pytest.mark.long
def test_a_stuck_consumer_is_seen_within_30_seconds(here: Sandbox) -> None:
    """The event loop of this worker stops, and its other threads go on."""
    (here.folder / "stuck.py").write_text(
        "import threading, time\n"
        "from celery.signals import worker_ready\n"
        "from nexus_tasks.celery import app\n"
        "@worker_ready.connect\n"
        "def stop(sender, **_):\n"
        "    threading.Timer(2, lambda: sender.hub.call_soon(time.sleep, 300)).start()\n"
    )
    path = os.pathsep.join([str(here.folder), here.environment.get("PYTHONPATH", "")])
    worker = here.worker(app="stuck", NEXUS_METRICS_PORT=str(free_port()), PYTHONPATH=path)
    port = port_of(worker)
    assert get(port, "livez")[0] == 200
    eventually(lambda: get(port, "livez")[0] == 503, within=32)
    assert "has not turned" in get(port, "livez")[1]


def test_health_asks_the_worker(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")  # a probe asks its own machine directly
    with _endpoint(here, free_port(), monkeypatch) as one:
        assert nexus("health", "--port", str(one.port)).stdout == "ok\n"
        told = nexus("health", "--live", "--json", "--port", str(one.port))
        assert (told.returncode, json.loads(told.stdout)) == (0, {"ok": True, "faults": []})
    silent = nexus("health", "--port", str(free_port()))
    assert silent.returncode == 1
    assert "No worker answers" in silent.stderr
    monkeypatch.setattr("nexus_tasks.cli.health._ANSWER_WITHIN", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        told = nexus("health", "--live", "--port", str(frozen.getsockname()[1]))
    assert told.returncode == 1
    assert "does not answer within 1 s" in told.stderr
    monkeypatch.delenv("NEXUS_METRICS_PORT")
    assert "NEXUS_METRICS_PORT" in nexus("health").stderr


@pytest.mark.long
def test_a_stuck_process_of_the_pool_is_seen(here: Sandbox) -> None:
    """The main process of this worker goes on, and one of its children is frozen."""
    say("I drink green tea.", end=True)
    worker = here.worker(pool="processes", concurrency=1, NEXUS_METRICS_PORT=str(free_port()), NEXUS_LEASE_SECONDS="3")
    port = port_of(worker)
    eventually(lambda: "nexus_process_pool_heartbeat_age_seconds " in get(port, "metrics")[1])
    assert get(port, "livez")[0] == 200
    [child] = psutil.Process(worker.process.pid).children()
    child.suspend()
    eventually(lambda: get(port, "livez")[0] == 503, within=30)
    assert "In 1 of the pool's processes" in get(port, "livez")[1]
    child.resume()
    eventually(lambda: get(port, "livez")[0] == 200, within=10)


@pytest.mark.long
def test_a_process_of_the_pool_that_is_stuck_before_its_first_job_is_seen(here: Sandbox) -> None:
    worker = here.worker(pool="processes", concurrency=2, NEXUS_METRICS_PORT=str(free_port()), NEXUS_LEASE_SECONDS="3")
    port = port_of(worker)
    psutil.Process(worker.process.pid).children()[0].suspend()
    eventually(lambda: get(port, "livez")[0] == 503, within=30)
    assert "In 1 of the pool's processes" in get(port, "livez")[1]


def samples_of(monitor: Monitor) -> dict[tuple[str, ...], float]:
    return {(one.name, *one.labels): one.value for one in monitor.samples()}


def test_every_state_kind_and_line_is_counted(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for namespace, number in (("big", 12), ("small", 10)):  # 8 wake-ups are on their way, the others in line
        for n in range(number):
            digest_session.delay(namespace=namespace, session_key=f"s{n}")
    digest_session.apply_async(kwargs={"namespace": "big", "session_key": "later"}, countdown=60)
    digest_session.delay(namespace="big", session_key="s0")
    found = samples_of(Monitor(here.deployment, shared=0))
    assert found["nexus_claims", "digest_session", "pending"] == 16
    assert found["nexus_claims", "digest_session", "in_line"] == found["nexus_waiting", "concurrency"] == 6
    assert found["nexus_claims", "digest_session", "waiting"] == found["nexus_waiting", "delay"] == 1
    assert found["nexus_jobs_requested_total", "digest_session", "enqueued"] == 23
    assert found["nexus_jobs_requested_total", "digest_session", "merged"] == 1
    assert (found["nexus_line_length", "1", ""], found["nexus_line_length", "2", ""]) == (4, 2)
    monkeypatch.setenv("NEXUS_METRICS_NAMESPACES", "true")
    with here.another() as other:
        named = samples_of(Monitor(other, shared=0))
    assert named["nexus_line_length", "1", "big"] == 4
    # Of many claims, some are drawn at random.
    drawn = json.loads(here.deployment.claims._run("figures", [], 0, 4, 1))
    assert drawn["claims"]["pending"] == {"digest_session": 16}
    assert drawn["lines"] == [["big", 4]]


def test_processes_share_what_costs_redis_more(here: Sandbox) -> None:
    first, second = Monitor(here.deployment), Monitor(here.deployment)
    assert samples_of(first).get(("nexus_claims", "digest_session", "pending"), 0) == 0
    digest_session.delay(namespace="acme", session_key="s")
    assert samples_of(second)["nexus_claims", "digest_session", "pending"] == 0, "not the figures that `first` has read"
    assert samples_of(Monitor(here.deployment, shared=0))["nexus_claims", "digest_session", "pending"] == 1


def test_retries_crashes_and_restored_jobs_are_counted(here: Sandbox) -> None:
    claims, kind = here.deployment.claims, here.deployment.engine.kind("digest_session")
    [request] = [kind.request_for(kind.load({"namespace": "acme", "session_key": "s"}))]
    claims.claim([request])
    _, claim, _ = claims.begin(request, "dead-1", lease=10, cap=1, gathers=False, published_at="")
    assert claim
    claims.wait([claim], "retry", 0.0, retry=True)
    claims.sweep_due(10)
    claims.begin(request, "dead-2", lease=10, cap=1, gathers=False, published_at="")
    found = samples_of(Monitor(here.deployment, shared=0))
    assert found["nexus_crashes_total", "digest_session"] == 0, "a first value is no increase"
    claims.sweep_leases(10, attempts=5, token="sweep-1", lease=10, due_in=0, held_by="dead")
    found = samples_of(Monitor(here.deployment, shared=0))
    assert found["nexus_retries_total", "digest_session"] == found["nexus_crashes_total", "digest_session"] == 1
    say("I drink green tea.")
    here.flush()
    Reconciler(here.deployment.engine).round()
    found = samples_of(Monitor(here.deployment, shared=0))
    assert found["nexus_jobs_restored_total", "derive_memory"] == 1
    assert ("nexus_retries_total", "digest_session") not in found, "Redis was emptied"


def test_the_bounds_of_the_histograms_are_those_that_redis_counts() -> None:
    lua = (Path(claims_of_redis.__file__).parent / "lua" / "common.lua").read_text()
    told = re.search(r"local BOUNDS = \{(.*)\}", lua)
    assert told
    assert [int(bound) / 1000 for bound in told[1].split(",")] == list(BOUNDS)
    found = {one.name: one for one in counters({"wait_le|k|100": 2, "wait_le|k|inf": 1, "wait_ms|k": 5_000})}
    assert found["nexus_wait_seconds"].value == 5.0
    assert cumulative(found["nexus_wait_seconds"])[0] == ("0.1", 2)
    assert cumulative(found["nexus_wait_seconds"])[-1] == ("+Inf", 3)
    assert found["nexus_runs_begun_total"].value == 3


def test_a_model_call_is_counted(here: Sandbox) -> None:
    usage = Usage(input_tokens=10, output_tokens=5, cache_write_tokens=0, cache_read_tokens=90)
    price = here.deployment.settings.price_of("claude-haiku-4-5")
    for batched in (False, True):
        call = PaidCall(
            job_id="j", purpose="digest", model="a|b", usage=usage, price=price, seconds=2.5, batched=batched
        )
        count_call(here.deployment.claims, call)
    found = samples_of(Monitor(here.deployment, shared=0))
    assert found["nexus_model_calls_total", "digest", "a_b", "live"] == 1
    assert found["nexus_model_calls_total", "digest", "a_b", "batch"] == 1
    assert found["nexus_model_tokens_total", "digest", "a_b", "cache_read"] == 180
    assert found["nexus_model_call_seconds_total", "digest", "a_b"] == 2.5
    live, batch = (found["nexus_model_cost_usd_total", "digest", "a_b", mode] for mode in ("live", "batch"))
    assert live == pytest.approx(2 * batch)
    assert live == pytest.approx(float(cost_usd(usage, price)), abs=1e-9)


def test_labels_are_bounded() -> None:
    many = [Sample("nexus_runs_begun_total", (f"kind{n}",), 1.0) for n in range(MOST_LABELS + 50)]
    found = bounded(many)
    assert len(found) == MOST_LABELS + 1
    assert found[-1] == Sample("nexus_runs_begun_total", ("other",), 50.0)
    many = [Sample("nexus_run_seconds", (f"kind{n}",), 1.0, (1, 2)) for n in range(MOST_LABELS + 2)]
    assert bounded(many)[-1] == Sample("nexus_run_seconds", ("other",), 2.0, (2, 4))


@pytest.mark.usefixtures("here")
def test_the_command_prints_the_counters_of_the_deployment() -> None:
    say("I drink green tea.", end=True)
    work("derive_memory")
    found = figures(nexus("metrics").stdout)
    assert found["nexus_jobs_ended_total", "completed", "derive_memory"] == 1
    assert Nexus().status(NAMESPACE).namespaces[0].underived == found["nexus_wanted_derivations",] == 0


def test_a_worker_logs_json_that_names_the_job(here: Sandbox) -> None:
    say("I drink green tea.", end=True)
    (here.folder / "talking.py").write_text(
        "import logging\n"
        "from celery.signals import task_prerun\n"
        "from nexus_tasks.celery import app\n"
        "@task_prerun.connect\n"
        "def tell(**_):\n"
        "    logging.getLogger('shop').warning('It begins.')\n"
    )
    path = os.pathsep.join([str(here.folder), here.environment.get("PYTHONPATH", "")])
    worker = here.worker(app="talking", NEXUS_LOG_FORMAT="json", PYTHONPATH=path)

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in worker.text().splitlines() if line.startswith('{"time"')]

    [told, *_] = eventually(lambda: [one for one in lines() if one["logger"] == "shop" and one.get("namespace")])
    assert told["message"] == "It begins."
    assert told["namespace"] == NAMESPACE
    assert told["kind"] in {"derive_memory", "digest_session"}
    assert told["trace"]
    ended = eventually(lambda: [one for one in lines() if "succeeded" in one["message"]])
    assert all("{" not in one["message"] and one["job"] for one in ended)
    assert "green tea" not in worker.text()


def answer(start: Any) -> list[bytes]:
    start("200 OK", [])
    return [b"alive"]


def test_slow_clients_neither_pile_up_nor_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS", 2.0)
    made = server.make("127.0.0.1", 0, lambda _environ, start: answer(start))
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    port, before = made.server_port, threading.active_count()
    opened = []
    try:
        for _ in range(3 * server.CONNECTIONS):
            opened.append(socket.create_connection(("127.0.0.1", port), timeout=20))
            opened[-1].sendall(b"GET /livez HTTP/1.1\r\nX: ")
        assert get(port, "livez") == (200, "alive")
        eventually(lambda: threading.active_count() <= before + 2 * server.CONNECTIONS)  # a thread and a timer each
        slow = opened[-1]
        began = time.monotonic()
        with suppress(OSError):  # it sends a byte now and then, and is cut off all the same
            while time.monotonic() - began < 20:
                slow.sendall(b"a")
                time.sleep(0.1)
        assert time.monotonic() - began < 15
        eventually(lambda: threading.active_count() <= before)
        assert get(port, "livez") == (200, "alive")
    finally:
        for one in opened:
            one.close()
        made.shutdown()
        made.server_close()
        thread.join(20)
