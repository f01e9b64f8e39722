"""The context files: the texts that the hook gives to the agent when a session of a project begins or goes on.

A namespace's file has what is known of the project. A session's file has what was said in the session; the agent gets
it after a compaction, when it has lost the old messages. Workers keep the files up to date. The hook (the command that
the agent runs at its events) must end within 100 ms. It reads these files, because a query to Postgres would take
longer.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from hashlib import sha256

from nexus_tasks import files

_FOLDER, _SESSIONS = "context", "context-sessions"
_MOST_CHARACTERS = 200_000


def take(home: str, namespace: str) -> str:
    """Read the namespace's context. When the namespace has no context file yet, the result is empty.

    This function makes a missing file, so that workers write the context into it. They update every file that exists.
    """
    path = _file(home, namespace)
    try:
        return _read(path)
    except (FileNotFoundError, UnicodeDecodeError):  # no file, or a broken one
        put(home, namespace, "")
        return ""


def _read(path: str) -> str:
    """The text of a context file. Of a file of another user nothing: the agent would be told what that user says."""
    with open(path, encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            return ""
        return file.read(_MOST_CHARACTERS).partition("\n")[2]


def put(home: str, namespace: str, text: str) -> None:
    """Write ``text`` to the namespace's context file. The next session of the namespace begins with this text.

    Raises:
        OSError: the file cannot be written.
    """
    files.make_folder(os.path.join(home, _FOLDER))
    files.write_atomic(_file(home, namespace), f"{namespace}\n{text}".encode())


def asked_for(home: str) -> dict[str, float]:
    """Map each namespace that has a context file to the time of the last write, in seconds since 1970."""
    found = {}
    for path in _files_in(os.path.join(home, _FOLDER)):
        try:
            with open(path, encoding="utf-8") as file:
                found[file.readline().rstrip("\n")] = os.stat(path).st_mtime
        except (OSError, ValueError):
            continue  # deleted meanwhile, or not a file that the hook has made
    return found


def take_session(home: str, namespace: str, session: str) -> str:
    """Read a session's context. When the session has no file yet, the result is empty, and the file is made.

    Workers update every file that exists. :func:`trim_sessions` deletes old files.
    """
    path = _session_file(home, namespace, session)
    try:
        return _read(path)
    except (FileNotFoundError, UnicodeDecodeError):  # no file, or a broken one
        put_session(home, namespace, session, "")
        return ""


def put_session(home: str, namespace: str, session: str, text: str) -> None:
    """Write ``text`` to the session's context file.

    Raises:
        OSError: the file cannot be written.
    """
    files.make_folder(os.path.join(home, _SESSIONS))
    head = json.dumps([namespace, session])
    files.write_atomic(_session_file(home, namespace, session), f"{head}\n{text}".encode())


def size(home: str, namespace: str, session: str | None = None) -> int:
    """The size in bytes of a namespace's or a session's context file; 0 without a file."""
    try:
        return os.stat(_file(home, namespace) if session is None else _session_file(home, namespace, session)).st_size
    except FileNotFoundError:
        return 0


def sessions_asked_for(home: str) -> dict[tuple[str, str], float]:
    """Map each (namespace, session) that has a context file to the time of the last write, in seconds since 1970."""
    found = {}
    for path in _session_files(home):
        try:
            with open(path, encoding="utf-8") as file:
                namespace, session = json.loads(file.readline())
                found[str(namespace), str(session)] = os.stat(path).st_mtime
        except (OSError, ValueError):
            continue  # deleted meanwhile, or not a file that the hook has made
    return found


def trim_sessions(home: str, *, most: int, since: float) -> None:
    """Delete the session files that were last written before ``since`` (seconds since 1970), and all but ``most``."""
    asked = sorted(sessions_asked_for(home).items(), key=lambda one: -one[1])
    for number, ((namespace, session), written) in enumerate(asked):
        if number >= most or written < since:
            drop_session(home, namespace, session)


def drop_session(home: str, namespace: str, session: str) -> None:
    """Delete the session's context file, if there is one."""
    with suppress(FileNotFoundError):
        os.unlink(_session_file(home, namespace, session))


def erase(home: str, namespace: str, *, session: str | None = None, everything: bool = False) -> None:
    """Erase the texts of a namespace's context file and of its sessions' files. Workers write those that still exist.

    Args:
        session: a session that is erased. Its file, which begins with the session's key, is deleted.
        everything: whether all sessions are erased.

    Raises:
        OSError: a file cannot be written.
    """
    if os.path.exists(_file(home, namespace)):
        put(home, namespace, "")
    for name, key in sessions_asked_for(home):
        if name == namespace and (everything or key == session):
            drop_session(home, name, key)
        elif name == namespace:
            put_session(home, name, key, "")


def _session_files(home: str) -> list[str]:
    return _files_in(os.path.join(home, _SESSIONS))


def _files_in(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".txt")]
    except FileNotFoundError:
        return []


def _session_file(home: str, namespace: str, session: str) -> str:
    name = sha256(json.dumps([namespace, session]).encode()).hexdigest()[:32] + ".txt"
    return os.path.join(home, _SESSIONS, name)


def _file(home: str, namespace: str) -> str:
    return os.path.join(home, _FOLDER, sha256(namespace.encode()).hexdigest()[:32] + ".txt")
