"""Names of topic files. They come from a model or from an imported folder, so they are untrusted."""

from __future__ import annotations

import re

LONGEST = 128  # characters, with the suffix
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_-])?")
# Windows devices, which no suffix makes safe. And names of files that the export writes, or that agents read as
# instructions.
_DEVICES = frozenset(("con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))))
_TAKEN = frozenset(("memory", "facts", "agents", "claude", "readme"))


def checked(given: str) -> str | None:
    """``given`` in lower case, ending in ``.md``; ``None`` when it is not a safe file name on every system.

    Allowed are ASCII letters, digits, ``.``, ``_`` and ``-``, at most 128 characters; no leading or trailing dot, no
    reserved name. Lower case, because some systems do not distinguish case.
    """
    name = given.lower() if given.isascii() else ""
    name = name if name.endswith(".md") else f"{name}.md"
    stem = name.removesuffix(".md")
    if len(name) > LONGEST or not _NAME.fullmatch(stem) or stem.partition(".")[0] in _DEVICES or stem in _TAKEN:
        return None
    return name
