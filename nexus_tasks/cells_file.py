"""Reading the file of cells, which ``NEXUS_CELLS`` names. A cell is a deployment that has some of the namespaces.

The file is a JSON object::

    {
      "cells": {
        "one": {"database_url": "$ONE_DATABASE_URL", "redis_url": "redis://one/0"},
        "two": {"database_url": "$TWO_DATABASE_URL", "redis_url": "redis://two/0"}
      },
      "directory": "one",
      "new": "two"
    }

Each cell has settings (the names of ``NEXUS_*`` variables in small letters, without the prefix), which come before the
variables of the environment. A text that begins with ``$`` is the name of a variable. ``directory`` is the cell whose
database keeps the table of namespaces, and ``new`` is the cell of new namespaces. Both are the first cell by default.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nexus_tasks.errors import ConfigurationError

NAME = re.compile(r"[A-Za-z0-9_\-]{1,64}")
_MOST_CHARACTERS = 16_000_000  # of the file, which may be a device without an end; chosen by hand
_REMEDY = "Compare the file that NEXUS_CELLS names with docs/cells.md."


@dataclass(frozen=True, kw_only=True)
class CellsFile:
    """The cells with their settings, the cell with the table of namespaces, and the cell of new namespaces."""

    cells: Mapping[str, Mapping[str, Any]]
    directory: str
    new: str


def read_cells(given: str) -> CellsFile:
    """Read a file of cells.

    Args:
        given: the path of the file, or the JSON object itself.

    Raises:
        ConfigurationError: the file cannot be read, or it is not as the text above says.
    """
    try:
        document = json.loads(given if given.lstrip().startswith("{") else _text_of(given))
    except OSError as error:
        raise ConfigurationError(
            f"The file of cells {given} cannot be read: {error.strerror}.", remedy=_REMEDY
        ) from None
    except (ValueError, RecursionError):
        raise ConfigurationError("The file of cells is not JSON.", remedy=_REMEDY) from None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), dict) or not document["cells"]:
        raise _wrong('it must be an object with the key "cells", which names at least one cell')
    if unknown := sorted(document.keys() - {"cells", "directory", "new"}):
        raise _wrong(f"it has unknown keys: {', '.join(unknown)}")
    cells = {name: _settings(name, settings) for name, settings in document["cells"].items()}
    first = next(iter(cells))
    chosen = {key: document.get(key, first) for key in ("directory", "new")}
    for key, name in chosen.items():
        if name not in cells:
            raise _wrong(f'"{key}" names no cell')
    return CellsFile(cells=cells, **chosen)


def _text_of(path: str) -> str:
    with Path(path).open(encoding="utf-8") as file:
        return file.read(_MOST_CHARACTERS)


def _settings(name: str, settings: object) -> Mapping[str, Any]:
    if not NAME.fullmatch(name):
        raise _wrong(f"{name!r:.80} is no name of a cell: 1 to 64 letters, digits, _ and -")
    if not isinstance(settings, dict):
        raise _wrong(f"the settings of the cell {name} must be an object")
    return {key: _filled_in(name, key, value) for key, value in settings.items()}


def _filled_in(cell: str, key: str, value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    found = os.environ.get(value[1:])
    if not found:
        raise _wrong(f"{key} of the cell {cell} is the variable {value[1:]}, which is not set")
    return found


def _wrong(why: str) -> ConfigurationError:
    return ConfigurationError(f"The file of cells is wrong: {why}.", remedy=_REMEDY)
