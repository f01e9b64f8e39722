"""Patch of Celery 5.7: when an error link cannot be sent, the worker logs it and still acknowledges the message.

Celery 5.7 sends all error links of a failed message in one call. When one has bad arguments, the call raises, and the
exception leaves Celery's tracing. Then the other links are not sent, and a pool of threads never acknowledges the
message. With this patch each error link is sent by itself.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import Any

from celery.backends.base import Backend

log = logging.getLogger(__name__)

_send_all = Backend._call_task_errbacks


def send_each_errback() -> None:
    """Apply the patch in this process."""
    Backend._call_task_errbacks = _send_each


def _send_each(backend: Any, request: Any, exc: Any, traceback: Any) -> None:
    for errback in request.errbacks:
        one = copy(request)
        one.errbacks = [errback]
        try:
            _send_all(backend, one, exc, traceback)
        except Exception:
            log.exception("An error link of %s cannot be sent: %s", request.id, errback)
