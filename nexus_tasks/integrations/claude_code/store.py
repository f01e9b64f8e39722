"""The background process that the hook starts: it stores the buffer and updates the changed context files."""

from __future__ import annotations

import logging
import time

from nexus_tasks.errors import NexusError
from nexus_tasks.settings import load_settings

log = logging.getLogger(__name__)

_LAST_LINES = 0.5  # seconds to wait until the agent has written the last lines of its transcript


def main() -> None:
    """Store this machine's buffer if the servers run. This process starts no server; a worker stores the rest later."""
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
        log.warning("%s", error)  # the entries stay in the buffer; the next command or worker reports the error


if __name__ == "__main__":
    main()
