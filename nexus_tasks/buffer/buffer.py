"""The session buffer: start → append → flush → recover after a crash → acknowledge once stored."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, cast

from nexus_tasks.buffer import entry, files
from nexus_tasks.buffer.places import default_folder
from nexus_tasks.buffer.quarantine import Damage
from nexus_tasks.buffer.segment import Segment
from nexus_tasks.buffer.session import FLUSHED, Gone
from nexus_tasks.buffer.sessions import Sessions
from nexus_tasks.buffer.stats import measure, pending, quarantined, standing
from nexus_tasks.errors import BufferError

Fsync = Literal["always", "interval", "off"]

MAX_BYTES = 1 << 30
INTERVAL = 1.0  # seconds
_SHARE = 64  # of the room that is left, how small a part is used before measuring again
_IDLE_SECONDS = 7 * 86_400.0  # an empty session's folder is deleted after this time


class Recovery(NamedTuple):
    """What :meth:`SessionBuffer.recover` found: what is to be stored, and what could not be read."""

    segments: list[Segment]
    damages: list[Damage]


class SessionBuffer:
    """Append-only files, one folder per (agent, session). Any number of threads and processes may share one folder.

    What an append that returned survives: any crash of any process, always. A power cut: with ``fsync="always"`` too;
    with ``"interval"`` unless it was in the last second before the cut, or before its writer was killed; with
    ``"off"`` when the system had written it by itself (commonly within half a minute).

    Args:
        folder: default: ``buffer`` under ``NEXUS_HOME``.
        fsync: default: ``NEXUS_BUFFER_FSYNC``, else ``interval``.
        max_bytes: default: ``NEXUS_BUFFER_MAX_BYTES``, else 1 GiB; beyond it appends fail, nothing is dropped.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, fsync: Fsync | None = None, max_bytes: int | None = None
    ) -> None:
        self.folder = os.fspath(folder) if folder is not None else default_folder()
        self.fsync = _policy(fsync or os.environ.get("NEXUS_BUFFER_FSYNC") or "interval")
        self.max_bytes = max_bytes or int(os.environ.get("NEXUS_BUFFER_MAX_BYTES") or MAX_BYTES)
        self._sessions = Sessions(self.folder, self.fsync, INTERVAL)
        self._room = 0  # bytes that may be written before measuring again

    # --- writing ------------------------------------------------------------------------------------------------------
    def start(self, agent: str, session: str) -> None:
        """Make the session's folder, so that appending finds out early whether it can. Starting twice is harmless.

        Raises:
            BufferError: the folder cannot be written.
        """
        with self._explained():
            self._sessions.made(agent, session)

    def append(self, agent: str, session: str, payload: Any, context_type: str = "message") -> int:
        """Write one entry and return its ``entry_seq``: the line is in the file, synced as the policy says.

        Args:
            payload: anything JSON has a form for; of a ``message`` the fields of :class:`nexus_tasks.Message`, or text.
            context_type: how whoever stores it is to read the payload.

        Raises:
            BufferError: it is not kept: the disk or the buffer is full, the folder is read-only, or it is no JSON.
        """
        try:
            kind, body = entry.as_json(context_type), entry.as_json(payload)
        except (TypeError, ValueError, RecursionError) as error:
            raise BufferError(f"The payload is no JSON: {error}.", remedy="Append what json.dumps takes.") from None
        with self._explained():
            self._make_room(len(body))
            while True:
                try:
                    seq, length = self._sessions.made(agent, session).append(kind, body)
                except Gone:
                    self._sessions.let_go(agent, session)
                else:
                    self._room -= length
                    return seq

    def _make_room(self, length: int) -> None:
        if self._room < length:
            held = measure(self.folder)
            if held + length > self.max_bytes:
                raise BufferError(
                    f"The buffer {self.folder} holds {held:,} bytes and may hold {self.max_bytes:,}.",
                    remedy="Store it with `nexus buffer flush` once Postgres answers, or raise NEXUS_BUFFER_MAX_BYTES.",
                )
            # Others write too: after a part of what is left, measure again.
            self._room = max((self.max_bytes - held) // _SHARE, length)

    # --- storing ------------------------------------------------------------------------------------------------------
    def flush(self, agent: str, session: str) -> list[Segment]:
        """Seal what a session has and return every segment that is not acknowledged, oldest first, synced to disk.

        Raises:
            BufferError: the folder cannot be written or read.
        """
        with self._explained():
            found = self._sessions.find(agent, session)
            try:
                return found.flush()[0] if found else []
            except Gone:
                return []

    def flush_all(self) -> list[Segment]:
        """Flush every session.

        Raises:
            BufferError: the folder cannot be written or read.
        """
        return self.recover().segments

    def recover(self) -> Recovery:
        """Flush every session, also those of processes that have died, and report what could not be read.

        A torn last line is cut, a corrupt line among others is left out; both are kept in ``quarantine`` with their
        position. Recovering again returns the same segments until they are acknowledged.

        Raises:
            BufferError: the folder cannot be written or read.
        """
        found = Recovery([], [])
        with self._explained():
            for one in self._sessions.every():
                with suppress(Gone):
                    segments, damages = one.flush()
                    found.segments.extend(segments)
                    found.damages.extend(damages)
                    if not segments and one.clear(idle_for=_IDLE_SECONDS):
                        self._sessions.let_go(one.agent, one.session)
        return found

    def acknowledge(self, segments: Iterable[Segment]) -> int:
        """Delete segments that are stored, as they were read; returns the number of their entries.

        Raises:
            BufferError: a file cannot be deleted.
        """
        entries = 0
        with self._explained():
            for segment in segments:
                with suppress(FileNotFoundError):  # acknowledged already
                    if os.path.getsize(segment.path) == segment.size:
                        os.unlink(segment.path)
                        entries += len(segment.entries)
                        files.touch(os.path.join(os.path.dirname(segment.path), FLUSHED))
        return entries

    def clear(self, agent: str, session: str) -> bool:
        """Delete a session with everything in it, stored or not; returns whether there was one.

        Raises:
            BufferError: the folder cannot be written.
        """
        with self._explained():
            found = self._sessions.find(agent, session)
            with suppress(Gone):
                if found:
                    found.clear()
            self._sessions.let_go(agent, session)
            return found is not None

    def refuse(self, segment: Segment, refused: entry.Entry, reason: str) -> Damage:
        """Keep an entry that can never be stored in quarantine, so that its segment can be acknowledged.

        Raises:
            BufferError: the folder cannot be written.
        """
        with self._explained():
            return self._sessions.refuse(segment, refused, reason)

    @contextmanager
    def storing(self, *, wait: bool = False) -> Iterator[bool]:
        """One at a time stores what lies in a folder: ``True`` for who may. Only saves work, storing is idempotent.

        Args:
            wait: for one's turn, instead of ``False`` while somebody else is at it.
        """
        with self._explained():
            fd = files.open_lock(os.path.join(self.folder, "storing.lock"))
        try:
            yield files.lock(fd, wait=wait)
        finally:
            os.close(fd)

    # --- looking ------------------------------------------------------------------------------------------------------
    def status(self) -> list[dict[str, Any]]:
        """Each session: ``agent``, ``session``, ``started_at``, ``entries``, ``last_flush``, ``bytes``,
        ``oldest_unacknowledged`` (times in seconds since 1970, or ``None``). Changes nothing."""
        with self._explained():
            return [standing(found) for found in self._sessions.every()]

    def list(self) -> list[tuple[str, str]]:
        """The (agent, session) pairs that have a folder here."""
        with self._explained():
            return [(found.agent, found.session) for found in self._sessions.every()]

    def has(self, agent: str, session: str) -> bool:
        """Whether the session has anything that is not acknowledged."""
        with self._explained():
            found = self._sessions.find(agent, session)
            return found is not None and standing(found)["entries"] > 0

    def pending(self) -> bool:
        """Whether anything at all is not acknowledged; reads names and sizes only."""
        with self._explained():
            return pending(self.folder)

    def quarantined(self) -> int:
        """How many files are in quarantine, for a person to look at."""
        with self._explained():
            return quarantined(self.folder)

    def close(self) -> None:
        """Sync what is written and close the files. The buffer can be used again."""
        self._sessions.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise files.explain(error, self.folder) from error


def _policy(name: str) -> Fsync:
    if name not in ("always", "interval", "off"):
        raise BufferError(f"There is no fsync policy {name!r}.", remedy="Use always, interval or off.")
    return cast("Fsync", name)
