"""Patch of Celery 5.7 and kombu 5.7: close an application's connections, so that the next use connects again.

Celery closes its subscription to results, but keeps the subscription's object. When a result is garbage-collected
later, Celery uses this object to unsubscribe, and connects to Redis again. If Redis no longer runs, Celery tries to
connect for 20 s. This patch drops the object.
"""

from __future__ import annotations

from celery import Celery


def close_connections(app: Celery) -> None:
    """Close the application's connections to its broker and to its results. The next use connects again."""
    # `resize` is called, because `force_close_all` alone leaves an empty pool. The next user of an empty pool waits for
    # ever.
    app.pool.resize(app.pool.limit, reset=True)
    consumer = getattr(app.backend, "result_consumer", None)
    if consumer is not None:
        consumer.stop()
        consumer._pubsub = None
