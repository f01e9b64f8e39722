"""Import the messages of a workspace of Honcho, as its API and its SDK list them.

Each message keeps its id, session, time and metadata. Its author is the peer. Peers have no role: a message has the
role ``user``, unless its peer is named like another role, or its metadata has a ``role``. Honcho's conclusions are not
imported, because facts are derived from the messages anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers.conversation import (
    Conversation,
    by_time,
    field,
    file_error,
    required_field,
)
from nexus_tasks.integrations.importers.records import begins_with, records
from nexus_tasks.integrations.importers.source import Source
from nexus_tasks.integrations.importers.times import time_field
from nexus_tasks.types import ROLES, Message, Role, check_name


def looks_like(source: Source) -> bool:
    """Whether a file begins as an export of Honcho does."""
    return begins_with(source, "peer_id", "content")


def parse(source: Source, namespace: str, session: str | None) -> list[Conversation]:
    """The conversations of a file, each in the order of its messages' times.

    Raises:
        InvalidInput: a record is not a message, or the file has messages of two workspaces. The error names the place.
    """
    found = list[tuple[str, str, Message]]()
    workspace: str | None = None
    for where, record in records(source, "items"):
        try:
            if "observed_id" in record:
                raise InvalidInput("this is a conclusion; export messages, because facts are derived from them anew")
            own = field(record, "workspace_id", str)
            if own is not None and own != (workspace := workspace or own):
                raise InvalidInput(f"the file has the workspaces {workspace} and {own}; import each into a namespace")
            key = session or required_field(record, "session_id", str)
            found.append((where, check_name("session_id", key), _message(record)))
        except InvalidInput as error:
            raise file_error(source.path, where, error.message) from None
    return by_time(source.path, namespace, found)


def _message(record: Mapping[str, Any]) -> Message:
    peer, metadata = required_field(record, "peer_id", str), field(record, "metadata", dict) or {}
    role = next((one for one in (metadata.get("role"), peer) if one in ROLES), "user")
    required_field(record, "created_at", str)
    return Message(
        content=required_field(record, "content", str),
        role=cast("Role", role),
        author=peer,
        occurred_at=time_field(record, "created_at"),
        id=required_field(record, "id", str),
        data=metadata or None,
    )
