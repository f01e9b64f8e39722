"""No command, hook or server runs code of the folder it is started in: that folder may be an untrusted project's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import typer.main

from nexus_tasks import embedded
from nexus_tasks.cli.main import app
from nexus_tasks.embeddings.sentence_transformers import DEFAULT_MODEL, SentenceTransformerEmbedder
from nexus_tasks.errors import Misconfigured
from tests.sandbox import Sandbox, eventually

ROOT = Path(__file__).parents[2]
NEXUS = str(Path(sys.executable).with_name("nexus"))
OURS = {"celeryconfig", "flowerconfig", "nexus_tasks", "sitecustomize", "usercustomize", "conftest", "readline"}
CHAT = '{"session": "chat", "author": "ann", "content": "We deploy on Tuesdays.", "id": "1"}\n'
EVENT = {"hook_event_name": "Stop", "session_id": "s", "last_assistant_message": "Deployed."}
IN = ("--namespace", "acme")

# Every command with arguments that make it work; in this order, because some read what others have stored.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("namespaces", "create", "acme"),
    ("ingest", "chat.jsonl", *IN, "--observe"),
    ("remember", "Ann likes tea.", *IN),
    ("search", "deploy", *IN),
    ("context", *IN, "--query", "deploy"),
    ("profile", "ann", *IN),
    ("ask", "What does Ann like?", *IN),
    ("digest", "chat", *IN),
    ("dream", "acme", "--dry-run"),
    ("extract", "chat", *IN),
    ("memories", "list", *IN),
    ("memories", "show", "1", *IN),
    ("memories", "revise", "1", "Ann likes coffee.", *IN),
    ("memories", "pin", "1", *IN),
    ("memories", "unpin", "1", *IN),
    ("memories", "perspectives", *IN),
    ("sessions", "list", *IN),
    ("sessions", "show", "chat", *IN),
    ("sessions", "end", "chat", *IN),
    ("sessions", "log", "chat", *IN),
    ("sessions", "clear-task", "chat", *IN),
    ("sessions", "undo-log", "chat", *IN),
    ("namespaces", "list"),
    ("namespaces", "show", "acme"),
    ("namespaces", "set", "acme", "--concurrency", "2"),
    ("topics", "list", *IN),
    ("topics", "show", "none.md", *IN),
    ("status",),
    ("metrics",),
    ("doctor",),
    ("health", "--port", "1"),
    ("db", "upgrade"),
    ("db", "check"),
    ("db", "accept"),
    ("db", "reembed"),
    ("jobs", "list"),
    ("jobs", "show", str(uuid.UUID(int=0))),
    ("jobs", "finished"),
    ("jobs", "retry", "--all"),
    ("jobs", "pause", "acme"),
    ("jobs", "resume", *IN),
    ("jobs", "repair"),
    ("jobs", "quarantine"),
    ("buffer", "status"),
    ("buffer", "list"),
    ("buffer", "flush"),
    ("buffer", "recover"),
    ("buffer", "quarantine"),
    ("buffer", "release", "--all"),
    ("buffer", "clear", "--yes"),
    ("hook", "install", "claude-code"),
    ("hook", "claude-code"),
    ("hook", "codex"),
    ("hook", "cursor"),
    ("hook", "uninstall", "claude-code"),
    ("init", "--yes", *IN, "--model", "offline", "--agent", "claude-code"),
    ("export", *IN, "acme.jsonl"),
    ("import", "--namespace", "copy", "acme.jsonl"),
    ("undo", "1", *IN),
    ("tokens", "create", "agent", *IN, "--scope", "read"),
    ("tokens", "list", *IN),
    ("tokens", "rotate", "none", *IN),
    ("tokens", "revoke", "none", *IN),
    ("webhooks", "list", *IN),
    ("webhooks", "resume", "none", *IN),
    ("audit", *IN),
    ("completion", "bash"),
    ("forget", *IN, "--memory", "1", "--yes"),
    ("jobs", "drop", "--all", "--yes"),
    ("mcp", *IN),
    ("serve", "--openapi"),
    ("browse", "--no-open", "--port", "{taken}"),
    ("cells", "list"),
    ("cells", "prepare", "none"),
    ("cells", "move", "acme", "none"),
    ("cells", "erase", "acme"),
)
# These name what does not exist, and say so; `doctor` and `health` miss a worker, and the port of `browse` is taken.
REFUSED = {
    "sessions undo-log",
    "doctor",
    "health",
    "memories revise",
    "memories pin",
    "memories unpin",
    "topics show",
    "jobs show",
    "undo",
    "tokens rotate",
    "tokens revoke",
    "webhooks resume",
    "browse",
    "cells list",
    "cells prepare",
    "cells move",
    "cells erase",
}
WITH_SERVERS = (("up", "--detach", "--flower"), ("down",), ("demo",))
DAILY = {"doctor", "hook claude-code", "hook codex", "hook cursor", "mcp"}


def name_of(command: Sequence[str]) -> str:
    """The words of a command without its arguments: the longest beginning that is a command's name."""
    return max((name for name in command_names() if [*command][: len(name.split())] == name.split()), key=len)


