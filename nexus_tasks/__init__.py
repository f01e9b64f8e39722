"""Always-on memory for AI agents, as a Celery application.

The public modules are this one, :mod:`nexus_tasks.jobs`, :mod:`nexus_tasks.types` and :mod:`nexus_tasks.errors`. Every
other module may change without notice. Each name below is imported at its first use, so ``import nexus_tasks`` loads no
other module of the package and starts nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nexus_tasks.celery import app, register
    from nexus_tasks.client import Nexus
    from nexus_tasks.deployment import Deployment
    from nexus_tasks.errors import NexusError
    from nexus_tasks.services.cells.router import Cells
    from nexus_tasks.settings import Settings
    from nexus_tasks.tasks.derive_memory import derive_memory
    from nexus_tasks.tasks.digest_session import digest_session
    from nexus_tasks.tasks.embed_memories import embed_memories
    from nexus_tasks.tasks.extract_session import extract_session
    from nexus_tasks.tasks.observe_session import observe_session
    from nexus_tasks.tasks.reflect_namespace import reflect_namespace
    from nexus_tasks.tasks.reflect_observations import reflect_observations
    from nexus_tasks.tasks.reflect_perspective import reflect_perspective
    from nexus_tasks.types import Message

__version__ = "0.1.0"

__all__ = [
    "Cells",
    "Deployment",
    "Message",
    "Nexus",
    "NexusError",
    "Settings",
    "app",
    "derive_memory",
    "digest_session",
    "embed_memories",
    "extract_session",
    "observe_session",
    "reflect_namespace",
    "reflect_observations",
    "reflect_perspective",
    "register",
]

_HOMES = {
    "Cells": "services.cells.router",
    "Deployment": "deployment",
    "Message": "types",
    "Nexus": "client",
    "NexusError": "errors",
    "Settings": "settings",
    "app": "celery",
    "derive_memory": "tasks.derive_memory",
    "digest_session": "tasks.digest_session",
    "embed_memories": "tasks.embed_memories",
    "extract_session": "tasks.extract_session",
    "observe_session": "tasks.observe_session",
    "reflect_namespace": "tasks.reflect_namespace",
    "reflect_observations": "tasks.reflect_observations",
    "reflect_perspective": "tasks.reflect_perspective",
    "register": "celery",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
