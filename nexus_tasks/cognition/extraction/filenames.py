"""Names of topic files. They come from a model or from an imported folder, so they are untrusted."""

from __future__ import annotations

import re

LONGEST = 128  # characters, with the suffix ".md"
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_-])?")
# Names of Windows devices are unsafe with any suffix. Also reserved are the names of files that the export writes or
# that agents read as instructions.
_DEVICES = frozenset(("con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))))
_TAKEN = frozenset(("memory", "facts", "agents", "claude", "readme"))


def checked(given: str) -> str | None:
    """``given`` in lower case, ending in ``.md``; ``None`` when that is not a safe file name on every system.

    A safe name has at most 128 characters, all of them ASCII letters, digits, ``.``, ``_`` or ``-``. It does not begin
    with a dot or hyphen, has no dot directly before ``.md``, and is not reserved. It is in lower case, because some
    systems do not distinguish case.
    """
    name = given.lower() if given.isascii() else ""
    name = name if name.endswith(".md") else f"{name}.md"
    stem = name.removesuffix(".md")
    if len(name) > LONGEST or not _NAME.fullmatch(stem) or stem.partition(".")[0] in _DEVICES or stem in _TAKEN:
        return None
    return name
