"""Copying damaged bytes and refused entries to the folder ``quarantine``, so that no written byte is lost."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from nexus_tasks import files
from nexus_tasks.buffer import entry


class Damage(NamedTuple):
    """A damaged part of a segment, or an entry that can never be stored."""

    # "torn": the file's last line is incomplete. "corrupt": a line before the end is damaged. "refused": the entry is
    # whole and can never be stored. "unreadable": another user has made the session's folder, which stays where it is.
    kind: str
    agent: str
    session: str
    segment: str  # the name of the segment's file
    line: int  # the line's number, counted from 1; for a refused entry its ``entry_seq``
    offset: int  # bytes from the start of the segment's file
    length: int  # bytes
    reason: str
    kept_as: str  # the path of the file in quarantine that holds the bytes, or of the folder that cannot be read


def make_quarantine(folder: str) -> None:
    """Make the folder of the quarantine. A folder that root makes gets the owner of its parent, whose buffer it is."""
    if os.path.isdir(folder):
        return
    files.make_folder(folder)
    if not os.geteuid():
        with suppress(OSError):  # some file systems have no owners
            owner = os.stat(os.path.dirname(folder))
            os.chown(folder, owner.st_uid, owner.st_gid, follow_symlinks=False)


def set_aside(folder: str, session_folder: str, damage: Damage, raw: bytes) -> Damage:
    """Write the bytes ``raw`` and their ``damage`` to a file in the quarantine ``folder``.

    A second call for the same damage writes nothing. Returns the damage with the path of the file.
    """
    # The name has a checksum of the bytes, because a session's folder that was deleted and made again counts its
    # entries from 1 again. The earlier file of the same position then stays beside the new one.
    segment = damage.segment.partition(".")[0]
    position = f"{damage.line}-{damage.offset}.{crc32(raw):08x}"
    name = f"{session_folder}-{segment}-{position}-{damage.kind}.json"
    path = os.path.join(folder, name)
    damage = damage._replace(kept_as=path)
    if not os.path.exists(path):
        make_quarantine(folder)
        document = damage._asdict() | {"raw_base64": b64encode(raw).decode("ascii")}
        files.write_atomic(path, json.dumps(document, indent=2).encode("ascii"), durable=True, owner_of_folder=True)
    return damage


def every(folder: str) -> list[Damage]:
    """What the quarantine ``folder`` holds, in the order of the names of its files. Unreadable files are left out."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except FileNotFoundError:
        return []
    found = (_read(os.path.join(folder, name)) for name in names)
    return [one[0] for one in found if one is not None]


def entry_of(path: str) -> entry.Entry | None:
    """The entry in a file of the quarantine. ``None`` for a torn or corrupt line, which is no entry any more."""
    found = _read(path)
    if found is None or found[0].kind != "refused":
        return None
    try:
        return entry.Entry(*json.loads(found[1]))
    except (ValueError, TypeError):
        return None


def session_folder_of(damage: Damage) -> str:
    """The name of the session's folder from which a refused entry came. It says which deployment stores the entry."""
    # The name of the file: the folder's name, the first and last entry_seq of the segment, line, offset with a
    # checksum, and kind.
    return "-".join(os.path.basename(damage.kept_as).split("-")[:-5])


def _read(path: str) -> tuple[Damage, bytes] | None:
    try:
        with open(path, "rb") as file:
            document = json.load(file)
        raw = b64decode(document.pop("raw_base64"))
        return Damage(**document | {"kept_as": path}), raw
    except (OSError, ValueError, KeyError, TypeError):
        return None
