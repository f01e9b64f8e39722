"""The TypeScript client: its types are those of the OpenAPI document, and node drives a real `nexus serve` with it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.served import TOKEN, serving
from tests.pages import ROOT, blocks
from tests.sandbox import Sandbox

CLIENT = ROOT / "clients" / "typescript"


def missing() -> str:
    """Why the client cannot be built here; empty when it can."""
    if shutil.which("node") is None:
        return "node is not installed: install node 20 or later, then `make typescript`."
    return (
        ""
        if (CLIENT / "node_modules" / "typescript").is_dir()
        else "Its packages are not installed: `make typescript`."
    )


pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


def run(*command: str, cwd: Path = CLIENT, **environment: str) -> str:
    """Run a command, which must succeed. What it printed."""
    path = {"PATH": f"{CLIENT / 'node_modules' / '.bin'}:/usr/local/bin:/usr/bin:/bin"}
    node = {"PATH": f"{Path(str(shutil.which('node'))).parent}:{path['PATH']}"}
    ran = subprocess.run(
        command, cwd=cwd, env={**node, **environment}, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled client with its tests."""
    folder = tmp_path_factory.mktemp("typescript")
    run("tsc", "--outDir", str(folder))
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "node_modules").symlink_to(CLIENT / "node_modules")
    return folder


def test_the_types_are_those_of_the_document(tmp_path: Path) -> None:
    made = tmp_path / "schema.ts"
    run("npm", "run", "generate", str(made), HOME=str(tmp_path))
    assert made.read_text() == (CLIENT / "src" / "schema.ts").read_text(), (
        "docs/openapi.json has changed: `make typescript-types`"
    )


def test_node_drives_a_real_server(here: Sandbox, built: Path) -> None:
    with serving(here) as url:
        here.worker()
        tests = sorted(str(path) for path in built.glob("test/*.test.js"))
        assert len(tests) == 2
        said = run("node", "--test", *tests, NEXUS_TEST_URL=url, NEXUS_HTTP_TOKEN=TOKEN)
    passed = re.search(r"^# pass (\d+)$", said, re.MULTILINE)
    assert passed, said
    assert int(passed[1]) == 32


def test_the_example(here: Sandbox, built: Path) -> None:
    [code] = [text for language, text in blocks(CLIENT / "README.md") if language == "ts"]
    assert code.strip() in (CLIENT / "example.ts").read_text().replace("./src/index.js", "nexus-tasks")
    with serving(here) as url:
        said = run("node", "example.js", url, cwd=built, NEXUS_HTTP_TOKEN=TOKEN)
    assert "Lisbon" in said.split("sentence", 1)[0], said
    assert re.search(r"^answer .*Lisbon", said, re.MULTILINE), said


def test_the_lock_names_no_host() -> None:
    text = (CLIENT / "package-lock.json").read_text()
    assert '"integrity"' in text
    assert "://" not in text
