"""The dashboard and the alerts: every query is run by a real Prometheus that scrapes real workers during a real run."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Message, Nexus
from tests import prometheus
from tests.integration.jobkinds import ROOT, WITH_KINDS, play
from tests.integration.test_monitoring import free_port, port_of
from tests.sandbox import Sandbox, eventually

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(prometheus.missing()), reason=prometheus.missing() or "Prometheus is here"),
]
DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "nexus-tasks.json").read_text(encoding="utf-8"))
# What no job of this test makes happen: a lost message, and a claim that Redis has lost.
NOTHING_OF = ("nexus_messages_resent_total", "nexus_jobs_restored_total")

# The figures at which each alert must fire, as series of promtool: a first value, and what is added each minute; and
# after how many minutes.
FIRES: dict[str, tuple[str, str, int]] = {
    "NexusNoWorker": ("nexus_dead_letters", "0x30", 3),
    "NexusServerDown": ('nexus_dependency_up{dependency="redis"}', "0x30", 2),
    "NexusSweepStopped": ("nexus_sweep_age_seconds", "0+60x30", 4),
    "NexusMemoryLate": ("nexus_oldest_wanted_seconds", "0+60x30", 17),
    "NexusMessageNotBegun": ("nexus_oldest_pending_seconds", "0+60x30", 12),
    "NexusDeadLetters": ("nexus_dead_letters", "0x10 1x20", 12),
    "NexusKindPaused": ('nexus_kind_paused{kind="derive_memory"}', "1x30", 6),
    "NexusCrashes": ('nexus_crashes_total{kind="derive_memory"}', "0x10 20x20", 12),
    "NexusHeldThreads": ('nexus_held_threads{worker="w"}', "1x30", 6),
    "NexusQuarantine": ("nexus_quarantined_messages", "3x10 4x20", 12),
    "NexusLoopStuck": ('nexus_process_loop_age_seconds{loop="nexus-sweep"}', "0+60x30", 4),
    "NexusDatabasePoolFull": ("nexus_process_database_connections", "20x30", 3),
    "NexusBufferNotStored": ("nexus_process_buffer_oldest_seconds", "3000+60x60", 30),
}
# Figures of a deployment in which all is well.
WELL = {
    "nexus_process_pool_slots": "8x60",
    'nexus_dependency_up{dependency="redis"}': "1x60",
    "nexus_sweep_age_seconds": "2x60",
    "nexus_oldest_wanted_seconds": "9x60",
    "nexus_oldest_pending_seconds": "0x60",
    "nexus_dead_letters": "7x60",
    'nexus_crashes_total{kind="derive_memory"}': "1x60",
    "nexus_quarantined_messages": "3x60",
    'nexus_process_loop_age_seconds{loop="nexus-sweep"}': "2x60",
    "nexus_process_database_connections": "3x60",
    "nexus_process_database_connections_max": "20x60",
    "nexus_process_buffer_oldest_seconds": "0x60",
}


def checked(*command: str) -> None:
    done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_and_none_does_where_all_is_well(tmp_path: Path) -> None:
    checked("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    tests = [_expect("ALERTS", WELL, 40, [])]
    for alert, (series, values, minutes) in FIRES.items():
        changed = {**WELL, series: values}
        if alert == "NexusNoWorker":
            del changed["nexus_process_pool_slots"]
        firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
        tests.append(_expect(firing, changed, minutes, [{"labels": "{}", "value": 1}]))
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": tests}))
    checked("test", "rules", str(tmp_path / "tests.yml"))


def _expect(query: str, series: dict[str, str], minutes: int, samples: list[dict[str, Any]]) -> dict[str, Any]:
    given = [{"series": _of_job(name), "values": values} for name, values in series.items()]
    wanted = {"expr": query, "eval_time": f"{minutes}m", "exp_samples": samples}
    return {"interval": "1m", "input_series": given, "promql_expr_test": [wanted]}


def _of_job(name: str) -> str:
    metric, _, labels = name.partition("{")
    return f'{metric}{{job="nexus-tasks",instance="a:9540",{labels or "}"}'


def panels() -> Iterator[tuple[str, str]]:
    """Title and query of every target of the dashboard."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$job", ".*").replace("$__rate_interval", "30s")


