"""The wheel alone, in an empty environment, from any folder."""

from __future__ import annotations

import email
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import embedded
from tests.adapters.frameworks import INSTALLED
from tests.adapters.models import stand_in_for_models
from tests.pages import ROOT, blocks
from tests.sandbox import eventually
from tests.standin import StandIn

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


# The first facts of the page on adapters are derived before its next block is executed.
DERIVED = """
import time
while not nexus.memories("adapted", levels=["explicit"]):
    time.sleep(0.1)
"""
IMPORTED = """
import nexus_tasks
assert nexus_tasks.__file__.startswith({venv!r}), nexus_tasks.__file__
"""


def clean(**environment: str) -> dict[str, str]:
    """An environment without ours."""
    ours = ("NEXUS_", "CELERY_", "ANTHROPIC_", "OPENAI_", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | environment


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The output of a command that succeeds, in an environment without ours."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean(**environment),
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
    with subprocess.Popen(
        [nexus, "mcp", "--namespace", "me"],
        cwd=cwd,
        env=clean(NEXUS_HOME=str(home)),
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


@contextmanager
def serving(*command: str | Path, cwd: Path, **environment: str) -> Iterator[str]:
    """The address that a command of the wheel prints. SIGTERM ends the command."""
    log = cwd.parent / "served.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            cwd=cwd,
            env=clean(**environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        found = eventually(lambda: server.poll() is not None or re.search(r"http://[^\s;]+", log.read_text()))
        assert isinstance(found, re.Match), log.read_text()
        yield found[0]
    finally:
        server.terminate()
        ended = server.wait(60)
    assert ended in (0, -signal.SIGTERM), log.read_text()


def ask(url: str, token: str = "", body: dict[str, Any] | None = None) -> str:
    """The answer of a server."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    asked = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]


def check_http(nexus: Path, cwd: Path, NEXUS_HOME: str) -> None:
    """`nexus serve` answers the commands with `curl` of the page on HTTP, and serves the page for a browser."""
    token = secrets.token_urlsafe()
    environment = {"NEXUS_HOME": NEXUS_HOME, "NEXUS_HTTP_TOKEN": token}
    with serving(nexus, "serve", "0", cwd=cwd, **environment) as address:
        store, search, *_ = (text for language, text in blocks(ROOT / "docs/http.md") if "curl" in text)
        for text, expected in ((store, '"stored": 1'), (search, "Lisbon")):
            assert expected in run(
                "bash", "-ec", text.replace("http://127.0.0.1:8700", address), cwd=cwd, **environment
            )
        assert "Lisbon" in ask(f"{address}/v1/search", token, {"namespace": "acme", "query": "Lisbon"})
        check_page(address)


def check_page(address: str) -> None:
    """The page for a browser, and all files that it names."""
    page = ask(f"{address}/")
    named = re.findall(r'(?:src|href)="(browser/[^"#]+)"', page)
    assert {"browser/app.js", "browser/style.css"} <= set(named)
    scripts = [ask(f"{address}/{name}") for name in named]
    assert all(
        ask(f"{address}/browser/{name}") for text in scripts for name in re.findall(r'from "\./(\w+\.js)"', text)
    )


def check_browse(nexus: Path, cwd: Path, NEXUS_HOME: str) -> None:
    """The link of `nexus browse` opens the page once, and the page lists the namespaces."""
    with serving(nexus, "browse", "--no-open", cwd=cwd, NEXUS_HOME=NEXUS_HOME) as link:
        address, _, code = link.partition("/#key=")
        check_page(address)
        token = json.loads(ask(f"{address}/browser/key", body={"code": code}))["token"]
        assert "acme" in ask(f"{address}/v1/namespaces", token)
        with pytest.raises(urllib.error.HTTPError):
            ask(f"{address}/browser/key", body={"code": code})


def check_adapters(python: Path, cwd: Path, NEXUS_HOME: str) -> None:
    """The blocks of the page on adapters, in one program. The frameworks are those of the environment of the tests."""
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    (packages / "frameworks.pth").write_text(sysconfig.get_path("purelib"))
    page = blocks(ROOT / "docs/adapters.md")
    first, *others = (text for language, text in page if language == "python")
    program = "\n".join([IMPORTED.format(venv=str(packages)), first, DERIVED, *others])
    with StandIn() as standin, stand_in_for_models(standin) as environment:
        told = run(python, "-c", program, cwd=cwd, NEXUS_HOME=NEXUS_HOME, NEXUS_MODEL="offline", **environment)
    assert told == "".join(text for language, text in page if language == "text")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another test run does not close: as root, Postgres runs as a user that must reach the wheel's."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.long
@pytest.mark.timeout(900)  # it installs the wheel with all that the wheel needs: 171 to 519 s, by what runs beside it
def test_the_wheel_works_alone(folder: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    [wheel] = folder.glob("*.whl")
    check_metadata(wheel)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    commands = folder / "venv" / "bin"
    # To compile all that is installed takes more than a minute.
    pip = (sys.executable, "-m", "pip", "--python", commands / "python", "install", "--quiet", "--no-compile")
    constrained = ("--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
    run(*pip, *constrained, f"{wheel}[embedded]", cwd=folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    home = {"NEXUS_HOME": str(folder / "home")}
    assert run(commands / "python", "-c", PROBE, cwd=elsewhere, **home) == "whole\n"
    assert "ingest" in run(commands / "nexus", "--help", cwd=elsewhere, **home)
    try:
        demo = run(commands / "nexus", "demo", cwd=elsewhere, **home)
        assert "offline" in demo
        assert "Deploys now happen on Thursdays." in demo
        report = run(commands / "celery", "-A", "nexus_tasks", "report", cwd=elsewhere, **home)
        assert "nexus_tasks" in report
        check_mcp(commands / "nexus", elsewhere, folder / "home")
        run(*pip, *constrained, f"{wheel}[http]", cwd=folder)
        run(commands / "nexus", "up", "--detach", cwd=elsewhere, **home)
        assert "FAIL" not in run(commands / "nexus", "doctor", cwd=elsewhere, **home)
        check_http(commands / "nexus", elsewhere, **home)
        check_browse(commands / "nexus", elsewhere, **home)
        if INSTALLED.exists():
            check_adapters(commands / "python", elsewhere, **home)
        assert list(elsewhere.iterdir()) == []
    finally:
        run(commands / "nexus", "down", cwd=folder, **home)
        embedded.stop(folder / "home" / "demo")
        embedded.stop(folder / "home")


@pytest.mark.long
def test_the_source_distribution_has_no_secret_that_lies_beside_the_code(folder: Path) -> None:
    tree = folder / "tree"
    for name in run("git", "ls-files", cwd=ROOT).splitlines():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    beside = [
        ".env",
        "nexus_tasks/.env.local",
        "docs/tls.key",
        "docs/tls.pem",
        "examples/shop.sqlite3",
        "deploy/.netrc",
    ]
    for name in (*beside, "notes/private.txt", "nexus_tasks/__pycache__/left.pyc"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("planted")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    commands = folder / "venv" / "bin"
    run(commands / "pip", "install", "--quiet", "--requirement", ROOT / "requirements-build.txt", cwd=folder)
    run(commands / "hatchling", "build", "--target", "sdist", cwd=tree)
    [built] = (tree / "dist").iterdir()
    with tarfile.open(built) as archive:
        files = {one.name.partition("/")[2]: archive.extractfile(one) for one in archive}
        assert {"pyproject.toml", "hatch_build.py", "README.md", "nexus_tasks/__init__.py", "docs/index.md"} <= set(
            files
        )
        assert [name for name, file in files.items() if file and file.read() == b"planted"] == []
