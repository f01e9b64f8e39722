"""A Prometheus of a test's own, and its promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rabbitmq import free_ports
from tests.sandbox import eventually


def missing() -> str:
    """Why no Prometheus can be started here; empty when one can."""
    if shutil.which("prometheus") and shutil.which("promtool"):
        return ""
    return "Prometheus is not installed: `apt-get install prometheus`, or `make prometheus` as root."


@dataclass
class Prometheus:
    """A running server. ``url`` has no slash at its end."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """The data that an address of the API gives. An error of a query fails the test."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def values(self, expression: str) -> list[float]:
        """The values of a query now."""
        return [float(one["value"][1]) for one in self.get("query", query=expression)["result"]]


@contextmanager
def scraping(ports: Sequence[int], rules: Path, *, every: str = "1s") -> Iterator[Prometheus]:
    """A server that scrapes these ports as the job ``nexus-tasks``, and evaluates the rules."""
    [port] = free_ports(1)
    folder = Path(tempfile.mkdtemp(prefix="prom", dir="/tmp"))
    configuration = {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": "nexus-tasks", "static_configs": [{"targets": [f"127.0.0.1:{one}" for one in ports]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    address = f"127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        server = Prometheus(f"http://{address}")
        eventually(lambda: process.poll() is not None or _ready(server), within=60, why="Prometheus does not start")
        assert process.poll() is None, (folder / "log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _ready(server: Prometheus) -> bool:
    try:
        with urllib.request.urlopen(f"{server.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
