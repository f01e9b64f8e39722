"""Make JSON of a framework storable: Postgres keeps neither a NUL character nor half of a surrogate pair."""

from __future__ import annotations

from typing import Any


def storable(value: Any) -> Any:
    """A JSON value without NUL characters, and with ``?`` in place of half a surrogate pair. The rest stays as it is.

    A tool that reads a file may return a NUL character. It must not cost the message that has it, nor the agent's run.
    """
    if isinstance(value, str):
        return value.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [storable(one) for one in value]
    if isinstance(value, dict):
        return {storable(name): storable(one) for name, one in value.items()}
    return value
