"""Putting the hook into an agent's settings and taking it out again: what is there stays."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from nexus_tasks import files
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
    path.write_text(json.dumps(OTHERS, ensure_ascii=False))
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


def test_the_hook_stores_in_the_home_of_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may be started without the variable, and would then store in another home."""
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path / "home"))
    change = install("claude-code", tmp_path / "settings.json")
    assert shlex.split(change.command or "")[:2] == ["env", f"NEXUS_HOME={tmp_path / 'home'}"]


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_keeps_its_owner_when_root_writes_it(tmp_path: Path) -> None:
    """Before, `sudo nexus hook install` left a settings file that the user could not read any more."""
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"model": "opus"}))
    path.chmod(0o600)
    os.chown(path, 54_321, 54_322)
    install("claude-code", path)
    uninstall("claude-code", path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (54_321, 54_322, 0o600)


def test_where_the_settings_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    assert settings_file("claude-code", project=False) == tmp_path / "config" / "settings.json"
    assert settings_file("claude-code", project=True) == tmp_path / ".claude" / "settings.local.json"


@pytest.mark.parametrize(("agent", "folder"), [("claude-code", ".claude"), ("codex", ".codex"), ("cursor", ".cursor")])
def test_a_link_that_a_clone_brings_leads_to_no_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, folder: str
) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    monkeypatch.chdir(project)
    (project / folder).symlink_to(home)
    with pytest.raises(ConfigurationError, match="leads out of this project"):
        settings_file(agent, project=True)
    (project / folder).unlink()
    path = settings_file(agent, project=True)
    path.parent.mkdir()
    path.symlink_to(home / "settings.json")
    with pytest.raises(ConfigurationError, match="leads out of this project"):
        settings_file(agent, project=True)
    path.unlink()
    path.symlink_to(project / "kept.json")  # a link within the project is the project's own matter
    assert install(agent, settings_file(agent, project=True)).changed
    assert (project / "kept.json").is_file()


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


@pytest.mark.parametrize("agent", ["claude-code", "codex", "cursor"])
@pytest.mark.parametrize("indent", [None, 2, 4, "\t"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_file_of_others_is_there_again_byte_for_byte(
    tmp_path: Path, agent: str, indent: int | str | None, end: str
) -> None:
    stop = [{"command": "say done"}] if agent == "cursor" else [{"hooks": [{"type": "command", "command": "say done"}]}]
    others = {"version": 1, "hooks": {"stop": stop, "none": [], "odd": [None, 1]}, "model": "opus", "name": "Zoë"}
    text = json.dumps(others, indent=indent, ensure_ascii=end == "\n") + end
    path = tmp_path / "settings.json"
    path.write_bytes(text.replace("\n", end or "\n").encode())
    before = path.read_bytes()
    assert install(agent, path).changed
    assert not install(agent, path).changed
    assert uninstall(agent, path).changed
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "other",
    ["my-nexus-hook claude-code wrapper", "/opt/nexus/bin/memtool hook claude-code", "echo nexus: hook claude-code"],
)
def test_a_hook_of_another_tool_with_a_like_name_stays(tmp_path: Path, other: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": other}]}]}}))
    before = path.read_text()
    install("claude-code", path)
    assert other in path.read_text()
    uninstall("claude-code", path)
    assert path.read_text() == before


@pytest.mark.parametrize(
    "own",
    [
        "nexus hook claude-code",
        "'/a b/nexus' hook claude-code --namespace acme",
        "env NEXUS_HOME=/x /usr/bin/python3 -P -m nexus_tasks.cli.entry hook claude-code",
        "uvx --from nexus-tasks nexus hook claude-code",
    ],
)
def test_each_form_of_the_command_is_its_own(tmp_path: Path, own: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"a": 1, "hooks": {"Stop": [{"hooks": [{"type": "command", "command": own}]}]}}))
    uninstall("claude-code", path)
    assert json.loads(path.read_text()) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "stands twice"),
        ("\ufeff{}", "byte order mark"),
        ('{"a": 1e400}', "1e400 cannot be written back"),
        ('{"a": [NaN]}', "NaN cannot be written back"),
    ],
)
def test_what_cannot_be_written_back_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=why):
        install("claude-code", path)
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("text", ["\n  \n", '{"a": "\\ud800", "b": "é"}'])
def test_blank_files_and_halves_of_surrogates_are_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text, encoding="utf-8")
    assert install("claude-code", path).changed
    assert not install("claude-code", path).changed


def test_a_link_is_there_after_the_removal_too(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / "settings.json"
    link.symlink_to(real)
    install("claude-code", link)
    uninstall("claude-code", link)
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {}


def test_the_new_text_is_on_the_disk_before_it_takes_the_place_of_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, a file that was renamed before its content was synced may be empty."""
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(OTHERS))
    synced, replaced = list[int](), list[bool]()
    fsync, replace = os.fsync, os.replace

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    def checked(old: str, new: str) -> None:
        replaced.append(os.stat(old).st_ino in synced)
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", checked)
    assert install("claude-code", path).changed
    assert uninstall("claude-code", path).changed
    assert replaced == [True, True]


def test_what_was_closed_to_others_is_never_open_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(OTHERS))
    path.chmod(0o600)
    modes, write_all = list[int](), files.write_all

    def noted(fd: int, data: bytes) -> None:
        modes.append(os.fstat(fd).st_mode & 0o077)
        write_all(fd, data)

    monkeypatch.setattr(files, "write_all", noted)
    install("claude-code", path)
    assert modes == [0]
    assert path.stat().st_mode & 0o777 == 0o600
