"""Storing the session buffers of this machine in the cells where the namespaces live now.

A process buffers messages for the cell that it believed to have the namespace. When the namespace has moved meanwhile,
that cell refuses the messages, and they are stored in the other cell from here.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict

from nexus_tasks.errors import BufferError, NexusError
from nexus_tasks.services import buffer_flush
from nexus_tasks.services.buffer_flush import LOOK_EVERY, StoreReport
from nexus_tasks.services.cells.router import Cells
from nexus_tasks.storage import tenancy

log = logging.getLogger(__name__)


class _Clock:
    """The time of this process's last look at the buffers of all cells, by ``time.monotonic``."""

    looked_at = float("-inf")


def note_buffered(cells: Cells) -> None:
    """Look at the buffers before the next call, because this process has just buffered messages."""
    cells.directory.local(_Clock).looked_at = float("-inf")


def store_pending(cells: Cells) -> None:
    """Store the buffered messages of all cells, at most every 5 s. A cell that is away keeps its messages buffered."""
    clock = cells.directory.local(_Clock)
    if time.monotonic() - clock.looked_at < LOOK_EVERY:
        return
    clock.looked_at = time.monotonic()
    try:
        store_all(cells)
    except NexusError as error:
        log.warning("The session buffers of the cells are not stored yet: %s", error)


def store_all(cells: Cells, *, wait: bool = False) -> StoreReport:
    """Store each buffered message in the cell of its namespace.

    Args:
        cells: the cells.
        wait: wait for another process that stores the buffer.

    Raises:
        StorageUnavailable: the directory does not answer. Cells that are away are skipped.
        BufferError: a folder cannot be read or written.
    """
    report = StoreReport()
    for deployment in cells.deployments.values():
        if not deployment.buffer.pending():
            continue
        by_cell = defaultdict[str, set[str]](set)
        for namespace in {agent for agent, _ in deployment.buffer.list()}:
            cells.forget(namespace)  # it may be here because it has moved
            by_cell[cells.name_of(namespace)].add(namespace)
        for name, namespaces in by_cell.items():
            try:
                with tenancy.unlimited():
                    done = buffer_flush.store_buffer(
                        cells.deployments[name], wait=wait, buffer=deployment.buffer, allowed=namespaces
                    )
            except BufferError:
                raise
            except NexusError as error:
                log.warning("The messages for the cell %s stay in the buffer: %s", name, error)
                continue
            _add(report, done)
    return report


def _add(report: StoreReport, done: StoreReport) -> None:
    for name in ("entries", "stored", "duplicates", "enqueued", "sessions", "waiting", "unknown", "elsewhere"):
        setattr(report, name, getattr(report, name) + getattr(done, name))
    report.busy = report.busy or done.busy
    report.damages += done.damages
