"""Starts a fork server (a process that forks a child per run) for a worker that could not fork the server itself.

``python -P -m nexus_tasks.idempotency.worker.fork_server_main PATH APP [MODULE …]``: PATH is the worker's ``sys.path``
as JSON. APP is the import path of the worker's Celery application (``package.module:name``). Each MODULE is a module
that ``celery worker --include`` named.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import socket
import sys
from contextlib import suppress
from functools import partial

from celery.app.utils import find_app

from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.engine import engine_of
from nexus_tasks.idempotency.worker.executor import take_up
from nexus_tasks.idempotency.worker.fork_server import IDLE_SECONDS, serve


def main(path: str, application: str, *modules: str) -> None:
    """Load the code that jobs need, then serve the socket on standard input."""
    # Celery would put the current folder first, where its modules shadow others. At the end it finds an operator's own
    # modules and shadows nothing.
    sys.path[:] = [*json.loads(path), os.getcwd()]
    app = find_app(application, imp=importlib.import_module)
    app.loader.import_default_modules()
    for module in modules:
        importlib.import_module(module)
    with suppress(NexusError):  # each job reports the same error
        engine_of(app).deployment.preload()
    logging.basicConfig(level=logging.INFO, format=app.conf.worker_log_format)
    gc.collect()
    gc.freeze()  # children share the loaded code as long as its memory is not written to
    line = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(line, partial(take_up, app), idle=IDLE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
