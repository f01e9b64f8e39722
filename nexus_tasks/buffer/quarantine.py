"""Damaged bytes and refused entries are copied to ``quarantine`` with their position, so that nothing is dropped."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from typing import NamedTuple

from nexus_tasks import files


class Damage(NamedTuple):
    """A part of a segment that is not as it was written, or an entry that cannot be stored."""

    kind: str  # "torn": the file's end, cut off; "corrupt": a line within it; "refused": an entry that cannot be stored
    agent: str
    session: str
    segment: str  # the file's name
    line: int  # counted from 1
    offset: int  # bytes from the file's start
    length: int  # bytes
    reason: str
    kept_as: str  # the file in quarantine that holds the bytes


def set_aside(folder: str, session_folder: str, damage: Damage, raw: bytes) -> Damage:
    """Write ``raw`` and its description to the quarantine ``folder``. A second call for one damage writes nothing."""
    name = f"{session_folder}-{damage.segment.partition('.')[0]}-{damage.line}-{damage.offset}-{damage.kind}.json"
    path = os.path.join(folder, name)
    damage = damage._replace(kept_as=path)
    if not os.path.exists(path):
        files.make_folder(folder)
        document = damage._asdict() | {"raw_base64": b64encode(raw).decode("ascii")}
        files.write_atomic(path, json.dumps(document, indent=2).encode("ascii"), durable=True)
    return damage
