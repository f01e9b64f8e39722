"""The demo's own settings and embedded servers. The servers start before the demo and stop after it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nexus_tasks import embedded
from nexus_tasks.cli.stack import temporary_worker
from nexus_tasks.embedded.account import let_pass, postgres_account
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.file_locks import try_lock
from nexus_tasks.files import make_folder
from nexus_tasks.settings import Settings, load_settings

_KEPT = ("NEXUS_HOME", "NEXUS_LOG_LEVEL")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def set_up() -> Settings:
    """Make the demo's settings, and export them to child processes.

    With these settings the demo costs nothing and does not touch the user's memory. Of the user's environment, the demo
    keeps only NEXUS_HOME and NEXUS_LOG_LEVEL. It does not use the servers, model, embedder or Celery configuration that
    are set for real work.
    """
    for name in list(os.environ):
        if name.upper().startswith(("NEXUS_", "CELERY_")) and name.upper() not in _KEPT:
            del os.environ[name]
    home = load_settings().home.expanduser().resolve() / "demo"
    os.environ.update(NEXUS_HOME=str(home), NEXUS_MODEL="offline", CELERY_CONFIG_MODULE="nexus_tasks.config")
    return load_settings()


@contextmanager
def stage(settings: Settings) -> Iterator[None]:
    """Run the servers, a worker and beat during the ``with`` block. They stop after the block, also after an error.

    Raises:
        EmbeddedError: a server, the worker or beat does not start, or another demo is running.
    """
    try:
        make_folder(os.fspath(settings.home))
        if account := postgres_account():  # by the group: else every user could pass through the folder of real work
            let_pass(settings.home.parent, account)
        held = try_lock(settings.home / "demo.lock")
    except OSError as error:
        raise embedded.explain(error, settings.home) from error
    if held is None:
        raise EmbeddedError("Another demo is running.", remedy="Wait until it ends, or set another NEXUS_HOME.")
    with held:
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _exit)  # raises SystemExit, so that the servers are stopped as after Ctrl-C
        try:
            embedded.ensure(settings.home, announce=False)
            with temporary_worker(settings, beat=True):
                yield
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C now would leave the servers running
            embedded.stop(settings.home)
            for number, handler in before.items():
                signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