def command_names() -> Iterator[str]:
    """The names of all commands, such as ``jobs list``."""
    waiting = [("", typer.main.get_command(app))]
    for path, command in waiting:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield path.strip()
        waiting += [(f"{path} {name}", one) for name, one in (inner or {}).items()]


def test_every_command_is_tried() -> None:
    assert {name_of(command) for command in (*COMMANDS, *WITH_SERVERS)} == set(command_names())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a module for every name that anything here imports. Each module leaves a trace when it runs."""
    folder = tmp_path / "project"
    folder.mkdir()
    trace = f"open({str(tmp_path / 'trace')!r}, 'a').write(__name__ + '\\n')\n"
    for name in {*sys.stdlib_module_names, *packages_distributions(), *OURS}:
        (folder / f"{name.partition('/')[0]}.py").write_text(trace)
    (folder / "chat.jsonl").write_text(CHAT)
    return folder


def ran_of(project: Path) -> list[str]:
    """The modules of the project that ran."""
    trace = project.parent / "trace"
    return sorted(set(trace.read_text().split())) if trace.exists() else []


def nexus(project: Path, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program ``nexus`` in the project, as a user's shell or a coding agent does."""
    more = {"PYTHONPATH": str(ROOT), "CLAUDE_CONFIG_DIR": str(project.parent)}
    return subprocess.run(
        [NEXUS, *arguments],
        env={**environment, **more},
        cwd=project,
        input=json.dumps(EVENT) if arguments[0] == "hook" else "",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def try_commands(here: Sandbox, project: Path, commands: Sequence[Sequence[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        each = [[port if word == "{taken}" else word for word in command] for command in commands]
        for command in each:
            _try(here, project, command)


def _try(here: Sandbox, project: Path, command: Sequence[str]) -> None:
    done = nexus(project, here.environment, *command)
    assert ran_of(project) == [], f"{command} ran code of the current folder"
    assert (done.returncode == 0) == (name_of(command) not in REFUSED), (command, done.stdout, done.stderr)


def the_hooks_process_is_done(here: Sandbox) -> None:
    def storing() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if "nexus_tasks.integrations.coding_agents.store" in line and process.is_running():
                try:
                    mine = process.environ().get("NEXUS_HOME") == str(here.folder)
                except psutil.Error:
                    continue
                found += [process] if mine else []
        return found

    eventually(lambda: not storing())


@pytest.mark.long
def test_daily_commands_run_no_code_of_the_folder(here: Sandbox, project: Path) -> None:
    try_commands(here, project, [command for command in COMMANDS if name_of(command) in DAILY])
    the_hooks_process_is_done(here)
    assert ran_of(project) == []


@pytest.mark.long
@pytest.mark.timeout(600)  # fifty processes, of which each takes about 3 s of a core
def test_no_command_runs_code_of_the_folder(here: Sandbox, project: Path) -> None:
    try_commands(here, project, COMMANDS)
    the_hooks_process_is_done(here)
    assert ran_of(project) == []


@pytest.mark.long
def test_neither_the_stack_nor_the_demo_runs_code_of_the_folder(tmp_path: Path, project: Path) -> None:
    home = tmp_path / "home"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NEXUS_", "CELERY_", "FLOWER_"))}
    environment = {**kept, "NEXUS_HOME": str(home), "NEXUS_MODEL": "offline", "FLOWER_PORT": "0"}
    try:
        for command in WITH_SERVERS:
            done = nexus(project, environment, *command)
            assert ran_of(project) == [], f"{command} ran code of the current folder"
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            for process in psutil.process_iter(["cmdline", "cwd"]):
                if any("nexus_tasks.cli.stack" in word for word in process.info["cmdline"] or []):
                    assert process.info["cwd"] != str(project), process.info
    finally:
        nexus(project, environment, "down")
        embedded.stop(home)
    assert ran_of(project) == []


@pytest.mark.parametrize(
    "command", [("hook", "claude-code"), ("hook", "install", "cursor"), ("remember", "Ann likes tea.", *IN)]
)
def test_a_relative_home_names_no_folder_of_the_project(here: Sandbox, project: Path, command: tuple[str, ...]) -> None:
    """The environment file in that folder could set PYTHONPATH, and the data folder could make Postgres run code."""
    home = project / ".nexus"
    home.mkdir()
    (home / "environment").write_text("NEXUS_HOOK_NAMESPACE=stolen\n")
    done = nexus(project, {**here.environment, "NEXUS_HOME": ".nexus", "HOME": str(project.parent)}, *command)
    assert "NEXUS_HOME" in done.stdout + done.stderr
    assert done.returncode == (0 if command == ("hook", "claude-code") else 1)
    assert [path.name for path in home.iterdir()] == ["environment"]


def test_a_relative_file_of_cells_names_no_file_of_the_project(here: Sandbox, project: Path) -> None:
    """The databases in that file would get the messages."""
    cell = {"database_url": here.database_url, "redis_url": here.environment["NEXUS_REDIS_URL"]}
    (project / "cells.json").write_text(json.dumps({"cells": {"theirs": cell}}))
    done = nexus(project, {**here.environment, "NEXUS_CELLS": "cells.json"}, "remember", "Ann likes tea.", *IN)
    assert done.returncode == 1
    assert "NEXUS_CELLS" in done.stderr


def test_the_fork_server_runs_nothing_of_the_folder_but_what_is_named(here: Sandbox, project: Path) -> None:
    (project / "shop_jobs.py").write_text(f"open({str(project / 'included')!r}, 'w')")
    command = [sys.executable, *here.deployment._fork_server_command(), "shop_jobs"]
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(command, cwd=project, env=here.environment, stdin=theirs.fileno())
    ours.close()  # it ends when it has loaded everything, because the worker's end of the socket is closed
    assert process.wait(60) == 0
    assert (project / "included").exists()
    assert ran_of(project) == []


@pytest.mark.long
def test_the_command_celery_reads_the_folders_celeryconfig(here: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text("from nexus_tasks.config import *\ntimezone = 'Europe/Berlin'\n")
    environment = {**here.environment, "PYTHONPATH": str(ROOT)}
    asked = "from nexus_tasks import app; print(app.conf.timezone)"

    def said(*python: str, **more: str) -> str:
        command = [sys.executable, "-P", *python]
        done = subprocess.run(
            command, env={**environment, **more}, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    assert "timezone: 'Europe/Berlin'" in said("-m", "celery", "-A", "nexus_tasks", "report")
    assert said("-c", asked, CELERY_CONFIG_MODULE="celeryconfig") == "Europe/Berlin\n"


def test_no_embedding_model_of_the_folder_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sentence-transformers takes a folder with the name of a model for the model."""
    loaded = list[str]()
    library = SimpleNamespace(SentenceTransformer=lambda name, **_options: loaded.append(name))
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    (tmp_path / DEFAULT_MODEL).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misconfigured, match="current folder"):
        SentenceTransformerEmbedder().embed(["tea"])
    assert loaded == []
