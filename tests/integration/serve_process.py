"""``nexus serve`` as a process of its own, so that the test's own work does not hold its interpreter."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.sandbox import Sandbox, eventually


@contextmanager
def serve_process(
    here: Sandbox,
    *options: str,
    host: str = "",
    within: Sequence[str] = (),
    command: Sequence[str] = ("serve",),
    **environment: str,
) -> Iterator[tuple[int, int]]:
    """Start ``nexus serve`` on a free port, and give its process id and the port. It is stopped at the end.

    ``within`` is a command that starts the server. ``command`` is another command of ``nexus`` that serves.
    """
    log = here.folder / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*within, sys.executable, "-m", "nexus_tasks.cli.main", *command, f"{host}:0", *options],
            env={**here.environment, **environment},
            cwd=here.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        found = eventually(lambda: process.poll() is not None or re.search(r"http://\S+:(\d+)", log.read_text()))
        assert isinstance(found, re.Match), log.read_text()
        yield process.pid, int(found[1])
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
