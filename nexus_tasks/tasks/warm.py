"""What a worker loads before it takes its first job, so that no job waits for it (and prefork children share it)."""

from __future__ import annotations

import logging
from importlib import import_module

from celery.signals import worker_init

from nexus_tasks.errors import NexusError
from nexus_tasks.tasks.runtime import runtime

log = logging.getLogger(__name__)


@worker_init.connect  # type: ignore[untyped-decorator]
def warm(**_kwargs: object) -> None:
    """Choose the model and load its library: over a second for Claude's."""
    try:
        mind = runtime().mind
    except NexusError as error:
        log.error("No job can run yet: %s", error)  # jobs will say so again; the worker may outlast the cause
        return
    if mind.model.name == "anthropic":
        import_module("anthropic")
    mind.embedder.embed(["warm"])
