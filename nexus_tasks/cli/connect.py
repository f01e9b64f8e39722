"""The client that commands use. Its import takes 1 s, so each command imports the client only when needed."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus


def start_logging() -> None:
    """Log to standard error at NEXUS_LOG_LEVEL.

    Raises:
        ConfigurationError: a setting does not parse.
    """
    from nexus_tasks.settings import load_settings

    logging.basicConfig(
        stream=sys.stderr, level=load_settings().log_level, format="%(levelname)s %(name)s: %(message)s"
    )


def connect() -> Nexus:
    """The client, with logging on.

    Raises:
        ConfigurationError: a setting does not parse.
    """
    start_logging()
    from nexus_tasks.client import Nexus

    return Nexus()
