"""The environment file: settings and a key that every command of ``nexus`` reads, whatever program starts it.

A coding agent that was started from a menu does not pass on what a shell exports. The hook imports this module, so it
imports only light modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nexus_tasks.buffer import default_home
from nexus_tasks.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = "# Written by `nexus init`, read by every `nexus` command. Variables that are set already win.\n"


def path() -> Path:
    """The file ``environment`` under ``NEXUS_HOME``."""
    from pathlib import Path

    return Path(_path())


def _path() -> str:
    return os.path.join(default_home(), "environment")


def content(variables: Mapping[str, str]) -> str:
    """The text of a file with these variables."""
    return _HEAD + "".join(f"{name}={value}\n" for name, value in variables.items())


def load() -> None:
    """Set the variables of the file that are not set already. A missing file sets none, nor does one that is no text.

    A file of another user sets none either: that user would choose the server that gets the messages and the key. Only
    root reads any file, as in the session buffer. With a relative ``NEXUS_HOME`` there is no file, and the command says
    so.
    """
    try:
        with open(_path(), encoding="utf-8") as file:
            if os.geteuid() and os.fstat(file.fileno()).st_uid not in (0, os.geteuid()):
                _warn("belongs to another user")
                return
            lines = file.read().splitlines()
    except (PermissionError, UnicodeDecodeError) as error:
        _warn("cannot be read" if isinstance(error, PermissionError) else "is not UTF-8")
        return
    except (OSError, ConfigurationError):
        return
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.isidentifier() and "\0" not in value:
            os.environ.setdefault(name, value)


def _warn(why: str) -> None:
    if sys.stderr is not None:
        print(f"warning: {_path()} {why}, so its settings do not count.", file=sys.stderr)
