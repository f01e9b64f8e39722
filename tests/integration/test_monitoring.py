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
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nexus_tasks import Nexus
from nexus_tasks.idempotency.worker import vitals
from nexus_tasks.idempotency.worker.vitals import Vitals
from nexus_tasks.monitoring import endpoint, sources
from nexus_tasks.monitoring.definitions import METRICS, MOST_LABELS, Sample, bounded
from nexus_tasks.monitoring.endpoint import Monitor
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
    assert names == {name for name, metric in METRICS.items() if "namespace" not in metric.labels}


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
    monkeypatch.delenv("NEXUS_METRICS_PORT")
    assert "NEXUS_METRICS_PORT" in nexus("health").stderr


def test_labels_are_bounded() -> None:
    many = [Sample("nexus_runs_begun_total", (f"kind{n}",), 1.0) for n in range(MOST_LABELS + 50)]
    found = bounded(many)
    assert len(found) == MOST_LABELS + 1
    assert found[-1] == Sample("nexus_runs_begun_total", ("other",), 50.0)


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
