"""Names of topic files: written by a model, or by whoever made the folder that is imported, so nobody trusts them."""

from __future__ import annotations

import re

LONGEST = 128  # characters, with the suffix
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_-])?")
# Devices on Windows, whatever their suffix; and files that we write ourselves, or that an agent reads as instructions.
_DEVICES = frozenset(("con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))))
_TAKEN = frozenset(("memory", "facts", "agents", "claude", "readme"))


def checked(given: str) -> str | None:
    """``given`` in lower case, ending in ``.md``; ``None`` when it cannot be a file's name everywhere.

    ASCII letters, digits, ``.``, ``_`` and ``-``, at most 128 characters; no separators, no leading or trailing dot, no
    reserved name. In lower case, because two names that differ in case only are one file on some systems.
    """
    name = given.lower() if given.isascii() else ""
    name = name if name.endswith(".md") else f"{name}.md"
    stem = name.removesuffix(".md")
    if len(name) > LONGEST or not _NAME.fullmatch(stem) or stem.partition(".")[0] in _DEVICES or stem in _TAKEN:
        return None
    return name
