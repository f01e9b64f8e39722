"""Output that nobody gets ends a command with a code other than 0, and wrong usage with `--json` is JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.commandline import nexus

NEXUS = (sys.executable, "-P", "-m", "nexus_tasks.cli.main")


@pytest.mark.parametrize(
    "line",
    [
        ["search", "tea", "--json"],
        ["status", "--json", "--limit", "x"],
        ["status", "--json", "--no"],
        ["jobs", "--json"],
    ],
)
def test_wrong_usage_with_json_is_json(line: list[str]) -> None:
    told = nexus(*line)
    assert told.returncode == 2
    error = json.loads(told.stdout)["error"]
    assert error["type"] == "UsageError"
    assert error["message"]
    assert not told.stderr


def test_a_closed_standard_output_loses_nothing_silently() -> None:
    lines = ("--version", "status --help")
    for line in lines:
        ran = subprocess.run(["sh", "-c", f"{' '.join(NEXUS)} {line} >&-"], capture_output=True, text=True, check=False)
        assert ran.returncode == 1, line
        assert "standard output is closed" in ran.stderr, line


def test_a_pipe_without_a_reader_ends_a_command_with_1() -> None:
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run([*NEXUS, "--version"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert ran.returncode == 1
