"""Patch of Celery 5.7: remote commands that a pool of threads cannot obey answer with the reason.

Celery 5.7 answers ``pool_grow``, ``pool_shrink`` and ``revoke(terminate=True)`` of such a pool with the name of a
missing method.
"""

from __future__ import annotations

from typing import Any, NoReturn

from celery.concurrency.thread import TaskPool

FIXED = "A pool of threads has a fixed size. Restart the worker with another --concurrency."
ENDLESS = "A thread cannot be terminated. `nexus jobs drop` drops the job, and its run commits nothing."


def answer_honestly() -> None:
    """Apply the patch in this process."""
    TaskPool.grow = TaskPool.shrink = _refuse_size
    TaskPool.terminate_job = _refuse_terminate


def _refuse_size(_pool: Any, _n: int = 1) -> NoReturn:
    raise NotImplementedError(FIXED)


def _refuse_terminate(_pool: Any, _pid: int, _signal: Any = None) -> NoReturn:
    raise NotImplementedError(ENDLESS)
