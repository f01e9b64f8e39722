"""Peers in virtual environments of their own, below a temporary folder."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

# Why there is no column.
LEFT_OUT = {
    "Honcho": "its server is no package of PyPI (honcho-ai and honcho-core are clients); it comes as a repository "
    "with Docker, so this command cannot install it",
    "mem0": "mem0ai is a library that works inside the caller's call; it has no jobs, workers or queue to hit",
}


class CannotInstall(Exception):
    """A peer cannot be installed here; the text says why."""


def celery(folder: Path) -> Path:
    """Install stock Celery, of the version that nexus-tasks uses here. Returns the environment's interpreter.

    Raises:
        CannotInstall: there is no network, or no such package.
    """
    python = folder / "celery" / "bin" / "python"
    packages = [f"celery[redis]=={version('celery')}", f"redis=={version('redis')}", "psycopg[binary]"]
    for command in (
        [sys.executable, "-m", "venv", str(folder / "celery")],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        if done.returncode:
            raise CannotInstall((done.stderr or done.stdout).strip().splitlines()[-1])
    return python
