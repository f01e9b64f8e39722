"""Patch of Celery 5.7 and kombu 5.7: closing an application's connections, so that the next use connects again.

Celery closes its subscription to results, but keeps the subscription's object. Each result that is garbage-collected
later uses this object: it connects to Redis again, to unsubscribe. If that Redis is gone, Celery tries for 20 s.
"""

from __future__ import annotations

from celery import Celery


def close_connections(app: Celery) -> None:
    """Close the application's connections to its broker and to its results; the next use connects again."""
    # `force_close_all` alone leaves an empty pool, whose next user waits for ever.
    app.pool.resize(app.pool.limit, reset=True)
    consumer = getattr(app.backend, "result_consumer", None)
    if consumer is not None:
        consumer.stop()
        consumer._pubsub = None
