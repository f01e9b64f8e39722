"""A failed command prints the remedy of its own error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nexus_tasks import errors
from nexus_tasks.cli import failing
from nexus_tasks.cli.failing import FAILED, crash, fail


@pytest.fixture(autouse=True)
def _for_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --json, which another test's command may have asked for in this process."""
    monkeypatch.setattr(failing, "json_wanted", lambda: False)


@pytest.mark.parametrize(
    "error",
    [
        errors.Transient("The Claude API did not answer in time."),
        errors.Transient("The embedder does not answer (ConnectTimeout)."),
        errors.Throttled("Claude asked to be called later: slow down.", retry_after=7.0),
        errors.Erased(),
        errors.InvalidAnswer(),
    ],
)
def test_an_error_of_a_model_or_embedder_does_not_blame_postgres(
    error: errors.NexusError, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail(error) == FAILED
    line = " ".join(capsys.readouterr().err.split())
    assert line == f"error: {error.message} {error.remedy}"
    assert "NEXUS_DATABASE_URL" not in line
    assert "try again" in line, "a person has to try again, unlike a job"


def test_an_error_of_postgres_names_its_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(errors.StorageUnavailable("Postgres: connection refused.")) == FAILED
    assert "NEXUS_DATABASE_URL" in capsys.readouterr().err


def test_a_lack_of_memory_is_told_without_blaming_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert crash(MemoryError()) == FAILED
    line = " ".join(capsys.readouterr().err.split())
    assert line == "error: The process has too little memory. Raise its limit (`ulimit -v`) and try again."


@pytest.mark.parametrize("megabytes", [60, 70, 80, 90, 100, 110])
def test_a_command_with_too_little_memory_to_start_ends_with_one_line(megabytes: int) -> None:
    command = "ulimit -v $1; exec $2 -m nexus_tasks.cli.entry namespaces list --help"
    args = ["bash", "-c", command, "bash", str(1024 * megabytes), sys.executable]
    ended = subprocess.run(args, check=False, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 0 or "too little memory" in ended.stderr
