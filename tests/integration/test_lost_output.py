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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="This system has no /dev/full.")
@pytest.mark.parametrize("line", ["search --json", "search tea --namespace acme --json"])
def test_an_error_as_json_for_a_full_device_is_no_traceback(line: str) -> None:
    with open("/dev/full", "w") as full:
        settings = {**os.environ, "NEXUS_DATABASE_URL": "nonsense"}
        command = [*NEXUS, *line.split()]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, env=settings)
    assert (ran.returncode, ran.stderr) == (1, b"")


def test_a_pipe_without_a_reader_ends_a_command_with_1() -> None:
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run([*NEXUS, "--version"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert ran.returncode == 1
