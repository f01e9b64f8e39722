"""The wheel alone, in an empty environment, from any folder."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nexus_tasks import embedded

ROOT = Path(__file__).parents[2]
PROBE = """
from importlib import resources
from nexus_tasks.idempotency.claims import _sources
from nexus_tasks.cognition.prompts import instructions
from nexus_tasks.storage import schema
assert {"claim", "begin", "take", "finish", "wait", "sweep_leases"} <= set(_sources())
assert all(instructions(purpose) for purpose in ("derive", "reflect", "digest"))
assert schema.versions.__module__ and list((resources.files("nexus_tasks") / "storage/migrations/versions").iterdir())
try:
    import celeryconfig
except ImportError:
    print("whole")
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The output of a command that succeeds, in an environment without ours."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEXUS_", "CELERY_", "ANTHROPIC_", "PYTHON"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def check_metadata(wheel: Path) -> None:
    """The wheel names an author and the Python versions, and its description has no link to a file."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Author"]
    versions = [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]
    assert set(versions) <= set(metadata.get_all("Classifier") or ())
    description = str(metadata.get_payload())
    assert "docs/guarantees.md" in description
    assert [link for link in re.findall(r"\]\(([^)\s]+)\)", description) if "://" not in link] == []


def check_mcp(nexus: Path, cwd: Path, home: Path) -> None:
    """`nexus mcp` serves its tools with the extra `embedded` alone, and keeps what it is told."""
    calls = (
        (
            "initialize",
            {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
        ),
        ("tools/call", {"name": "remember", "arguments": {"text": "Deploys happen on Tuesdays."}}),
        ("tools/call", {"name": "recall", "arguments": {"query": "when are deploys?"}}),
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEXUS_", "CELERY_", "ANTHROPIC_", "PYTHON"))}
    with subprocess.Popen(
        [nexus, "mcp", "--namespace", "me"],
        cwd=cwd,
        env={**kept, "NEXUS_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        answer = {}
        for number, (method, params) in enumerate(calls):
            said = [{"jsonrpc": "2.0", "id": number, "method": method, "params": params}]
            said += [{"jsonrpc": "2.0", "method": "notifications/initialized"}] if method == "initialize" else []
            server.stdin.write("".join(json.dumps(one) + "\n" for one in said))
            server.stdin.flush()
            while (answer := json.loads(server.stdout.readline())).get("id") != number:
                pass
            assert "result" in answer, answer
        assert "Tuesdays" in json.dumps(answer)
        server.stdin.close()
        assert server.wait(timeout=60) == 0


@pytest.mark.long
@pytest.mark.timeout(600)  # it installs the wheel with all that the wheel needs
def test_the_wheel_works_alone(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    check_metadata(wheel)
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    commands = tmp_path / "venv" / "bin"
    pip = (commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--constraint", ROOT / "constraints.txt", f"{wheel}[embedded]", cwd=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home = {"NEXUS_HOME": str(tmp_path / "home")}
    assert run(commands / "python", "-c", PROBE, cwd=elsewhere, **home) == "whole\n"
    assert "ingest" in run(commands / "nexus", "--help", cwd=elsewhere, **home)
    try:
        demo = run(commands / "nexus", "demo", cwd=elsewhere, **home)
        assert "offline" in demo
        assert "Deploys now happen on Thursdays." in demo
        report = run(commands / "celery", "-A", "nexus_tasks", "report", cwd=elsewhere, **home)
        assert "nexus_tasks" in report
        check_mcp(commands / "nexus", elsewhere, tmp_path / "home")
        assert list(elsewhere.iterdir()) == []
    finally:
        embedded.stop(tmp_path / "home" / "demo")
        embedded.stop(tmp_path / "home")
