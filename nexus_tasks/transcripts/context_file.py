"""The context that a project's next session begins with: a file that workers keep, because asking takes too long."""

from __future__ import annotations

import os
from hashlib import sha256

_FOLDER = "context"
_MOST_CHARACTERS = 200_000


def take(home: str, namespace: str) -> str:
    """The namespace's context; empty when there is none yet. Notes that somebody asks for it."""
    path = _file(home, namespace)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MOST_CHARACTERS).partition("\n")[2]
    except FileNotFoundError:
        put(home, namespace, "")
        return ""


def put(home: str, namespace: str, text: str) -> None:
    """Keep ``text`` ready for the namespace's next session.

    Raises:
        OSError: it cannot be written.
    """
    os.makedirs(os.path.join(home, _FOLDER), mode=0o700, exist_ok=True)
    path = _file(home, namespace)
    aside = f"{path}.{os.getpid()}.new"
    with open(aside, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{namespace}\n{text}")
    os.replace(aside, path)


def asked_for(home: str) -> dict[str, float]:
    """The namespaces that have a file, and when it was written (seconds since 1970)."""
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
