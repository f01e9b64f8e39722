"""Patch of Celery 5.7: ending an application's connections for good.

Celery closes the subscription to results, but keeps the object: every result that is garbage-collected later connects
to Redis again, to unsubscribe. If that Redis is gone, Celery tries for 20 s.
"""

from __future__ import annotations

from celery import Celery


def close_connections(app: Celery) -> None:
    """Close the application's connections to its broker and to its results; the next use connects again."""
    app.pool.force_close_all(close_pool=False)
    consumer = getattr(app.backend, "result_consumer", None)
    if consumer is not None:
        consumer.stop()
        consumer._pubsub = None
