"""The buffer's folder and the names of the files in it.

The name of a session's folder is a hash of the agent and the session, because a session key may hold any character.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256

SESSIONS, QUARANTINE = "sessions", "quarantine"
_SEQ_DIGITS = 12


def default_home() -> str:
    """The value of ``Settings.home``, computed without importing pydantic.

    The value is ``NEXUS_HOME``, or the user's data folder when ``NEXUS_HOME`` is not set.
    """
    if home := os.environ.get("NEXUS_HOME"):
        return os.path.expanduser(home)
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/nexus-tasks")
    data = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
    return os.path.join(data, "nexus-tasks")


def default_folder() -> str:
    """The buffer's folder under :func:`default_home`."""
    return os.path.join(default_home(), "buffer")


def session_folder_name(agent: str, session: str) -> str:
    """The name of a session's folder: a hash, because a session key may have any character and any length."""
    return sha256(f"{len(agent)}:{agent}{session}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def open_name(first_seq: int) -> str:
    """The name of the open segment. Entries are appended to the open segment."""
    return f"{first_seq:0{_SEQ_DIGITS}d}.open"


def sealed_name(first_seq: int, last_seq: int) -> str:
    """The name of a sealed segment. A sealed segment never changes again."""
    return f"{first_seq:0{_SEQ_DIGITS}d}-{last_seq:0{_SEQ_DIGITS}d}.sealed"


def sealed_range(name: str) -> tuple[int, int]:
    """Read the first and the last ``entry_seq`` from the name of a sealed segment."""
    first, _, last = name.removesuffix(".sealed").partition("-")
    return int(first), int(last)
