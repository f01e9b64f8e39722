"""The session buffer: files that keep messages on this machine until they are stored in Postgres.

The messages survive a crash of the agent, of Redis and of Postgres. This package imports only the standard library,
``nexus_tasks.errors`` and small helpers, so that it loads quickly. ``buffer.py`` has the class :class:`SessionBuffer`.
"""

from __future__ import annotations

from nexus_tasks.buffer.buffer import Recovery, SessionBuffer
from nexus_tasks.buffer.entry import Entry
from nexus_tasks.buffer.places import default_folder, default_home, home_of_deployment
from nexus_tasks.buffer.quarantine import Damage
from nexus_tasks.buffer.segment import Segment
from nexus_tasks.errors import BufferError

__all__ = [
    "BufferError",
    "Damage",
    "Entry",
    "Recovery",
    "Segment",
    "SessionBuffer",
    "default_folder",
    "default_home",
    "home_of_deployment",
]
