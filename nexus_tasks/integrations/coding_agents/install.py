"""Add the hook of nexus-tasks to a coding agent's settings file, or remove the hook. Other settings stay unchanged.

Claude Code and Codex have groups of hooks for each event: ``{"matcher": …, "hooks": [hook, …]}``. Cursor has the hooks
themselves, and the number 1 under ``version``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nexus_tasks import files
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.transcripts.events import AGENTS, CLAUDE_CODE, CODEX, CURSOR

_COMMON = ("SessionStart", "UserPromptSubmit", "PostToolUse")
# The events of each agent that the hook handles. Codex before 0.148 has no `SessionEnd`, and ignores the entry.
EVENTS = {
    CLAUDE_CODE: (*_COMMON, "Stop", "SubagentStop", "PreCompact", "SessionEnd"),
    CODEX: (*_COMMON, "Stop", "PreCompact", "SessionEnd"),
    CURSOR: (
        *("sessionStart", "beforeSubmitPrompt", "postToolUse", "postToolUseFailure", "afterAgentResponse"),
        *("preCompact", "stop", "sessionEnd"),
    ),
}
TRUST = "Codex runs the hook only after you trust it: start Codex, and type `/hooks`."
_OURS = re.compile(
    rf"(?:^|[\s/\"'=;&|(])nexus(?:-tasks|_tasks[\w.]*)?[\"']?\s{{1,4}}hook\s{{1,4}}(?:{'|'.join(AGENTS)})(?![\w-])"
)
# The agent ends a hook that runs longer than this number of seconds. This hook takes less than 0.1 s.
_TIMEOUT = 10
_SHORT = (CODEX, "SessionEnd")
_AT_THE_END = 3  # the most seconds that Codex gives a hook of `SessionEnd`; with more it prints a warning
_VERSION = {"version": 1}  # of the format of Cursor's file


@dataclass(frozen=True, kw_only=True)
class Change:
    """The result of an installation or removal."""

    path: Path  # the path of the settings file
    changed: bool  # whether the file changed
    command: str | None  # the installed command; ``None`` after a removal


def settings_file(agent: str, *, project: bool = False) -> Path:
    """The user's settings file. With ``project``, the file of the project in the current folder.

    Raises:
        ConfigurationError: a link leads the project's file out of the project. A clone may bring such a link.
    """
    if agent == CLAUDE_CODE:
        folder = _folder(".claude", "CLAUDE_CONFIG_DIR", project)
        path = folder / ("settings.local.json" if project else "settings.json")
    else:
        path = _folder(*((".codex", "CODEX_HOME") if agent == CODEX else (".cursor", "")), project) / "hooks.json"
    if project and not path.resolve().is_relative_to(Path.cwd().resolve()):
        raise ConfigurationError(
            f"{path} leads out of this project, to {path.resolve()}.",
            remedy="Remove the link and try again, or leave --project out to change the user's settings.",
        )
    return path


def _folder(name: str, variable: str, project: bool) -> Path:
    return Path.cwd() / name if project else Path(os.environ.get(variable) or Path.home() / name)


def install(agent: str, path: Path, namespace: str | None = None) -> Change:
    """Add the hook for every event of the agent in ``EVENTS``. A second installation changes nothing.

    Args:
        agent: the name of the coding agent that reads this file, one of ``AGENTS``.
        path: the settings file. A missing file is made.
        namespace: the namespace for all messages. With ``None``, each project has a namespace of its own.

    Raises:
        ConfigurationError: the file is not a settings file, or cannot be written. The file is unchanged.
    """
    line = command(agent, namespace, home=os.environ.get("NEXUS_HOME"))
    text, settings = _read(path)
    new = with_ours(agent, path, settings, wanted(agent, line))
    return Change(path=path, changed=new != settings and _write(path, text, new), command=line)


def uninstall(agent: str, path: Path) -> Change:
    """Remove the hook from the settings file. When the file then has no setting left, delete the file, but no link.

    Raises:
        ConfigurationError: the file is not a settings file, or cannot be written. The file is unchanged.
    """
    text, settings = _read(path)
    rest = without_ours(agent, path, settings)
    if not ours(hooks_of(path, settings)):
        return Change(path=path, changed=False, command=None)
    if rest or path.is_symlink():
        return Change(path=path, changed=_write(path, text, rest), command=None)
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


def command(agent: str, namespace: str | None, *, home: str | None = None) -> str:
    """The hook's command as a shell reads it. ``home`` is a ``NEXUS_HOME`` that the agent does not have."""
    before = ["env", f"NEXUS_HOME={os.path.abspath(os.path.expanduser(home))}"] if home else []
    return shlex.join([*before, *program(), "hook", agent, *(["--namespace", namespace] if namespace else [])])


def wanted(agent: str, line: str) -> dict[str, list[dict[str, Any]]]:
    """Each event and the hook that belongs to it, with the command ``line``."""
    kind = {} if agent == CURSOR else {"type": "command"}
    return {
        event: [{**kind, "command": line, "timeout": _AT_THE_END if (agent, event) == _SHORT else _TIMEOUT}]
        for event in EVENTS[agent]
    }


