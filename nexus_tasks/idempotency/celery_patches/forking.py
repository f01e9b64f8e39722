"""Patch of Celery 5.7: a child of ``os.fork()`` leaves the parent's connections to the broker and the results alone.

Celery makes new connections in the children of billiard and multiprocessing. A child of a plain fork (as gunicorn's
workers are) would speak on its parent's sockets, and find kombu's pools locked when a thread of the parent used them.
"""

from __future__ import annotations

from celery import Celery
from kombu import pools


def forget_connections(app: Celery) -> object:
    """Have a forked child make connections of its own. The caller must keep the parent's, which are returned, alive."""
    inherited = [dict(group) for group in (pools.connections, pools.producers)]
    pools.connections.clear()
    pools.producers.clear()
    app._after_fork()
    return inherited
