"""`nexus init` writes for agents what is needed, keeps what others wrote, and takes back exactly what it wrote."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nexus_tasks import files
from nexus_tasks.cli.main import app
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.integrations.setup import agents, environment_file, setup

ALL = ("claude-code", "codex", "cursor")
VARIABLES = {"NEXUS_MODEL": "offline"}
CONFIG = '# mine\nmodel = "gpt-5"\n\n[mcp_servers.other]\ncommand = "other"\n'
SERVERS = {"numStartups": 7, "mcpServers": {"other": {"command": "other"}}, "name": "Zoë"}


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user who has files of their own, one of them a link into a folder of dotfiles."""
    home = tmp_path / "user"
    (home / ".codex").mkdir(parents=True)
    (home / ".claude.json").write_text(json.dumps(SERVERS, indent=4, ensure_ascii=False) + "\n")
    (home / ".claude.json").chmod(0o640)
    (tmp_path / "config.toml").write_text(CONFIG)
    (home / ".codex" / "config.toml").symlink_to(tmp_path / "config.toml")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NEXUS_HOME", str(home / "data"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return home


def contents(home: Path) -> dict[str, str]:
    return {str(one.relative_to(home)): one.read_text() for one in home.rglob("*") if one.is_file()}


def init(*, namespace: str | None = "me", named: tuple[str, ...] = ALL) -> list[str]:
    steps = setup.plan(agents.pieces(named, namespace, VARIABLES))
    setup.write(steps)
    return [step.state for step in steps]


def undo() -> set[str]:
    steps = setup.plan_undo()
    setup.undo(steps)
    return {step.state for step in steps}


def test_it_writes_for_each_agent_and_takes_all_back(user: Path) -> None:
    before, folders = contents(user), set(user.rglob("*"))
    assert set(init()) == {"added"}
    claude = json.loads((user / ".claude.json").read_text())
    assert claude["mcpServers"]["other"] == {"command": "other"}
    assert claude["mcpServers"]["nexus"]["args"][-3:] == ["mcp", "--namespace", "me"]
    codex = tomllib.loads((user / ".codex" / "config.toml").read_text())
    assert codex["mcp_servers"]["nexus"]["env"] == {"NEXUS_HOME": str(user / "data")}
    assert json.loads((user / ".cursor" / "mcp.json").read_text())["mcpServers"]["nexus"]["command"]
    hooks = {
        name: json.loads((user / name).read_text())
        for name in (".claude/settings.json", ".codex/hooks.json", ".cursor/hooks.json")
    }
    assert [len(one["hooks"]) for one in hooks.values()] == [7, 6, 8]
    assert hooks[".cursor/hooks.json"]["version"] == 1
    assert (user / ".claude" / "skills" / "nexus-memory" / "SKILL.md").is_file()
    assert (user / ".codex" / "config.toml").is_symlink()
    modes = {
        name: (user / name).stat().st_mode & 0o777 for name in ("data/environment", "data/init.json", ".claude.json")
    }
    assert modes == {"data/environment": 0o600, "data/init.json": 0o600, ".claude.json": 0o640}
    after = contents(user)
    assert set(init()) == {"unchanged"}
    assert contents(user) == after
    assert set(init(namespace="team")) == {"changed", "unchanged"}
    assert undo() == {"removed"}
    assert contents(user) == before
    assert set(user.rglob("*")) == folders
    assert undo() == set()


def test_a_file_that_cannot_be_deleted_is_named(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init()

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(ConfigurationError, match="cannot be written: Operation not permitted"):
            undo()
    assert undo() <= {"removed", "gone"}
    assert not (user / ".claude" / "skills").exists()


HOOKS = {
    ".claude/settings.json": '{"model":"opus","hooks":{"Stop":[{"hooks":[{"type":"command","command":"say done"}]}]}}',
    ".codex/hooks.json": '{ "description": "mine",\n "hooks": {} }',
    ".cursor/hooks.json": '{"version": 1, "hooks": {"stop": [{"command": "say done"}]}}\n\n',
    ".cursor/mcp.json": "",
}


def test_each_file_is_given_back_byte_for_byte(user: Path) -> None:
    for name, text in HOOKS.items():
        (user / name).parent.mkdir(exist_ok=True)
        (user / name).write_text(text)
    before = contents(user)
    assert set(init()) == {"added"}
    assert set(init(namespace="team")) == {"changed", "unchanged"}
    assert undo() == {"removed"}
    assert contents(user) == before
    init()
    mine = user / ".codex" / "hooks.json"  # what a person changes since stays
    mine.write_text(json.dumps({**json.loads(mine.read_text()), "description": "ours"}))
    assert undo() == {"removed"}
    assert json.loads(mine.read_text()) == {"description": "ours"}


def test_an_entry_of_somebody_else_is_kept(user: Path) -> None:
    foreign = {"mcpServers": {"nexus": {"command": "another"}}}
    (user / ".claude.json").write_text(json.dumps(foreign))
    (user / ".codex" / "config.toml").write_text('[mcp_servers.nexus]\ncommand = "another"\n')
    assert init().count("kept") == 2
    assert json.loads((user / ".claude.json").read_text()) == foreign
    undo()
    assert json.loads((user / ".claude.json").read_text()) == foreign
    assert "another" in (user / ".codex" / "config.toml").read_text()


def test_what_a_person_changed_since_is_left(user: Path) -> None:
    init()
    for name in (".claude/skills/nexus-memory/SKILL.md", ".codex/config.toml"):
        text = (user / name).read_text()
        (user / name).write_text(text.replace("NS", "mine").replace('"--namespace"', '"--namespace", "--x"'))
    mine = user / ".cursor" / "mcp.json"
    mine.write_text(json.dumps({**json.loads(mine.read_text()), "more": 1}))
    assert undo() == {"removed", "left"}
    assert "mine" in (user / ".claude" / "skills" / "nexus-memory" / "SKILL.md").read_text()
    assert "--x" in (user / ".codex" / "config.toml").read_text()
    assert json.loads(mine.read_text()) == {"more": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".claude.json", "{broken"),
        (".claude.json", "[]"),
        (".claude.json", '{"mcpServers": []}'),
        (".claude/settings.json", '{"hooks": []}'),
        (".cursor/mcp.json", "[" * 100_000),
        (".codex/config.toml", "x = "),
        (".codex/hooks.json", "{broken"),
        (".cursor/hooks.json", '{"hooks": {"stop": 1}}'),
        (".codex/config.toml", 'mcp_servers = { other = { command = "x" } }'),
    ],
)
def test_a_malformed_file_is_named_and_nothing_is_written(user: Path, name: str, text: str) -> None:
    (user / name).parent.mkdir(exist_ok=True)
    (user / name).write_text(text)
    before = contents(user)
    with pytest.raises(ConfigurationError, match=Path(name).name):
        init()
    assert contents(user) == before


