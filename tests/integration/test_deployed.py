"""What the manifests and the compose file say, as processes: their commands, environment, health checks and ends.

There is no container here. A process of a manifest has a root file system that it cannot write, and the manifest's two
volumes. Images, users, networks and schedulers are not tried.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from nexus_tasks import Nexus
from tests.rabbitmq import free_ports
from tests.sandbox import Sandbox, eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TOKEN = secrets.token_urlsafe(32)
# The volumes are mounted at the same paths, on a root that is read-only.
_READ_ONLY = (
    "mount --make-rprivate / && mount --bind / / && mount -o remount,ro,bind /"
    ' && mount -t tmpfs none {data} && TMPDIR={data} exec "$@"'
)


def may_mount() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0


def manifest(name: str, ports: Mapping[str, int]) -> str:
    """The text of a file, with free ports in the place of its own."""
    text = (ROOT / name).read_text()
    for own, free in ports.items():
        text = text.replace(own, str(free))
    return text


@contextmanager
def running(
    here: Sandbox, command: Sequence[str], environment: Mapping[str, str], within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    with (here.folder / "deployed.log").open("wb") as log:
        process = subprocess.Popen(
            [*within, *command],
            env={**here.environment, "PATH": path, **environment},
            cwd=here.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as page:
            return bool(page.status == 200)
    except (urllib.error.URLError, OSError):
        return False


# --- Kubernetes -------------------------------------------------------------------------------------------------------
def pod(name: str, ports: Mapping[str, int]) -> tuple[Any, dict[str, str]]:
    """The pod of a file, and the environment that its config map gives."""
    found = [*yaml.safe_load_all(manifest(f"deploy/kubernetes/{name}.yaml", ports))]
    config = yaml.safe_load(manifest("deploy/kubernetes/settings.yaml", ports))["data"]
    return found[0]["spec"]["template"]["spec"], config


@pytest.fixture
def volume(here: Sandbox) -> Path:
    if not may_mount():
        pytest.skip("this user may mount nothing")
    made = here.folder / "data"
    made.mkdir()
    return made


@pytest.mark.parametrize("name", ["worker", "beat", "api", "mcp"])
def test_a_pod_of_the_manifests_is_ready_and_ends_in_its_grace(here: Sandbox, volume: Path, name: str) -> None:
    metrics, http = free_ports(2)
    spec, config = pod(name, {"9540": metrics, "8700": http, "8000": http})
    [container] = spec["containers"]
    environment = config | {
        "NEXUS_HOME": str(volume / "nexus"),
        "NEXUS_MODEL": "offline",
        "NEXUS_HTTP_TOKEN": TOKEN,
        "NEXUS_MCP_TOKEN": TOKEN,
    }
    within = ("unshare", "--mount", "sh", "-c", _READ_ONLY.format(data=volume), "sh")
    port = metrics if name in ("worker", "beat") else http
    for first in spec.get("initContainers", []):
        prepare = [word.replace("/data", str(volume)) for word in first["command"]]
        within = (*within[:-2], within[-2].replace("&& TMPDIR", f"&& {shlex.join(prepare)} && TMPDIR"), within[-1])
    with running(here, container["command"], environment, within) as process:
        log = here.folder / "deployed.log"

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            if name == "mcp":  # its probes only connect
                return any(word in log.read_text() for word in ("running on", "Serving"))
            return all(
                answers(f"http://127.0.0.1:{port}{container[probe]['httpGet']['path']}")
                for probe in ("startupProbe", "livenessProbe", "readinessProbe")
            )

        eventually(ready, within=90, why=log.read_text())
        if name == "worker":
            Nexus().remember("acme", "Deploys happen on Tuesdays.", author="ops")
            eventually(lambda: here.sql("SELECT 1 FROM derivations WHERE state = 'done'"), within=60)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(spec["terminationGracePeriodSeconds"])
        assert time.monotonic() - began < spec["terminationGracePeriodSeconds"]


def test_the_migration_job_ends_with_success(here: Sandbox, volume: Path) -> None:
    spec, config = pod("migration", {})
    [container] = spec["containers"]
    within = ("unshare", "--mount", "sh", "-c", _READ_ONLY.format(data=volume), "sh")
    with running(here, container["command"], config | {"NEXUS_HOME": str(volume / "nexus")}, within) as process:
        assert process.wait(60) == 0, (here.folder / "deployed.log").read_text()


# --- Docker Compose ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["schema", "worker", "beat", "flower"])
def test_a_service_of_the_compose_file_runs_and_its_health_check_passes(here: Sandbox, name: str) -> None:
    metrics, flower = free_ports(2)
    text = manifest("docker-compose.yml", {"9540": metrics, "5555": flower})
    service = yaml.safe_load(text)["services"][name]
    ours = ("NEXUS_DATABASE_URL", "NEXUS_REDIS_URL", "NEXUS_MODEL")  # the rest is the file's
    given = {
        key: value for key, value in service["environment"].items() if key.startswith("NEXUS_") and key not in ours
    }
    environment = given | {"FLOWER_BASIC_AUTH": "me:pass", "FLOWER_COOKIE_SECRET": TOKEN, "FLOWER_PORT": str(flower)}
    command = [word.replace("$$", "$") for word in service["command"]]
    with running(here, command, environment) as process:
        log = here.folder / "deployed.log"
        if name == "schema":
            assert process.wait(60) == 0, log.read_text()
            return
        kind, *test = service["healthcheck"]["test"]
        checked = ["sh", "-c", *test] if kind == "CMD-SHELL" else test
        checked = [word.replace("/data", str(here.folder)).replace("$$", "$") for word in checked]
        env = {**here.environment, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

        def healthy() -> bool:
            assert process.poll() is None, log.read_text()
            return subprocess.run(checked, env=env, check=False, capture_output=True, timeout=30).returncode == 0

        eventually(healthy, within=90, why=log.read_text())
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
