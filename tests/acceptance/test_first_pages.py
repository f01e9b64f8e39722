"""The README and the tutorial, executed as written, in order, by a user with nothing but the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nexus_tasks import embedded

ROOT = Path(__file__).parents[2]
README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"
# `make` is what runs this test, and the package is installed already.
LEFT_OUT = ("make ", "pip install")


@pytest.fixture
def folder() -> Iterator[Path]:
    """The user's folder; whatever was started for it ends with it."""
    made = Path(tempfile.mkdtemp(prefix="nexus-readme-"))
    try:
        yield made
    finally:
        subprocess.run(["nexus", "down"], env=environment(made), cwd=made, capture_output=True, timeout=60, check=False)
        embedded.stop(made / "home")
        shutil.rmtree(made)


def environment(folder: Path) -> dict[str, str]:
    """A user's environment: nothing of ours, and the commands of this interpreter first on the path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEXUS_", "ANTHROPIC_", "CELERY_", "FLOWER_"))}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "PATH": path, "NEXUS_HOME": str(folder / "home"), "HOME": str(folder), "COLUMNS": "80"}


def blocks(page: Path, language: str) -> list[str]:
    """The page's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Every command of the console blocks, comments off."""
    lines = (line for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ "))
    found = [line[2:].split("  #")[0].strip() for line in lines]
    return [command for command in found if not command.startswith(LEFT_OUT)]


def run(command: str, folder: Path) -> str:
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def follow(page: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """Do what a page says. Returns the output of its Python, and of each command after it."""
    [code] = blocks(page, "python")
    (folder / "example.py").write_text(code, encoding="utf-8")
    todo = commands(page)
    assert todo[0] == "nexus up --detach"
    assert todo[-1] == "nexus down"
    run(todo[0], folder)
    said = run(f"{sys.executable} example.py", folder)
    return said, {command: run(command, folder) for command in todo[1:]}


@pytest.mark.long
def test_the_readme_works_as_written(folder: Path) -> None:
    said, output = follow(README, folder)
    assert "completed" in said
    assert "Lisbon" in said
    assert "[m" in said
    assert "Lisbon" in output['nexus search "where does ann live" --namespace readme']


def test_the_readme_fits_two_screens() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 100


@pytest.mark.long
def test_the_tutorial_works_as_written(folder: Path) -> None:
    [line] = blocks(TUTORIAL, "json")
    (folder / "chat.jsonl").write_text(line, encoding="utf-8")
    said, output = follow(TUTORIAL, folder)
    assert "3 stored, 3 jobs queued" in said
    assert "completed" in said
    assert "green tea" in said
    assert "[m" in said
    assert "unchanged" in said
    assert output["nexus ingest chat.jsonl --namespace acme --wait"].startswith("Stored 1 message in namespace acme.")
    assert "Lisbon" in output['nexus search "where does ann live" --namespace acme']