def ours(hooks: dict[str, Any]) -> dict[str, list[Any]]:
    """Each event that has the hook of nexus-tasks, and this hook."""
    found: dict[str, list[Any]] = {}
    for event, groups in hooks.items():
        for group in groups if isinstance(groups, list) else ():
            inside = group.get("hooks") if isinstance(group, dict) else None
            found.setdefault(event, []).extend(filter(_is_ours, inside if isinstance(inside, list) else [group]))
    return {event: hooks for event, hooks in found.items() if hooks}


def with_ours(
    agent: str, path: Path, settings: dict[str, Any], added: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """``settings`` with the hooks ``added`` in the place of the present hooks of nexus-tasks.

    Raises:
        ConfigurationError: ``hooks`` in the settings is no object, or an event in it is not a list.
    """
    made = _without(hooks_of(path, settings))
    for event, own in added.items():
        groups = made.get(event, [])
        if not isinstance(groups, list):
            raise _not_settings(path, f'"hooks.{event}" is not a list')
        matcher = {"matcher": "*"} if event == "PostToolUse" else {}
        made[event] = [*groups, *(own if agent == CURSOR else [{**matcher, "hooks": own}])]
    return {**(_VERSION if agent == CURSOR else {}), **settings, "hooks": made}


def without_ours(agent: str, path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` without the hooks of nexus-tasks, and empty when nothing else is left.

    Raises:
        ConfigurationError: ``hooks`` in the settings is no object.
    """
    hooks = _without(hooks_of(path, settings))
    rest = {key: hooks if key == "hooks" else value for key, value in settings.items() if key != "hooks" or hooks}
    return {} if agent == CURSOR and rest == _VERSION else rest


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and the settings in it."""
    try:
        if path.exists() and not path.is_file():  # the end of a pipe may never come
            raise _not_settings(path, "not a regular file")
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return "", {}
    except UnicodeDecodeError:
        raise _not_settings(path, "it is not UTF-8") from None
    except OSError as error:
        raise _not_settings(path, error.strerror or str(error)) from None
    try:
        return text, parsed(text)
    except ValueError as error:
        raise _not_settings(path, str(error)) from None


def parsed(text: str) -> dict[str, Any]:
    """The JSON object in a file's text, empty for a blank text.

    Raises:
        ValueError: it is no JSON object, or a key of an object stands twice. The message says why.
    """
    if not text.strip():
        return {}
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark")
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("not JSON: it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _finite(number: str) -> float:
    found = float(number)
    if not math.isfinite(found):  # NaN, and numbers such as 1e400, which would be written as Infinity
        raise ValueError(f"the number {number} cannot be written back")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict[str, Any]()
    for key, value in pairs:
        if key in found:
            raise ValueError(f'the key "{key}" stands twice, and writing the file would lose a value')
        found[key] = value
    return found


def dumped(text: str, document: dict[str, Any]) -> str:
    """The document as JSON in the style of the file's former ``text``: indentation, line ends and escapes."""
    indent = re.search(r"\n([ \t]+)\S", text)
    one_line = bool(text.strip()) and "\n" not in text.strip() and text.strip() != "{}"
    compact = one_line and re.search(r"[:,] ", text) is None
    try:
        escaped = "\\u" in text and text.isascii()
        made = json.dumps(
            document,
            indent=None if one_line else indent[1] if indent else 2,
            separators=(",", ":") if compact else None,
            ensure_ascii=escaped,
        )
        made.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can write
        made = json.dumps(document, indent=2)
    end = text[len(text.rstrip()) :] if text.strip() else "\n"
    return made.replace("\n", "\r\n") + end if "\r\n" in text else made + end


def hooks_of(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The hooks in the settings.

    Raises:
        ConfigurationError: they are no object.
    """
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise _not_settings(path, '"hooks" is not an object')
    return hooks


def _without(hooks: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for event, groups in hooks.items():
        if not isinstance(groups, list):
            kept[event] = groups
            continue
        rest = [left for group in groups for left in _group_without_ours(group)]
        if rest or not groups:
            kept[event] = rest
    return kept


def _group_without_ours(group: Any) -> list[Any]:
    """The group without the hooks of nexus-tasks, in a list that is empty when nothing of the group is left."""
    if not isinstance(group, dict) or not isinstance(group.get("hooks"), list):
        return [] if _is_ours(group) else [group]
    rest = [hook for hook in group["hooks"] if not _is_ours(hook)]
    return [group] if len(rest) == len(group["hooks"]) else [{**group, "hooks": rest}] if rest else []


def _is_ours(hook: Any) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(command, str) and _OURS.search(command) is not None


def _write(path: Path, text: str, settings: dict[str, Any]) -> bool:
    # ``path`` may be a link, for example into a folder of dotfiles. Write to the link's target, so that the link stays.
    real = path.resolve()
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        new = dumped(text, settings).encode()
        files.write_atomic(os.fspath(real), new, durable=True, mode=0o666, keep_mode=True)
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
