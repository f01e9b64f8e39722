"""Add the hook of nexus-tasks to Claude Code's settings file, or remove the hook. Other settings stay unchanged."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nexus_tasks import files
from nexus_tasks.errors import ConfigurationError

EVENTS = ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "SubagentStop", "PreCompact", "SessionEnd")
_OURS = "hook claude-code"
# The agent ends a hook that runs longer than this number of seconds. This hook takes about 0.1 s.
_TIMEOUT = 10


@dataclass(frozen=True, kw_only=True)
class Change:
    """The result of an installation or removal."""

    path: Path  # the path of the settings file
    changed: bool  # whether the file changed
    command: str | None  # the installed command; ``None`` after a removal


def settings_file(*, project: bool) -> Path:
    """The user's settings file. With ``project``, the local settings file of the project in the current folder."""
    if project:
        return Path.cwd() / ".claude" / "settings.local.json"
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude") / "settings.json"


def install(path: Path, *, namespace: str | None = None) -> Change:
    """Add the hook for every event in ``EVENTS``. A second installation changes nothing.

    Args:
        path: the settings file. A missing file is made.
        namespace: the namespace for all messages. With ``None``, each project has a namespace of its own.

    Raises:
        ConfigurationError: the file is not a settings file, or cannot be written. The file is unchanged.
    """
    command = _command(namespace)
    settings = _read(path)
    hooks = _without_ours(_hooks(path, settings))
    for event in EVENTS:
        groups = hooks.setdefault(event, [])
        if not isinstance(groups, list):
            raise _not_settings(path, f'"hooks.{event}" is not a list')
        matcher = {"matcher": "*"} if event == "PostToolUse" else {}
        groups.append({**matcher, "hooks": [{"type": "command", "command": command, "timeout": _TIMEOUT}]})
    return Change(path=path, changed=_write(path, {**settings, "hooks": hooks}), command=command)


def uninstall(path: Path) -> Change:
    """Remove the hook from the settings file. When the file then has no setting left, delete the file.

    Raises:
        ConfigurationError: the file is not a settings file, or cannot be written. The file is unchanged.
    """
    settings = _read(path)
    hooks = _without_ours(_hooks(path, settings))
    if hooks == settings.get("hooks", {}):
        return Change(path=path, changed=False, command=None)
    rest = {key: value for key, value in settings.items() if key != "hooks"} | ({"hooks": hooks} if hooks else {})
    if rest:
        return Change(path=path, changed=_write(path, rest), command=None)
    try:
        path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None
    return Change(path=path, changed=True, command=None)


def _command(namespace: str | None) -> str:
    """The hook's command, with the full path of the program, because the agent's shell may have another PATH."""
    beside = Path(sys.executable).with_name("nexus")
    found = str(beside) if beside.exists() else shutil.which("nexus")
    start = [found] if found else [sys.executable, "-P", "-m", "nexus_tasks.cli.entry"]
    return shlex.join([*start, *_OURS.split(), *(["--namespace", namespace] if namespace else [])])


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise _not_settings(path, str(error)) from None
    try:
        found = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise _not_settings(path, f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _not_settings(path, "it is not a JSON object")
    return found


def _hooks(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise _not_settings(path, '"hooks" is not an object')
    return hooks


def _without_ours(hooks: dict[str, Any]) -> dict[str, Any]:
    """``hooks`` without the hook of nexus-tasks."""
    kept: dict[str, Any] = {}
    for event, groups in hooks.items():
        if not isinstance(groups, list):
            kept[event] = groups
            continue
        left = [_group_without_ours(group) for group in groups]
        if rest := [group for group in left if group is not None]:
            kept[event] = rest
    return kept


def _group_without_ours(group: Any) -> Any:
    if not isinstance(group, dict) or not isinstance(group.get("hooks"), list):
        return group
    rest = [hook for hook in group["hooks"] if not _is_ours(hook)]
    return group if len(rest) == len(group["hooks"]) else {**group, "hooks": rest} if rest else None


def _is_ours(hook: Any) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(command, str) and _OURS in command and "nexus" in command


def _write(path: Path, settings: dict[str, Any]) -> bool:
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    # ``path`` may be a link, for example into a folder of dotfiles. Write to the link's target, so that the link stays.
    real = path.resolve()
    try:
        if real.exists() and json.loads(real.read_text(encoding="utf-8") or "null") == settings:
            return False
        real.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(os.fspath(real), text.encode(), mode=0o666, keep_mode=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    return True


def _not_settings(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is not a settings file: {why}.", remedy="Correct the file and try again. The file is unchanged."
    )


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be written: {error.strerror}.",
        remedy="Give yourself access and try again. The file is unchanged.",
    )
