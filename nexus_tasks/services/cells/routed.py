"""Letting the client's methods find their cell. Without cells this costs a call, and imports nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def routed_methods(client: type[T]) -> type[T]:
    """A class decorator: when the client has ``cells``, each public method runs in the cell of its namespace.

    A method without a namespace asks all cells (see ``routing.py``).
    """
    for name, method in list(vars(client).items()):
        if inspect.isfunction(method) and not name.startswith("_") and not inspect.iscoroutinefunction(method):
            setattr(client, name, _routed(method))
    return client


def _routed(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.cells is None:
            return method(self, *args, **kwargs)
        from nexus_tasks.services.cells import routing  # imports much that a client of one deployment does not need

        return routing.call(self, method.__name__, signature, args, kwargs)

    return call