@pytest.mark.parametrize("dies_at", range(8))  # the record, six pieces, and the record
def test_after_a_crash_at_any_write_files_are_whole_and_a_second_run_finishes(
    user: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    before, count, write = contents(user), 0, files.write_atomic

    def dying(path: str, data: bytes, **options: bool) -> None:
        nonlocal count
        count += 1
        if count > dies_at:
            raise KeyboardInterrupt
        write(path, data, **options)

    init(namespace="first", named=("claude-code",))  # so that some pieces are changed and others added
    monkeypatch.setattr(files, "write_atomic", dying)
    with pytest.raises(KeyboardInterrupt):
        init()
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("NEXUS_HOME", str(user / "data"))
    for name, text in contents(user).items():
        if name.endswith("json"):
            json.loads(text)
    if dies_at % 2:
        assert "kept" not in init()
        assert set(init()) == {"unchanged"}
    assert "left" not in undo()
    assert contents(user) == before


def test_the_commands_read_the_environment_file_and_set_variables_win(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init()
    monkeypatch.setattr(os, "environ", os.environ | {"NEXUS_HOME": str(user / "data")})
    os.environ.pop("NEXUS_MODEL", None)
    environment_file.load()
    assert os.environ["NEXUS_MODEL"] == "offline"
    os.environ["NEXUS_MODEL"] = "anthropic"
    environment_file.load()
    assert os.environ["NEXUS_MODEL"] == "anthropic"


def test_the_commands_read_no_environment_file_of_another_user(
    user: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That user would choose the server that gets the messages, and the program that runs with `PYTHONPATH`."""
    init()
    monkeypatch.setattr(os, "environ", os.environ | {"NEXUS_HOME": str(user / "data")})
    os.environ.pop("NEXUS_MODEL", None)
    if not os.geteuid():
        os.chown(environment_file.path(), 54_321, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    environment_file.load()
    assert "NEXUS_MODEL" not in os.environ
    assert "belongs to another user" in capsys.readouterr().err


def test_a_dry_run_shows_the_changes_without_the_key_and_writes_nothing(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "swordfish")
    before = contents(user)
    shown = CliRunner().invoke(app, ["init", "--yes", "--dry-run", "--agent", "codex"])
    assert shown.exit_code == 0
    assert "to add     MCP entry of Codex: " in shown.stdout
    assert "added" not in shown.stdout  # nothing was
    assert "+[mcp_servers.nexus]" in shown.stdout
    assert "NEXUS_MODEL=anthropic" in shown.stdout
    assert "swordfish" not in shown.output
    assert contents(user) == before


def test_without_a_terminal_it_asks_for_yes(user: Path) -> None:
    before = contents(user)
    for options in ((), ("--json",)):
        assert isinstance(CliRunner().invoke(app, ["init", *options]).exception, ConfigurationError)
    assert CliRunner().invoke(app, ["init", "--json", "--dry-run", "--agent", "codex"]).exit_code == 0
    assert contents(user) == before
    assert not (user / "data").exists()


def test_the_skill_has_the_form_of_a_skill() -> None:
    text = (Path(agents.__file__).parent / "skill" / "SKILL.md").read_text()
    head = text.split("---")[1]
    assert re.search(r"^name: nexus-memory$", head, re.M)
    assert 0 < len(re.search(r"^description: (.*)$", head, re.M)[1]) <= 1024  # type: ignore[index]
    commands = [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.splitlines()]
    assert {shlex.split(line)[1] for line in commands} == {"search", "context", "ask", "remember"}


def test_an_environment_file_that_is_no_text_is_named(
    user: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its settings may name the server that gets the messages. Without them the embedded one gets them."""
    init()
    monkeypatch.setattr(os, "environ", os.environ | {"NEXUS_HOME": str(user / "data")})
    os.environ.pop("NEXUS_MODEL", None)
    with environment_file.path().open("ab") as file:
        file.write("# café\n".encode("latin-1"))
    environment_file.load()
    assert "NEXUS_MODEL" not in os.environ
    assert "is not UTF-8, so its settings do not count" in capsys.readouterr().err
