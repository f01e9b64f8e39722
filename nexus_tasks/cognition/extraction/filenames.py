"""Check the names of topic files. The names come from a model or from an imported folder, so they are untrusted."""

from __future__ import annotations

import re

LONGEST = 128  # the most characters of a name, including the suffix ".md"
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_-])?")
# Names of Windows devices. A file name that begins with one of them and a dot is unsafe on Windows.
_DEVICES = frozenset(("con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))))
# Names of files with another use: the export writes its own files, and agents read instructions from the others.
_TAKEN = frozenset(("memory", "facts", "agents", "claude", "readme"))


def checked(given: str) -> str | None:
    """``given`` in lower case with the suffix ``.md``, or ``None`` when the name is not safe on every system.

    A safe name has at most 128 characters, all of them ASCII letters, digits, ``.``, ``_`` or ``-``. A safe name does
    not begin with a dot or hyphen, and has no dot directly before ``.md``. A safe name is not the name of a Windows
    device or of another known file. The result is in lower case, because some systems do not distinguish case.
    """
    name = given.lower() if given.isascii() else ""
    name = name if name.endswith(".md") else f"{name}.md"
    stem = name.removesuffix(".md")
    if len(name) > LONGEST or not _NAME.fullmatch(stem) or stem.partition(".")[0] in _DEVICES or stem in _TAKEN:
        return None
    return name
