"""The context file: the text that the hook gives the agent at the beginning of a project's next session.

Workers keep the file up to date. The hook reads the file and not Postgres, because a query would take longer than the
hook's 100 ms.
"""

from __future__ import annotations

import os
from hashlib import sha256

from nexus_tasks import files

_FOLDER = "context"
_MOST_CHARACTERS = 200_000


def take(home: str, namespace: str) -> str:
    """The namespace's context; empty when there is none yet.

    When there is no file, the call makes an empty file. Workers fill every file that exists.
    """
    path = _file(home, namespace)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MOST_CHARACTERS).partition("\n")[2]
    except FileNotFoundError:
        put(home, namespace, "")
        return ""


def put(home: str, namespace: str, text: str) -> None:
    """Write ``text`` as the context of the namespace's next session.

    Raises:
        OSError: the file cannot be written.
    """
    files.make_folder(os.path.join(home, _FOLDER))
    files.write_atomic(_file(home, namespace), f"{namespace}\n{text}".encode())


def asked_for(home: str) -> dict[str, float]:
    """Each namespace that has a context file, with the time when the file was written (seconds since 1970)."""
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
