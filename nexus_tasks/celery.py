"""``app`` is the Celery application of the default deployment, which the ``NEXUS_*`` variables describe.

``celery -A nexus_tasks worker`` runs ``app``. :func:`register` adds our jobs to another Celery application.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

import nexus_tasks.tasks
import nexus_tasks.worker  # noqa: F401 - declares the worker steps
from nexus_tasks.deployment import Deployment, default_deployment, default_deployment_in
from nexus_tasks.idempotency.celery_patches.flower_metrics import close_metrics
from nexus_tasks.settings import Settings

close_metrics()


def __getattr__(name: str) -> Any:
    if name == "app":
        return default_deployment().app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(app: Celery, settings: Settings | None = None) -> Deployment:
    """Add the jobs, their queues, their entries in beat's schedule and the worker steps to a Celery application.

    The application keeps its broker, serializers, prefix and tasks. Its workers run our jobs beside the
    application's tasks. Its beat process starts our ticks (periodic tasks). Call this function once, directly after
    the application is made::

        app = Celery("shop", broker="redis://localhost/1")
        nexus_tasks.register(app)

    Args:
        app: the existing application.
        settings: the settings of the new deployment. With ``None`` the settings come from the ``NEXUS_*`` variables,
            and the deployment becomes the default deployment, which ``Nexus()`` and ``derive_memory.delay()`` use.

    Returns:
        The new deployment. ``Nexus(deployment)`` is its client.

    Raises:
        ConfigurationError: a setting is wrong, or the application already has the jobs of a deployment. With
            ``settings=None`` the error is also raised when the process has already used the default deployment.
    """
    return default_deployment_in(app) if settings is None else Deployment(settings, app=app)
