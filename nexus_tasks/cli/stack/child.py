"""The program of every child process of ``nexus up``: a Celery command that ends by itself when its parent has ended.

The call is ``python -m nexus_tasks.cli.stack.child READY_FD celery-arguments…``. Standard input is a pipe, and only the
parent has the pipe's other end. The system closes the pipe when the parent ends, also after a ``kill -9``.

The signal that Linux can send instead (PR_SET_PDEATHSIG) is not used. Linux sends it already when the *thread* that
started the child ends, and other systems do not have this signal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from nexus_tasks.cli.stack.processes import GRACE_SECONDS


def main() -> None:
    """Run Celery with the arguments after READY_FD, and write to READY_FD when the worker is ready."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from celery.__main__ import main as celery
    from celery.signals import worker_ready

    ready = int(sys.argv[1])
    worker_ready.connect(lambda **_: os.write(ready, b"ready\n"), weak=False)
    sys.argv = ["celery", *sys.argv[2:]]
    celery()


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)  # a warm shutdown ends the process, and with it this thread
    os.killpg(0, signal.SIGKILL)  # the parent made this process the leader of its own group


if __name__ == "__main__":
    main()
