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
    line = command(namespace)
    settings = _read(path)
    hooks = with_hooks(path, without_ours(_hooks(path, settings)), wanted(line))
    return Change(path=path, changed=_write(path, {**settings, "hooks": hooks}), command=line)


def uninstall(path: Path) -> Change:
    """Remove the hook from the settings file. When the file then has no setting left, delete the file.

    Raises:
        ConfigurationError: the file is not a settings file, or cannot be written. The file is unchanged.
    """
    settings = _read(path)
    hooks = without_ours(_hooks(path, settings))
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


def program() -> list[str]:
    """The command ``nexus`` with its full path, because an agent may have another PATH."""
    beside = Path(sys.executable).with_name("nexus")
    found = str(beside) if beside.exists() else shutil.which("nexus")
    return [found] if found else [sys.executable, "-P", "-m", "nexus_tasks.cli.entry"]


def command(namespace: str | None, *, home: str | None = None) -> str:
    """The hook's command as a shell reads it. ``home`` is a ``NEXUS_HOME`` that the agent does not have."""
    before = ["env", f"NEXUS_HOME={os.path.abspath(os.path.expanduser(home))}"] if home else []
    return shlex.join([*before, *program(), *_OURS.split(), *(["--namespace", namespace] if namespace else [])])


def wanted(line: str) -> dict[str, list[dict[str, Any]]]:
    """Each event and the hook that belongs to it, with the command ``line``."""
    return {event: [{"type": "command", "command": line, "timeout": _TIMEOUT}] for event in EVENTS}


def ours(hooks: dict[str, Any]) -> dict[str, list[Any]]:
    """Each event that has the hook of nexus-tasks, and this hook."""
    found: dict[str, list[Any]] = {}
    for event, groups in hooks.items():
        for group in groups if isinstance(groups, list) else ():
            if isinstance(group, dict) and isinstance(group.get("hooks"), list):
                found.setdefault(event, []).extend(hook for hook in group["hooks"] if _is_ours(hook))
    return {event: hooks for event, hooks in found.items() if hooks}


def with_hooks(path: Path, hooks: dict[str, Any], added: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """``hooks`` and the hooks of each event of ``added``, in a group of their own.

    Raises:
        ConfigurationError: an event of ``hooks`` is not a list.
    """
    made = dict(hooks)
    for event, own in added.items():
        groups = made.get(event, [])
        if not isinstance(groups, list):
            raise _not_settings(path, f'"hooks.{event}" is not a list')
        matcher = {"matcher": "*"} if event == "PostToolUse" else {}
        made[event] = [*groups, {**matcher, "hooks": own}]
    return made


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


def without_ours(hooks: dict[str, Any]) -> dict[str, Any]:
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
