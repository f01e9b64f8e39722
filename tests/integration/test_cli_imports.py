"""What a command imports. Each of these modules would be felt at the start of every command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nexus_tasks import Nexus
from tests.sandbox import Sandbox

# Runs a command as the program `nexus` does, and prints which of the named modules it has imported.
CODE = """
import sys
heavy, sys.argv = sys.argv[1].split(), ["nexus", *sys.argv[2:]]
from nexus_tasks.cli.entry import main
try:
    main()
finally:
    print("imported:", *(name for name in heavy if name in sys.modules), file=sys.stderr)
"""
OFFLINE, REFLECT = "nexus_tasks.llm.offline", "nexus_tasks.cognition.reflect"
ALWAYS = ("alembic", "anthropic", OFFLINE, REFLECT, "nexus_tasks.cli.doctor", "nexus_tasks.services.transfer")
COMMANDS = {
    ("status",): (*ALWAYS, "numpy", "nexus_tasks.tasks", "nexus_tasks.cognition"),
    ("jobs", "list"): (*ALWAYS, "numpy"),
    ("remember", "Deploys are on Tuesdays.", "--namespace", "acme"): (*ALWAYS, "numpy"),
    ("search", "deploys", "--namespace", "acme"): (*ALWAYS, "nexus_tasks.tasks", "nexus_tasks.cognition.answering"),
}


def imported(arguments: tuple[str, ...], among: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    """Run a command in a new process. Returns which modules of ``among`` it imported."""
    command = [sys.executable, "-c", CODE, " ".join(among), *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr.rpartition("imported:")[2].split()


def test_a_command_imports_only_what_it_needs(here: Sandbox) -> None:
    Nexus().remember("acme", "Deploys are on Mondays.")
    for arguments, among in COMMANDS.items():
        assert imported(arguments, among, here.environment) == [], arguments


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_no_library_of_the_servers(here: Sandbox, option: str) -> None:
    assert imported((option,), ("celery", "sqlalchemy", "redis", "anthropic", "numpy"), here.environment) == []
    assert imported((option,), ("typer",), here.environment) == ["typer"]  # else the check could not fail