def scaling() -> Iterator[tuple[str, str]]:
    """The queries of the page on scaling, from which an autoscaler would read."""
    page = (DEPLOY.parent / "docs" / "scaling.md").read_text(encoding="utf-8")
    found = re.findall(r"```promql\n(.*?)```", page, re.DOTALL)
    assert len(found) >= 3
    for query in found:
        yield "scaling", query.replace("[5m]", "[30s]")


def work_once(number: int) -> None:
    """Conversations and dreams, a retry, a dead letter, a crash, a job that is asked for twice, and a line."""
    nexus = Nexus()
    for session in range(2):
        said = [f"In week {number} I read {n + 3} pages of book {session}." for n in range(4)]
        messages = [Message(author="ann", content=one) for one in said]
        nexus.ingest("acme", f"s{session}", messages, end=True)
    play.delay(name=f"retry{number}", plan=("transient", "ok"))
    play.delay(name=f"dead{number}", plan=("permanent",))
    play.delay(name=f"crash{number}", plan=("kill", "ok"))
    for n in range(3):
        play.delay(namespace="lined", name=f"held{n}", plan=("hold",))
    for _ in range(2):
        play.apply_async(kwargs={"name": "later"}, countdown=300)


def test_every_query_of_the_dashboard_has_data(claude: Callable[..., Sandbox]) -> None:
    """One test, because workers and Prometheus take seconds to start."""
    here = claude(NEXUS_DERIVE_MAX_WAIT="0", NEXUS_METRICS_PORT=str(free_port()))
    Nexus().create_namespace("acme")
    Nexus().create_namespace("lined", concurrency=1)
    # A crash ends a process of the second worker's pool, and not a worker.
    threads = here.worker("--queues", "derive,reflect,digest,capture", *WITH_KINDS, **ROOT)
    processes = here.worker(*WITH_KINDS, pool="processes", concurrency=4, **ROOT)
    with prometheus.scraping([port_of(threads), port_of(processes)], ALERTS) as server:
        eventually(lambda: sum(server.values("nexus_dependency_up")) == 6, within=60)
        for number in (1, 2):  # a rate needs a counter that has grown since it appeared
            work_once(number)
            done = f'max(nexus_jobs_ended_total{{kind="play",status="dead"}}) >= {number}'
            crashed = f"max(nexus_crashes_total) >= {number} and max(nexus_retries_total) >= {number}"
            derived = f'max(nexus_jobs_ended_total{{kind="derive_memory",status="completed"}}) >= {8 * number}'
            digested = f'max(nexus_model_calls_total{{purpose="digest"}}) >= {number}'
            for query in (done, crashed, derived, digested, "max(nexus_line_length) >= 1"):
                eventually(lambda query=query: server.values(query), why=f"no data: {query}")
        scraped = 'count(max by (kind) (rate(nexus_run_seconds_count{kind="derive_memory"}[30s])) > 0)'
        eventually(lambda: server.values(scraped))
        heartbeat = "nexus_process_pool_heartbeat_age_seconds"
        eventually(lambda: server.values(heartbeat))
        empty, no_number = [], []
        for title, query in (*panels(), *scaling()):
            values = server.values(query)
            if not values and not any(name in query for name in NOTHING_OF):
                empty.append((title, query))
            if values and not any(map(math.isfinite, values)):
                no_number.append((title, query))
        assert (empty, no_number) == ([], [])
        rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} == set(FIRES)
        assert [rule for rule in rules if rule["health"] != "ok"] == []
        firing = {one["labels"]["alertname"] for one in server.get("alerts")["alerts"] if one["state"] == "firing"}
        assert firing == {"NexusDeadLetters"}
        names = server.get("label/__name__/values")
        used = " ".join(query for _, query in panels()) + ALERTS.read_text()
        shown = {name for name in names if name.startswith("nexus_") and name in used}
        assert len(shown) > 25
        assert "lined" not in json.dumps(server.get("query", query='{job="nexus-tasks"}')), "a namespace's name"


def test_the_docs_name_every_alert() -> None:
    page = (DEPLOY.parent / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(Nexus\w+)` \|", page, re.MULTILINE) == list(FIRES)


def test_the_dashboard_is_laid_out() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    places = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells
