"""Patch of Celery 5.7: a child of ``os.fork()`` makes its own connections to the broker and the results.

Celery makes new connections in the children of billiard and multiprocessing, but not in a child of a plain fork, such
as a worker of gunicorn. Without this patch such a child writes to its parent's sockets. The child also finds
kombu's pools locked if a thread of the parent used the pools during the fork.
"""

from __future__ import annotations

from celery import Celery
from kombu import pools


def forget_connections(app: Celery) -> object:
    """Let a forked child make its own connections.

    Returns:
        The parent's connections. The caller must keep a reference to them.
    """
    inherited = [dict(group) for group in (pools.connections, pools.producers)]
    pools.connections.clear()
    pools.producers.clear()
    app._after_fork()
    return inherited
