"""Lets Flower show its metrics only to its user. Flower 2.2.0 checks the user of every page but ``/metrics``.

The metrics have the names of workers and job kinds, and how much they do. ``/healthcheck`` stays open: it says ``OK``.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module


def close_metrics() -> None:
    """Close ``/metrics``, when this process is Flower (``celery … flower``). Without a user of Flower it stays open."""
    if "flower" not in sys.argv:
        return
    with suppress(ImportError):  # then the command says that Flower is not installed
        metrics = import_module("flower.views.monitor").Metrics
        metrics.get = import_module("tornado.web").authenticated(metrics.get)
