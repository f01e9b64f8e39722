"""What a worker loads before it takes its first job, so that no job waits for it (and prefork children share it)."""

from __future__ import annotations

import gc
import logging

from celery.signals import worker_init

from nexus_tasks.errors import NexusError
from nexus_tasks.tasks.runtime import runtime

log = logging.getLogger(__name__)

GARBAGE = 10_000  # objects made before the youngest are looked through


@worker_init.connect  # type: ignore[untyped-decorator]
def warm(**_kwargs: object) -> None:
    """Choose the model, load its library and what makes vectors."""
    try:
        load()
        runtime().embedder.embed(["warm"])
    except NexusError as error:
        log.error("No job can run yet: %s", error)  # jobs will say so again; the worker may outlast the cause
        return
    # What is loaded by now stays: collections need not look at it again (0.2 s each), nor children copy it to do so.
    gc.collect()
    gc.freeze()
    # A run makes thousands of objects and keeps few: looked at every 700, they took a seventh of a derivation's CPU.
    gc.set_threshold(GARBAGE)


def load() -> None:
    """Choose the model and load its library, over a second for Claude's. Leaves no thread and no connection behind.

    Raises:
        ConfigurationError: no model can speak.
    """
    if runtime().resources.model.name == "anthropic":
        _load_sdk()


def _load_sdk() -> None:
    """Claude's library loads much of itself only when a client is made and used."""
    import anthropic

    with anthropic.Anthropic(api_key="unused") as client:
        _ = client.messages
