"""A mistyped NEXUS_* variable is named, with the setting that was meant: by every command, by doctor and by workers."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from celery.signals import worker_init

import nexus_tasks
from nexus_tasks.mistyped_settings import KNOWN, mistyped_settings
from nexus_tasks.settings import Settings
from tests.commandline import nexus
from tests.sandbox import Sandbox

ROOT = Path(nexus_tasks.__file__).parents[1]
WRONG, SECRET = "NEXUS_DATABSE_URL", "postgresql://ann:" + "hidden@db/nexus"
SAID = f"{WRONG} is no setting and is ignored. Did you mean NEXUS_DATABASE_URL?"


@pytest.mark.parametrize("command", [("namespaces", "list", "--json"), ("status", "--json"), ("namespaces", "list")])
@pytest.mark.usefixtures("here")
def test_every_command_names_it_once_on_stderr(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setenv(WRONG, SECRET)
    done = nexus(*command)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(SAID) == 1
    assert SAID not in done.stdout
    assert "hidden" not in done.stdout + done.stderr
    if "--json" in command:
        json.loads(done.stdout)
    monkeypatch.delenv(WRONG)
    assert "is no setting" not in nexus(*command).stderr


@pytest.mark.usefixtures("here")
def test_a_command_that_fails_names_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WRONG, SECRET)
    done = nexus("memories", "show", "17", "--namespace", "nothing-here", "--json")
    assert done.returncode == 1
    assert SAID in done.stderr
    assert json.loads(done.stdout)["error"]["message"]


@pytest.mark.usefixtures("here")
def test_doctor_fails_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WRONG, SECRET)
    monkeypatch.setenv("NEXUS_QQQQ", "1")
    done = nexus("doctor", "--json")
    assert done.returncode == 1
    found = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "variable"]
    wrong, foreign = found
    assert (wrong["ok"], wrong["remedy"]) == (False, "Did you mean NEXUS_DATABASE_URL?")
    assert foreign["ok"]  # it may belong to other software
    assert "NEXUS_QQQQ is no setting" in foreign["found"]


def test_a_worker_logs_it_at_its_start(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(WRONG, SECRET)

    class Worker:
        app = here.deployment.app

    with caplog.at_level(logging.WARNING, "nexus_tasks.worker"):
        worker_init.send(sender=Worker)
    assert [record.getMessage() for record in caplog.records].count(SAID) == 1


@pytest.mark.usefixtures("here")
def test_the_hook_works_and_imports_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WRONG, SECRET)
    event = {
        "hook_event_name": "UserPromptSubmit",
        "session_id": "s",
        "prompt": "Deploys happen on Tuesdays",
        "cwd": "/",
    }
    code = (
        "import sys; from nexus_tasks.integrations.coding_agents.hook import main; main(); "
        "sys.exit(any(name in sys.modules for name in ('pydantic', 'difflib', 'nexus_tasks.settings')))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], input=json.dumps(event), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NEXUS_REDISURL", "NEXUS_REDIS_URL"),
        ("NEXUS_DERIVE_MAXWAIT", "NEXUS_DERIVE_MAX_WAIT"),
        ("NEXUS_HOMES", "NEXUS_HOME"),
        ("NEXUS_QQQQ", None),
    ],
)
def test_the_nearest_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, meant: str | None) -> None:
    monkeypatch.setenv(name, "1")
    assert (name, meant) in mistyped_settings()


def test_variables_that_kubernetes_sets_are_no_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEXUS_SERVICE_HOST", "NEXUS_REDIS_SERVICE_PORT_HTTP", "NEXUS_PORT", "NEXUS_PORT_6379_TCP_ADDR"):
        monkeypatch.setenv(name, "1")
    assert not [one for one in mistyped_settings() if "PORT" in one.name or "SERVICE" in one.name]


def test_every_variable_that_the_package_reads_or_documents_is_a_setting() -> None:
    files = [
        *ROOT.glob("nexus_tasks/**/*.py"),
        *ROOT.glob("docs/*.md"),
        ROOT / "README.md",
        ROOT / "docker-compose.yml",
    ]
    named = {
        name
        for path in files
        for name in re.findall(r"\bNEXUS_[A-Z][A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))
        if path.name != "mistyped_settings.py"
    }
    assert len(named) > 40
    assert named <= KNOWN, "a variable outside the class Settings would be called mistyped"
    assert len(KNOWN) == len(Settings.model_fields)
