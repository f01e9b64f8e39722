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
def test_an_error_as_json_for_a_full_device_is_one_line(line: str) -> None:
    with open("/dev/full", "w") as full:
        settings = {**os.environ, "NEXUS_DATABASE_URL": "nonsense"}
        command = [*NEXUS, *line.split()]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, env=settings)
    assert ran.returncode == 1
    assert ran.stderr == b"error: The output cannot be written: No space left on device.\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="This system has no /dev/full.")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("line", "code"), [("search", 2), ("ingest /nowhere --namespace acme", 1)])
def test_messages_for_a_full_device_change_no_exit_code(line: str, code: int, unbuffered: str) -> None:
    settings = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ran = subprocess.run([*NEXUS, *line.split()], stderr=full, check=False, env=settings)
    assert ran.returncode == code


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="This system has no /dev/full.")
def test_a_hint_for_a_full_device_fails_no_command() -> None:
    hinted = "from nexus_tasks.cli import main, output; main._let_no_message_fail(); output.hint('done')"
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", hinted], stderr=full, check=False).returncode == 0


@pytest.mark.parametrize("columns", ["0", "1000000000", "9" * 30])
def test_an_impossible_width_is_ignored(columns: str) -> None:
    settings = {**os.environ, "COLUMNS": columns}
    ran = subprocess.run([*NEXUS, "status", "--help"], capture_output=True, text=True, check=False, env=settings)
    assert "Usage: nexus.cli.main status" in ran.stdout or "Usage: nexus status" in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) < 200


def test_an_interrupt_at_the_start_is_no_traceback() -> None:
    code = (
        "import gc, signal; gc.disable = lambda: signal.raise_signal(signal.SIGINT); import nexus_tasks.cli.entry as e"
    )
    ran = subprocess.run([sys.executable, "-c", f"{code}; e.main()"], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (130, b"")


def test_a_pipe_without_a_reader_ends_a_command_with_1() -> None:
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run([*NEXUS, "--version"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert ran.returncode == 1
