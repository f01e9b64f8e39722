"""What could not be read is set aside, with its position: nothing is dropped without a trace."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from typing import NamedTuple

from nexus_tasks.buffer import files


class Damage(NamedTuple):
    """A stretch of a segment that is not as it was written."""

    kind: str  # "torn": the end of the file, cut; "corrupt": a line among others; "refused": it cannot be stored
    agent: str
    session: str
    segment: str  # the file's name
    line: int  # counted from 1
    offset: int  # bytes from the file's start
    length: int  # bytes
    reason: str
    kept_as: str  # the file in quarantine that holds the bytes


def set_aside(folder: str, session_folder: str, damage: Damage, raw: bytes) -> Damage:
    """Keep ``raw`` in quarantine beside what is known of it; doing so twice keeps it once."""
    name = f"{session_folder}-{damage.segment.partition('.')[0]}-{damage.line}-{damage.offset}-{damage.kind}.json"
    path = os.path.join(folder, name)
    damage = damage._replace(kept_as=path)
    if not os.path.exists(path):
        files.make_folder(folder)
        document = damage._asdict() | {"raw_base64": b64encode(raw).decode("ascii")}
        files.write_whole(path, json.dumps(document, indent=2).encode("ascii"))
    return damage
