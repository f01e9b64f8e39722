"""The background process that the hook starts to store the session buffer in Postgres and to update context files."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack

from nexus_tasks.buffer import SessionBuffer, default_home, home_of_deployment
from nexus_tasks.errors import NexusError
from nexus_tasks.integrations.setup import environment_file

log = logging.getLogger(__name__)

_LAST_LINES = 0.5  # seconds to wait, so that the agent can write the last lines of its transcript


def main() -> None:
    """Store this machine's session buffer, and update the context files.

    The function starts no server. When the embedded servers do not run, the function does nothing, and a worker stores
    the buffer later.

    When another such process already waits to store the buffer, this one ends, because the other one stores its entries
    too. If the other one is killed, the next hook, command or worker stores them. Otherwise, when many subagents stop
    at a time, a process of 110 MB would wait for each.
    """
    time.sleep(_LAST_LINES)
    environment_file.load()
    try:
        with ExitStack() as waiting:
            if lock := SessionBuffer().try_waiting():
                waiting.enter_context(lock)
                _store(waiting)
    except NexusError as error:
        # The messages stay in the buffer. The next command or worker that stores the buffer reports the error again.
        log.warning("%s", error)


def _store(waiting: ExitStack) -> None:
    from nexus_tasks.settings import load_settings  # after the lock was taken: it needs time and memory

    settings = load_settings()
    if settings.embedded:
        from nexus_tasks import embedded

        if embedded.running(settings.home) is None:
            return
    from nexus_tasks.deployment import default_deployment
    from nexus_tasks.services import buffer_flush, context_cache

    buffer_flush.store_buffer(default_deployment(), wait=True, begins=waiting.close)
    context_cache.refresh(default_deployment())


def _leave_project() -> None:
    """Make the home the working folder. The hook starts this process in the folder of an untrusted project."""
    os.environ["NEXUS_HOME"] = default_home()
    os.chdir(home_of_deployment())  # it has the buffer; NEXUS_HOME may not exist when a cell has a home of its own


if __name__ == "__main__":
    _leave_project()
    main()
