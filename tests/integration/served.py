"""An ASGI application on a real port of this machine, served as the commands serve it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from nexus_tasks.integrations.serving.listening import LOOPBACK, bound, configuration
from tests.sandbox import eventually


@contextmanager
def served(application: Callable[[int], Any]) -> Iterator[int]:
    """Serve the application that ``application`` makes for a port, and give the port."""
    with bound(LOOPBACK, 0) as listener:
        port = listener.getsockname()[1]
        running = uvicorn.Server(configuration(application(port)))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            eventually(lambda: running.started or not thread.is_alive(), within=60)
            assert running.started
            yield port
        finally:
            running.should_exit = True
            thread.join(60)
