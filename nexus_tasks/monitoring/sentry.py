"""Events for Sentry: one for each dead letter, with the stack of its error and without what a user has said.

A dead letter is an error in the log (``_give_up`` in ``executor.py``, ``bury`` in ``orphans.py``), and Sentry's SDK
makes an event of each error in the log. Other error trackers that read the log work in the same way.
"""

from __future__ import annotations

import logging
import os
from typing import Any

log = logging.getLogger(__name__)

LEFT_OUT = "(left out, because it may quote what a user has said: see the log)"


def start() -> None:
    """Start Sentry's SDK if ``SENTRY_DSN`` is set. An application that has started the SDK itself keeps its own."""
    if not os.environ.get("SENTRY_DSN", "").strip():
        return
    try:
        import sentry_sdk
    except ImportError:
        log.warning("Nothing is sent to Sentry: install its SDK with `pip install 'nexus-tasks[sentry]'`.")
        return
    if sentry_sdk.is_initialized():
        return
    sentry_sdk.init(  # the SDK reads SENTRY_DSN, SENTRY_ENVIRONMENT and SENTRY_RELEASE
        auto_enabling_integrations=False,  # those for Celery, Redis and SQL would send arguments and statements
        include_local_variables=False,
        max_breadcrumbs=0,
        before_send=without_texts,
    )


def without_texts(event: Any, _hint: object) -> Any:
    """The event without the messages of its exceptions, which may quote what a user has said. Their stacks stay."""
    for one in event.get("exception", {}).get("values", ()):
        one["value"] = LEFT_OUT
    told = event.get("extra", {})
    event["tags"] = {**event.get("tags", {}), **{name: told[name] for name in ("job", "kind") if name in told}}
    return event
