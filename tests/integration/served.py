"""An ASGI application on a real port of this machine, served as the commands serve it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from nexus_tasks.integrations.serving.listening import LOOPBACK, bound, configuration
from tests.sandbox import Sandbox, eventually

TOKEN = "the-operators-own-token"


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


@contextmanager
def serving(here: Sandbox, **environment: str) -> Iterator[str]:
    """``nexus serve`` as an operator starts it, with the token ``TOKEN``. Gives its address."""
    log = here.folder / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "nexus_tasks.cli.main", "serve", "0"],
            env={**here.environment, "NEXUS_HTTP_TOKEN": TOKEN, **environment},
            cwd=here.folder,
            stdin=subprocess.DEVNULL,
            stderr=output,
        )
    try:
        found = eventually(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), within=60)
        assert found, log.read_text()
        yield found[0]
    finally:
        process.terminate()
        process.wait(60)
