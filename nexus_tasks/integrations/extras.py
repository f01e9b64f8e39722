"""Say which extra to install when a framework that an adapter needs is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nexus_tasks.errors import MissingExtra


@contextmanager
def extra(name: str, *packages: str) -> Iterator[None]:
    """Turn a failed import of ``packages`` inside the block into an error that names the extra ``name``.

    Raises:
        MissingExtra: one of ``packages`` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise MissingExtra(
            f"{error.name} is not installed.", remedy=f"Install the extra: `pip install 'nexus-tasks[{name}]'`."
        ) from None
