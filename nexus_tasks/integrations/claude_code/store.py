"""What the hook leaves running: stores the buffer, and keeps the contexts of what has changed ready."""

from __future__ import annotations

import logging
import time

from nexus_tasks.errors import NexusError
from nexus_tasks.settings import load_settings

log = logging.getLogger(__name__)

_LAST_LINES = 0.5  # seconds: an agent writes the last lines of its transcript while the hook runs


def main() -> None:
    """Store this machine's buffer if the servers run; a hook starts none, workers store it when they do."""
    time.sleep(_LAST_LINES)
    settings = load_settings()
    if settings.embedded:
        from nexus_tasks import embedded

        if embedded.running(settings.home) is None:
            return
    from nexus_tasks.deployment import default_deployment
    from nexus_tasks.services import buffer_flush, context_cache

    try:
        buffer_flush.store_buffer(default_deployment(), wait=True)
        context_cache.refresh(default_deployment())
    except NexusError as error:
        log.warning("%s", error)  # nobody reads it here; it stays in the buffer, and whoever is next says so


if __name__ == "__main__":
    main()
