"""The use cases of the client and the commands, one module each.

A module is imported at its first use. A command needs few of them, and importing all takes 0.3 s.

    from nexus_tasks import services

    services.recall.search(deployment, "acme", "where does ann live?")
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nexus_tasks.services import (
        access,
        correcting,
        dreams,
        erasure,
        intake,
        jobs,
        markdown,
        memories,
        namespaces,
        observation_log,
        recall,
        sessions,
        spending,
        status,
        topics,
        transfer,
        webhooks,
    )

__all__ = [
    "access",
    "correcting",
    "dreams",
    "erasure",
    "intake",
    "jobs",
    "markdown",
    "memories",
    "namespaces",
    "observation_log",
    "recall",
    "sessions",
    "spending",
    "status",
    "topics",
    "transfer",
    "webhooks",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
