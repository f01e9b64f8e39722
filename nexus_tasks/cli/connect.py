"""Make the client that commands use, and start their log.

Importing the client takes 1 s. Therefore only a call of :func:`connect` imports the client.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus


def start_logging() -> None:
    """Start the log on standard error, at the level in NEXUS_LOG_LEVEL.

    Raises:
        ConfigurationError: a setting does not parse.
    """
    from nexus_tasks.settings import load_settings

    settings = load_settings()
    logging.basicConfig(stream=sys.stderr, level=settings.log_level, format="%(levelname)s %(name)s: %(message)s")
    if settings.log_format == "json":
        from nexus_tasks.monitoring.logs import write_json

        write_json(logging.getLogger())


def connect() -> Nexus:
    """Start the log, and return a client.

    Raises:
        ConfigurationError: a setting does not parse.
    """
    start_logging()
    from nexus_tasks.client import Nexus

    return Nexus()
