"""While storage is away no job is begun: each would fail, wait, and fail again, and say so in two lines every time."""

from __future__ import annotations

import logging
import os
import threading
import time

from celery.worker import state

from nexus_tasks.idempotency.binding import binding

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0  # seconds
# A message is held back this long, then given up: a worker that shuts down waits for what it has taken. Its claim stays
# pending, and the sweep sends another one once storage answers.
HOLD_SECONDS = 20.0

_away = threading.Event()
_looking = threading.Lock()
_looked_at = float("-inf")


def note() -> None:
    """A job has found that storage does not answer."""
    if not _away.is_set():
        _away.set()
        log.warning("Storage does not answer: no job is begun until it does.")


def over() -> bool:
    """Whether storage answers, as far as is known; while it does not, somebody looks once a second."""
    global _looked_at
    if not _away.is_set():
        return True
    if _looking.acquire(blocking=False):
        try:
            if time.monotonic() - _looked_at >= LOOK_EVERY and _away.is_set():
                if binding().storage.answers():
                    _away.clear()
                    log.warning("Storage answers again.")
                _looked_at = time.monotonic()
        finally:
            _looking.release()
    return not _away.is_set()


def outlasted() -> bool:
    """Wait for the end of an outage, if there is one; ``False`` when it lasts too long, or the worker shuts down."""
    until = time.monotonic() + HOLD_SECONDS
    while not over():
        if time.monotonic() >= until or _shuts_down():
            return False
        time.sleep(LOOK_EVERY / 2)
    return True


def _shuts_down() -> bool:
    """Whether this worker was told to. The children of a prefork pool do not hear of it: they hold on to the end."""
    return state.should_stop is not None and state.should_stop is not False  # an exit code, which may be 0


def _begin_in_child() -> None:
    global _looking
    _looking = threading.Lock()  # whoever held it lives in the parent


os.register_at_fork(after_in_child=_begin_in_child)
