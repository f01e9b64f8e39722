"""Tell a copy of a home folder from the folder itself, by the path and the inode in the folder's file ``origin``.

A moved folder keeps its inode, and a restored folder keeps its path. A copy has neither. A copy that was made while the
servers ran is refused, because its files may not fit together. The link ``run`` of a copy leads to the sockets of the
original's servers, so no copy may follow it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from nexus_tasks.errors import EmbeddedError


def is_copy(home: Path) -> bool:
    """Whether ``home`` is a copy that has not been taken into use. Folders of earlier releases are taken for none."""
    found = _read(home)
    return found is not None and found["path"] != os.fspath(home) and found["inode"] != home.stat().st_ino


def take_into_use(home: Path) -> None:
    """Note that ``home`` is no copy from now on. Take the start lock first.

    Raises:
        EmbeddedError: ``home`` is a copy that was made while the servers ran, or after they were killed.
    """
    if is_copy(home):
        if (home / "postgres" / "postmaster.pid").exists():  # Postgres deletes this file when it is stopped
            original = (_read(home) or {})["path"]
            raise EmbeddedError(
                f"{home} is a copy of {original}, made while its servers ran: the files may not fit together.",
                remedy=f"Run `NEXUS_HOME={original} nexus down`, and copy the folder again. If it was moved and not"
                f" copied, delete {_file(home)}.",
            )
        if (home / "run").is_symlink():
            (home / "run").unlink()
    said = json.dumps({"path": os.fspath(home), "inode": home.stat().st_ino})
    if not _file(home).exists() or _file(home).read_text() != said:
        new = home / "origin.new"
        new.write_text(said)
        new.chmod(0o600)
        new.replace(_file(home))


def _file(home: Path) -> Path:
    return home / "origin"


def _read(home: Path) -> dict[str, object] | None:
    try:
        found = json.loads(_file(home).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"path", "inode"} <= found.keys() else None
