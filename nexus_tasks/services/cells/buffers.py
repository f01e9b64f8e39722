"""Storing the session buffers of this machine in the cells where the namespaces live now.

A process buffers messages for the cell that it believed to have the namespace. When the namespace has moved meanwhile,
that cell refuses the messages, and they are stored in the other cell from here.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection
from functools import partial

from nexus_tasks.errors import BufferError, InvalidInput, NexusError
from nexus_tasks.services import buffer_flush
from nexus_tasks.services.buffer_flush import LOOK_EVERY, StoreReport
from nexus_tasks.services.cells.router import Cells
from nexus_tasks.storage import tenancy
from nexus_tasks.types import as_stored

log = logging.getLogger(__name__)


class _Clock(dict[frozenset[str] | None, float]):
    """The namespaces of a caller (``None`` for all) → ``time.monotonic`` of its last look at the buffers of all cells.

    Callers with other namespaces look for themselves.
    """


_MOST_CALLERS = 10_000  # whose last look a process remembers


def note_buffered(cells: Cells) -> None:
    """Look at the buffers before the next call, because this process has just buffered messages."""
    cells.directory.local(_Clock).clear()


def store_pending(cells: Cells, allowed: Collection[str] | None) -> None:
    """Store the buffered messages of all cells, at most every 5 s. A cell that is away keeps its messages buffered.

    A limited caller stores only what is its own, so that it waits for no message of another tenant.
    """
    looked_at, whose = cells.directory.local(_Clock), None if allowed is None else frozenset(allowed)
    if time.monotonic() - looked_at.get(whose, float("-inf")) < LOOK_EVERY:
        return
    if len(looked_at) >= _MOST_CALLERS:
        looked_at.clear()
    looked_at[whose] = time.monotonic()
    try:
        report = store_all(cells, allowed=allowed, briefly=True)
    except NexusError as error:
        log.warning("The session buffers of the cells are not stored yet: %s", error)
        return
    if report.elsewhere or report.busy:  # the pause of a move lasts for seconds, and another process stores for less
        looked_at.pop(whose, None)


def keeper(cells: Cells, namespace: str, session_key: str, beside: str | None = None) -> str | None:
    """The name of the last cell whose buffer has messages of a session; ``None``: no buffer has any.

    During a move, messages are buffered for the old cell. Later messages of the session must not come before these.
    :func:`store_all` stores the buffers in the order of the cells, so later messages belong into the last one.

    Args:
        beside: the name of a cell whose buffer is left out.
    """
    for name, deployment in reversed([*cells.deployments.items()]):
        if name != beside:
            try:
                if deployment.buffer.pending() and deployment.buffer.has(namespace, as_stored(session_key)):
                    return name
            except BufferError as error:  # the call goes on although the buffer cannot be read
                log.warning("The session buffer of the cell %s cannot be read: %s", name, error)
    return None


def store_all(
    cells: Cells, *, wait: bool = False, allowed: Collection[str] | None = None, briefly: bool = False
) -> StoreReport:
    """Store each buffered message in the cell of its namespace.

    Args:
        cells: the cells.
        wait: wait for another process that stores the buffer.
        allowed: store only the messages of these namespaces. Default: those of all.
        briefly: as for :func:`buffer_flush.store_buffer`.

    Raises:
        StorageUnavailable: the directory does not answer. Namespaces whose cell is away or not known are skipped.
        BufferError: a folder cannot be read or written.
    """
    report = StoreReport()
    # The namespaces of which an earlier buffer still has messages. Those in later buffers wait, because a session's
    # messages must keep their order.
    kept = set[str]()
    for deployment in cells.deployments.values():
        if not deployment.buffer.pending():
            continue
        waiting = {agent for agent, _ in deployment.buffer.list() if allowed is None or agent in allowed} - kept
        found = _by_cell(cells, waiting)
        kept |= waiting.difference(*found.values())
        for name, namespaces in found.items():
            try:
                cells.check(name)
                store = partial(
                    buffer_flush.store_buffer,
                    cells.deployments[name],
                    wait=wait,
                    buffer=deployment.buffer,
                    allowed=namespaces,
                    briefly=briefly,
                )
                with tenancy.unlimited():
                    done = cells.silence.ask(name, store)
            except BufferError:
                raise
            except NexusError as error:
                log.warning("The messages for the cell %s stay in the buffer: %s", name, error)
                kept |= namespaces
                continue
            kept |= namespaces if done.busy else {*done.kept}
            _add(report, done)
    return report


def _by_cell(cells: Cells, namespaces: Collection[str]) -> dict[str, set[str]]:
    """The namespaces of each cell. A namespace whose cell is not found is left out: its messages stay in the buffer."""
    found = defaultdict[str, set[str]](set)
    if namespaces:
        _ask_the_directory(cells)
    for namespace in namespaces:
        try:  # the table is read anew: the namespace may be here because it has moved
            found[cells.name_of(namespace, checked=False, anew=True)].add(namespace)
        except InvalidInput:  # no cell has a namespace of this name, and any cell refuses its messages
            found[cells.directory_name].add(namespace)
        except NexusError as error:
            log.warning("The messages of %s stay in the buffer: %s", namespace, error)
    return found


def _ask_the_directory(cells: Cells) -> None:
    """Raise :class:`StorageUnavailable` when the directory does not answer, before each namespace asks it."""
    cells.silence.ask(cells.directory_name, partial(cells.moves, limit=1))


def store_before_erasure(cells: Cells, namespace: str, session_key: str | None, *, whole: bool) -> None:
    """Store what the buffers of the other cells have of what is about to be erased, and empty their quarantine of it.

    The buffer of the cell that has the namespace is left to the erasure itself. The arguments are those of
    :func:`buffer_flush.store_before_erasure`.
    """
    keeping = [one for one in cells.deployments.values() if one.buffer.pending() or one.buffer.quarantined()]
    if not keeping:  # so the directory may be away
        return
    _ask_the_directory(cells)
    home = cells.deployment_of(namespace, writing=False)
    for deployment in keeping:
        if deployment is not home:
            buffer_flush.store_before_erasure(home, namespace, session_key, whole=whole, buffer=deployment.buffer)


def _add(report: StoreReport, done: StoreReport) -> None:
    counts = ("entries", "stored", "duplicates", "enqueued", "sessions", "waiting", "unknown", "elsewhere")
    for name in counts:
        setattr(report, name, getattr(report, name) + getattr(done, name))
    for namespace, entries in done.locked.items():
        report.locked[namespace] = report.locked.get(namespace, 0) + entries
    for namespace in done.kept:
        report.note_kept(namespace)
    report.busy = report.busy or done.busy
    report.damages += done.damages
