"""The context file: the text that the hook gives to the agent when a session of a project begins.

Workers keep the file up to date. The hook (the command that the agent runs at its events) must end within 100 ms. It
reads this file, because a query to Postgres would take longer.
"""

from __future__ import annotations

import os
from hashlib import sha256

from nexus_tasks import files

_FOLDER = "context"
_MOST_CHARACTERS = 200_000


def take(home: str, namespace: str) -> str:
    """Read the namespace's context. When the namespace has no context file yet, the result is empty.

    This function makes a missing file, so that workers write the context into it. They update every file that exists.
    """
    path = _file(home, namespace)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MOST_CHARACTERS).partition("\n")[2]
    except FileNotFoundError:
        put(home, namespace, "")
        return ""


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
    try:
        for item in os.scandir(os.path.join(home, _FOLDER)):
            if item.name.endswith(".txt"):
                with open(item.path, encoding="utf-8") as file:
                    found[file.readline().rstrip("\n")] = item.stat().st_mtime
    except FileNotFoundError:
        return found
    return found


def _file(home: str, namespace: str) -> str:
    return os.path.join(home, _FOLDER, sha256(namespace.encode()).hexdigest()[:32] + ".txt")
