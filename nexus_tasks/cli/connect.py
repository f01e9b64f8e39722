"""Make the client that commands use, and start their log.

Importing the client takes 0.3 s. Therefore only a call of :func:`connect` imports the client.
"""

from __future__ import annotations

import gc
import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus
    from nexus_tasks.deployment import Deployment
    from nexus_tasks.settings import Settings


def start_logging(settings: Settings | None = None) -> None:
    """Start the log on standard error, at the level in NEXUS_LOG_LEVEL.

    Args:
        settings: the settings, if the caller has read them.

    Raises:
        ConfigurationError: a setting does not parse.
    """
    from nexus_tasks.settings import load_settings

    settings = settings or load_settings()
    logging.basicConfig(stream=sys.stderr, level=settings.log_level, format="%(levelname)s %(name)s: %(message)s")
    if settings.log_level == "DEBUG":
        from nexus_tasks.monitoring.logs import leave_out_prompts

        leave_out_prompts()
    if settings.log_format == "json":
        from nexus_tasks.monitoring.logs import write_json

        write_json(logging.getLogger())


def connect() -> Nexus:
    """Start the log, and return a client.

    Raises:
        ConfigurationError: a setting does not parse.
    """
    first = "nexus_tasks.client" not in sys.modules
    if first:
        gc.disable()  # as in `entry.py`
    from nexus_tasks.client import Nexus

    if first:
        gc.freeze()
        gc.enable()
    nexus = Nexus()
    start_logging(nexus.deployment.settings)
    return nexus


def one_deployment(client: Nexus) -> Deployment:
    """The client's deployment, for a command that works on one database.

    Raises:
        ConfigurationError: the client uses several cells, so no single database is meant.
    """
    from nexus_tasks.settings import load_settings, refuse_several

    refuse_several(load_settings())
    return client.deployment
