"""The Celery application: ``celery -A nexus_tasks worker``.

The jobs belong to this application by name and not to whichever is current: a producer may have a Celery application
of its own, and its broker is not ours.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery


def _config_module() -> str:
    """CELERY_CONFIG_MODULE, else the deployment's ``celeryconfig.py``, else the package's own settings."""
    named = os.environ.get("CELERY_CONFIG_MODULE")
    return named or ("celeryconfig" if Path("celeryconfig.py").is_file() else "nexus_tasks.config")


app = Celery("nexus_tasks", set_as_current=False)
app.config_from_object(_config_module())
app.steps["worker"].add("nexus_tasks.idempotency.worker.isolation:ForkServerStep")
app.steps["worker"].add("nexus_tasks.idempotency.celery_patches.redis_client_per_channel:ChannelStep")
app.steps["worker"].add("nexus_tasks.idempotency.worker.sweeper:SweepStep")
app.steps["worker"].add("nexus_tasks.tasks.worker_buffer:BufferStep")
