"""``nexus up`` and ``nexus down``, and the temporary workers of other commands.

Every child process imports this package before Celery, so this import must stay fast. Therefore only :func:`register`
imports Typer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_tasks.cli.stack.lifetime import supervisor_pid
from nexus_tasks.cli.stack.workers import live_workers, temporary_worker, within, worker_alive

if TYPE_CHECKING:
    import typer

__all__ = ["live_workers", "register", "supervisor_pid", "temporary_worker", "within", "worker_alive"]


def register(app: typer.Typer) -> None:
    """Add the commands ``up`` and ``down`` to ``app``."""
    from nexus_tasks.cli.stack.commands import down, up

    app.command()(up)
    app.command()(down)
