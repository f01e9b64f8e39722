"""The hook ``nexus hook AGENT``: write one event from standard input to the session buffer within 100 ms.

Claude Code, Codex and Cursor run the hook at each event of a session. This module imports only the standard library,
the packages ``buffer`` and ``transcripts``, and other light modules, so that it starts quickly. Even after an error the
exit code is 0, so that the agent goes on. The hook writes the error to ``logs/hook.log`` under ``NEXUS_HOME``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from nexus_tasks.buffer import SessionBuffer, default_home, home_of_deployment
from nexus_tasks.errors import NexusError, NotAllowed
from nexus_tasks.files import make_folder
from nexus_tasks.integrations.setup import environment_file
from nexus_tasks.transcripts import context_file, events
from nexus_tasks.transcripts.project import project_namespace

_MOST_BYTES = 64_000_000
_LOG_BYTES = 1_000_000
_CONTINUED = ("compact", "resume")
_PROJECT_BESIDE = 3_000  # the most characters of the project's memory that follow what was said in the session
_FIELDS = ("hook_event_name", "session_id")


def main(arguments: Sequence[str] = (), *, agent: str = events.CLAUDE_CODE) -> int:
    """Handle the event on standard input. Returns 0, even after an error.

    Args:
        arguments: the options of the command.
        agent: the agent that runs the hook, out of ``events.AGENTS``.
    """
    try:
        environment_file.load()
        _handle(agent, json.loads(sys.stdin.buffer.read(_MOST_BYTES)), _option(arguments, "--namespace"))
        sys.stdout.flush()
    except BaseException as error:
        _log(error)
        _drop_output()
    return 0


def _handle(agent: str, event: Any, namespace: str | None) -> None:
    if agent == events.CURSOR:
        event = events.as_of_claude_code(event)
    elif agent == events.CLAUDE_CODE and events.is_of_cursor(event):
        return  # Cursor also runs the hook of Claude Code. The hook of Cursor keeps the event.
    name, session = event["hook_event_name"], event["session_id"]
    folder = _project(agent, _path(event.get("cwd")) or os.getcwd())
    namespace = namespace or os.environ.get("NEXUS_HOOK_NAMESPACE") or project_namespace(folder)
    _check_allowed(namespace)
    home = home_of_deployment()
    if name == "SessionStart":
        _print_context(agent, _context(home, namespace, str(session), str(event.get("source"))))
    payload = events.payload(agent, event)
    if payload is None:
        return
    buffer = SessionBuffer()
    buffer.append(namespace, str(session), payload, agent)
    buffer.close()
    if name in events.STORE_AFTER:
        _store_in_background()


def _path(given: Any) -> str:
    """``given``, or an empty text if it can be no path. An odd folder does not cost the event."""
    try:
        return given if isinstance(given, str) and b"\0" not in os.fsencode(given) else ""
    except UnicodeEncodeError:
        return ""


def _project(agent: str, folder: str) -> str:
    """The folder of the project. Codex only names the folder in which it works. Then the repository is the project."""
    if agent == events.CLAUDE_CODE:
        return os.environ.get("CLAUDE_PROJECT_DIR") or folder
    at = folder = os.path.realpath(folder)
    while agent == events.CODEX and at != os.path.dirname(at):
        if os.path.exists(os.path.join(at, ".git")):
            return at
        at = os.path.dirname(at)
    return folder


def _check_allowed(namespace: str) -> None:
    """Check that ``NEXUS_NAMESPACES``, if it is set, has the namespace. The hook is too quick to load all settings."""
    allowed = os.environ.get("NEXUS_NAMESPACES")
    if allowed is not None and namespace not in map(str.strip, allowed.split(",")):
        raise NotAllowed(f"NEXUS_NAMESPACES does not have the namespace {namespace}.", remedy="Add it there.")


def _context(home: str, namespace: str, session: str, source: str) -> str:
    """What the agent is told when a session begins.

    After a compaction, and when an old session is resumed, the agent has lost the session's old messages. So it first
    gets what was said in the session, and then the beginning of the project's memory.
    """
    project = context_file.take(home, namespace)
    said = context_file.take_session(home, namespace, session)
    if source not in _CONTINUED or not said:
        return project
    cut = project if len(project) <= _PROJECT_BESIDE else project[: project.rfind("\n", 0, _PROJECT_BESIDE) + 1]
    return f"{said.rstrip()}\n\n{cut}".strip()


def _print_context(agent: str, text: str) -> None:
    if text:
        answer = {"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": text}}
        sys.stdout.write(json.dumps({"additional_context": text} if agent == events.CURSOR else answer))


def _store_in_background() -> None:
    """Start a process that stores the buffer and outlives the hook.

    The option ``-P`` keeps Python from importing modules from the agent's project folder. ``store`` then leaves this
    folder.
    """
    command = [sys.executable, "-P", "-m", "nexus_tasks.integrations.coding_agents.store"]
    nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    try:
        os.posix_spawn(sys.executable, command, os.environ, file_actions=nothing, setsid=True)
    except NotImplementedError:  # this system's posix_spawn cannot make a session
        os.posix_spawn(sys.executable, command, os.environ, file_actions=nothing, setpgroup=0)


def _option(arguments: Sequence[str], name: str) -> str | None:
    for position, argument in enumerate(arguments):
        if argument == name and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None


def _drop_output() -> None:
    """Drop output that cannot be written. Otherwise Python's flush at exit would fail, with the exit code 120."""
    try:
        sys.stdout.flush()
    except (OSError, AttributeError):  # an AttributeError: the standard output is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _log(error: BaseException) -> None:
    """Log the error that stopped the hook. The text of the event is not logged, because it may contain secrets."""
    try:
        from time import gmtime, strftime

        folder = os.path.join(default_home(), "logs")
        make_folder(folder)
        path = os.path.join(folder, "hook.log")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if os.path.exists(path) and os.path.getsize(path) > _LOG_BYTES:
            flags |= os.O_TRUNC
        line = f"{strftime('%Y-%m-%dT%H:%M:%SZ', gmtime())} {type(error).__name__} {_reason(error)}"
        fd = os.open(path, flags, 0o600)
        try:
            os.write(fd, f"{line}\n".encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)
    except OSError:
        return  # the log cannot be written, for example because the disk is full
    except NexusError as without_home:  # there is no folder for the log
        if sys.stderr is not None:
            print(f"nexus: {without_home}", file=sys.stderr)


def _reason(error: BaseException) -> str:
    """Why the hook stopped, without any text of the event."""
    if message := getattr(error, "message", ""):
        return str(message)
    if isinstance(error, OSError):
        return os.strerror(error.errno or 0)
    if isinstance(error, json.JSONDecodeError):
        return f"The standard input is not JSON: {error.msg} at character {error.pos}."
    if isinstance(error, KeyError) and error.args[0] in _FIELDS:
        return f"The event has no {error.args[0]}."
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return "" if place is None else f"in {place.tb_frame.f_code.co_qualname}, line {place.tb_lineno}"
