"""Small promises of the commands: pids, causes, plurals, titles in pipes, plain output, completion."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cli.stack.lifetime import claim
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.file_locks import try_lock
from tests.commandline import nexus
from tests.integration.inline import say, work
from tests.sandbox import Sandbox

ESCAPE = "\x1b"


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEXUS_", "NO_COLOR"))}
    command = [sys.executable, "-m", "nexus_tasks.cli.entry", *arguments]
    env = {**kept, "COLUMNS": "80", **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def ended_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_loser_of_two_starts_names_the_winner(tmp_path: Path) -> None:
    """The winner has the lock a moment before its pid is in the file; until then an ended supervisor's pid is there."""
    (tmp_path / "stack.pid").write_text(f"{ended_pid()}\n")
    held = try_lock(tmp_path / "stack.pid")
    assert held is not None
    with held:
        writer = threading.Timer(0.3, lambda: held.write(f"{os.getpid()}\n"))
        writer.start()
        with pytest.raises(EmbeddedError, match=rf"already runs \(pid {os.getpid()}\)"):
            claim(tmp_path)
        writer.join()


def test_a_command_that_looks_at_the_lock_is_not_taken_for_a_stack_that_runs(tmp_path: Path) -> None:
    looks = try_lock(tmp_path / "stack.pid")
    assert looks is not None
    threading.Timer(0.2, looks.release).start()
    claim(tmp_path).release()


@pytest.mark.long
@pytest.mark.parametrize(
    ("home", "named"),
    [
        ("/proc/nope", "/proc/nope"),
        ("/dev/null", "/dev/null"),
        ("/dev/null/below", "/dev/null is in the way"),
        ("/tmp/" + "a" * 300, "/tmp/aaaa"),
    ],
)
@pytest.mark.parametrize("command", [("status",), ("up",), ("demo",)], ids=" ".join)
def test_an_impossible_home_is_named_as_the_cause(home: str, named: str, command: tuple[str, ...]) -> None:
    done = process(*command, NEXUS_HOME=home)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert said.startswith("error: ")
    assert "NEXUS_HOME" in said
    assert named in said
    assert "pip install" not in said
    assert "FileExistsError" not in said


def test_a_question_without_words_finds_nothing(here: Sandbox) -> None:  # noqa: ARG001
    say("I moved to Lisbon!!!", "!!!")
    work()
    assert Nexus().search("acme", "Lisbon").missing_embeddings == 0
    for question in ("!!!", "…", "?", " -- . "):
        assert list(Nexus().search("acme", question)) == []


def test_one_is_singular(here: Sandbox) -> None:
    (here.folder / "one.jsonl").write_text('{"content": "I moved to Lisbon."}\n')
    first = nexus("ingest", str(here.folder / "one.jsonl"), "--namespace", "acme")
    again = nexus("ingest", str(here.folder / "one.jsonl"), "--namespace", "acme")
    assert "Stored 1 message in" in first.stdout
    assert "1 was stored already." in again.stdout
    assert "1 message" in nexus("status").stdout
    assert not any(f"1 {noun}s" in nexus("status").stdout for noun in ("message", "job", "call"))


def test_a_table_in_a_pipe_begins_with_its_titles(here: Sandbox) -> None:  # noqa: ARG001
    Nexus().remember("acme", "I moved to Lisbon.")
    [titles, row] = nexus("memories", "list", "--namespace", "acme").stdout.splitlines()
    assert len(titles.split("\t")) == len(row.split("\t"))
    assert "level" in titles.split("\t")
    assert "raw" in row.split("\t")


@pytest.mark.parametrize("command", [("--help",), ("ingest", "--help"), ("nonsense",)], ids=" ".join)
@pytest.mark.long
def test_no_color_means_no_escapes(command: tuple[str, ...]) -> None:
    shown = process(*command, NO_COLOR="1", FORCE_COLOR="1")
    assert ESCAPE not in shown.stdout + shown.stderr
    assert ESCAPE in "".join(process(*command, FORCE_COLOR="1").stdout) + process(*command, FORCE_COLOR="1").stderr


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("bash", {"COMP_WORDS": "nexus jo", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "nexus jo"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "nexus jo", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_a_shell_is_told_the_words_that_fit(shell: str, asked: dict[str, str]) -> None:
    assert "_NEXUS_COMPLETE" in process("completion", shell).stdout
    assert "jobs" in process(_NEXUS_COMPLETE=f"complete_{shell}", **asked).stdout


def test_bash_completes_a_command(tmp_path: Path) -> None:
    (tmp_path / "nexus").write_text(f'#!/bin/sh\nexec {sys.executable} -m nexus_tasks.cli.entry "$@"\n')
    (tmp_path / "nexus").chmod(0o755)
    script = (
        "source <(nexus completion bash); COMP_WORDS=(nexus jobs ret); COMP_CWORD=2; _nexus_completion nexus; "
        'echo "${COMPREPLY[@]}"'
    )
    bash = shutil.which("bash")
    assert bash
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["retry"], done.stderr


def test_a_shell_that_asks_gets_no_warning_of_a_mistyped_setting() -> None:
    asked = {"COMP_WORDS": "nexus jo", "COMP_CWORD": "1", "NEXUS_DATABSE_URL": "x"}
    assert process(_NEXUS_COMPLETE="complete_bash", **asked).stderr == ""
