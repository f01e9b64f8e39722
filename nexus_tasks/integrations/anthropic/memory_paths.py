"""The paths of the memory tool, and the file names of topics that stand for them.

``/memories/deploys/prod.md`` is the topic ``deploys--prod.md``: the names of topics have no folders. Letters become
lower case, and ``.md`` is added when it is missing, as in all names of topics.
"""

from __future__ import annotations

import re

from nexus_tasks.errors import InvalidInput

ROOT = "/memories"
FACTS = f"{ROOT}/facts.md"  # no topic can have this name
_SEGMENT = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_-])?")
_SEPARATOR = "--"  # between the names of folders in a topic's name


def parts(path: str) -> tuple[str, ...]:
    """The names below ``/memories`` that lead to ``path``; none for ``/memories`` itself.

    Raises:
        InvalidInput: the path leads out of ``/memories``, or a name in it has other characters than letters, digits,
            ``.``, ``_`` and ``-``.
    """
    if path.rstrip("/") != ROOT and not path.startswith(f"{ROOT}/"):
        raise InvalidInput(f"The path {path!r:.200} is not below {ROOT}.", remedy=f"Begin the path with {ROOT}/.")
    names = tuple(path.lower().strip("/").split("/")[1:])
    for name in names:
        if not _SEGMENT.fullmatch(name) or _SEPARATOR in name:
            raise InvalidInput(
                f"The path {path!r:.200} is refused because of {name!r:.80}.",
                remedy="Names of files and folders have letters, digits, `.`, `_` and single `-`, and begin with none"
                " of `.` and `-`.",
            )
    if any(name.endswith("-") for name in names[:-1]):  # the topic of `a-/b` would be that of `a/-b`
        raise InvalidInput(
            f"The path {path!r:.200} is refused because a folder in it ends in `-`.",
            remedy="Choose another name for the folder.",
        )
    return names


def topic_of(path: str) -> str:
    """The file name of the topic that stands for the file ``path``.

    Raises:
        InvalidInput: see :func:`parts`.
    """
    name = _SEPARATOR.join(parts(path))
    return name if name.endswith(".md") else f"{name}.md"


def path_of(filename: str) -> str:
    """The path of a topic's file."""
    return f"{ROOT}/{filename.replace(_SEPARATOR, '/')}"
