"""``app``: the default deployment's Celery application. :func:`register` puts our jobs into an application of yours.

``celery -A nexus_tasks worker`` finds ``app`` here.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

import nexus_tasks.tasks
import nexus_tasks.worker  # noqa: F401 - declares the worker steps
from nexus_tasks.deployment import Deployment, default_deployment, default_deployment_in
from nexus_tasks.settings import Settings


def __getattr__(name: str) -> Any:
    if name == "app":
        return default_deployment().app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(app: Celery, settings: Settings | None = None) -> Deployment:
    """Put the jobs, their queues, beat's entries and the worker steps into an existing Celery application.

    The application keeps its broker, serializers, prefix and tasks. Its workers run our jobs beside its own tasks, and
    its beat starts our ticks. Call this once, where the application is made::

        app = Celery("shop", broker="redis://localhost/1")
        nexus_tasks.register(app)

    Args:
        app: the existing application.
        settings: the settings of the new deployment. With ``None`` the environment gives the settings, and the
            deployment becomes the default one, which ``Nexus()`` and ``derive_memory.delay()`` use.

    Returns:
        The new deployment. ``Nexus(deployment)`` is its client.

    Raises:
        ConfigurationError: a setting is wrong, the application has the jobs of a deployment already, or ``settings`` is
            ``None`` and the process has used the default deployment before.
    """
    return default_deployment_in(app) if settings is None else Deployment(settings, app=app)
