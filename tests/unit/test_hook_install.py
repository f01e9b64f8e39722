"""Putting the hook into an agent's settings and taking it out again: what is there stays."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from nexus_tasks.errors import ConfigurationError
from nexus_tasks.integrations.coding_agents.install import EVENTS, install, settings_file, uninstall

OTHERS = {
    "model": "opus",
    "permissions": {"allow": ["Bash(ls)"]},
    "hooks": {
        "Stop": [{"hooks": [{"type": "command", "command": "say done"}]}],
        "PostToolUse": [{"matcher": "Edit", "hooks": [{"type": "command", "command": "ruff format"}]}],
        "SomethingOfTomorrow": {"not": "a list"},
    },
    "name": "Zoë",
}


def test_into_nothing_and_out_again_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "settings.json"
    change = install("claude-code", path)
    assert change.changed
    settings = json.loads(path.read_text())
    assert tuple(settings["hooks"]) == EVENTS["claude-code"]
    [group] = settings["hooks"]["Stop"]
    command = shlex.split(group["hooks"][0]["command"])
    assert Path(command[0]).is_absolute()
    assert command[-2:] == ["hook", "claude-code"]
    assert uninstall("claude-code", path).changed
    assert not path.exists()
    assert not uninstall("claude-code", path).changed


def test_what_is_there_stays_and_twice_is_once(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(OTHERS))
    path.chmod(0o640)
    install("claude-code", path)
    once = path.read_text()
    assert not install("claude-code", path).changed
    assert path.read_text() == once
    found = json.loads(once)
    assert found["hooks"]["Stop"][0] == OTHERS["hooks"]["Stop"][0]  # type: ignore[index]
    assert len(found["hooks"]["Stop"]) == 2
    assert found["model"] == "opus"
    assert "Zoë" in once
    assert path.stat().st_mode & 0o777 == 0o640
    uninstall("claude-code", path)
    assert json.loads(path.read_text()) == OTHERS


def test_another_namespace_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    install("claude-code", path)
    assert install("claude-code", path, "acme").changed
    [group] = json.loads(path.read_text())["hooks"]["Stop"]
    assert group["hooks"][0]["command"].endswith("hook claude-code --namespace acme")


@pytest.mark.parametrize("text", ["{broken", "[]", "[" * 100_000, '{"hooks": []}', '{"hooks": {"Stop": {}}}'])
def test_a_file_that_is_none_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="not a settings file"):
        install("claude-code", path)
    assert path.read_text() == text


def test_a_pipe_is_refused_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="not a regular file"):
        install("claude-code", path)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real, link = tmp_path / "dotfiles" / "settings.json", tmp_path / "settings.json"
    real.write_text("{}")
    link.symlink_to(real)
    install("claude-code", link)
    assert link.is_symlink()
    assert "hooks" in json.loads(real.read_text())


def test_where_the_settings_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    assert settings_file("claude-code", project=False) == tmp_path / "config" / "settings.json"
    assert settings_file("claude-code", project=True) == tmp_path / ".claude" / "settings.local.json"


@pytest.mark.parametrize(("agent", "folder"), [("codex", ".codex"), ("cursor", ".cursor")])
def test_the_hooks_of_other_agents_go_in_and_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = settings_file(agent, project=True)
    assert path == tmp_path / folder / "hooks.json"
    assert install(agent, path).changed
    assert not install(agent, path).changed
    made = json.loads(path.read_text())
    assert tuple(made["hooks"]) == EVENTS[agent]
    for event, [entry] in made["hooks"].items():
        [hook] = [entry] if agent == "cursor" else entry["hooks"]
        assert shlex.split(hook["command"])[-2:] == ["hook", agent]
        assert hook["timeout"] == (3 if (agent, event) == ("codex", "SessionEnd") else 10)
    assert made.get("version") == (1 if agent == "cursor" else None)
    assert uninstall(agent, path).changed
    assert not path.exists()


def test_hooks_of_others_in_the_file_of_cursor_stay(tmp_path: Path) -> None:
    path = tmp_path / "hooks.json"
    others = {"version": 1, "hooks": {"stop": [{"command": "say done"}], "sessionStart": [{"command": "x"}]}}
    path.write_text(json.dumps(others))
    install("cursor", path, "acme")
    install("cursor", path, "team")
    stop = json.loads(path.read_text())["hooks"]["stop"]
    assert [one["command"].rsplit(" ", 1)[-1] for one in stop] == ["done", "team"]
    uninstall("cursor", path)
    assert json.loads(path.read_text()) == others
