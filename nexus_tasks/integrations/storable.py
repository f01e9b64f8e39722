"""Make JSON of a framework storable: Postgres keeps neither a NUL character nor half of a surrogate pair."""

from __future__ import annotations

from typing import Any


def storable(value: Any) -> Any:
    """Return a JSON value in which NUL characters are left out and each half of a surrogate pair is a ``?``.

    A tool that reads a binary file may return a NUL character. The message is stored without it, and the agent goes on.
    """
    if isinstance(value, str):
        return value.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [storable(one) for one in value]
    if isinstance(value, dict):
        return {storable(name): storable(one) for name, one in value.items()}
    return value
