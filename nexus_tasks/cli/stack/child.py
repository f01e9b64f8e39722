"""The program of every child of the stack: a Celery command that ends by itself when its parent has ended.

It is called as ``python -m nexus_tasks.cli.stack.child READY_FD celery-arguments…``. Standard input is a pipe, and only
the parent holds the pipe's other end. The system closes the pipe when the parent ends, also after a ``kill -9``. (Linux
can send a signal instead, PR_SET_PDEATHSIG, but sends it as soon as the *thread* ends that started the child. Other
systems have no such signal.)
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
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)  # the parent made this process the leader of its own group


if __name__ == "__main__":
    main()
