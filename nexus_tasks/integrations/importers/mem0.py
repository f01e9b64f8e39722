"""Import the memories of mem0, as ``get_all()`` returns them.

Each memory becomes a message with the memory's id and time. Its author is the first of ``actor_id``, ``user_id`` and
``agent_id``. Its session is ``run_id``, or ``mem0``. A memory with ``expiration_date`` counts as superseded from the
day after that date (UTC). All other fields are kept in the message's ``data``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
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
from nexus_tasks.text import shorten
from nexus_tasks.types import ROLES, Message, Role, check_name

SESSION = "mem0"
_ELSEWHERE = {"id", "memory", "created_at", "run_id", "role", "expiration_date", "score"}  # not in the message's data


def looks_like(source: Source) -> bool:
    """Whether a file begins as an export of mem0 does."""
    return begins_with(source, "memory", "id")


def parse(source: Source, namespace: str, session: str | None) -> list[Conversation]:
    """The memories of a file as messages, the oldest first.

    Raises:
        InvalidInput: a record is not a memory. The error names its place and the fault.
    """
    found = list[tuple[str, str, Message]]()
    for where, record in records(source, "results"):
        try:
            found.append(
                (where, check_name("run_id", session or field(record, "run_id", str) or SESSION), _message(record))
            )
        except InvalidInput as error:
            raise file_error(source.path, where, error.message) from None
    return by_time(source.path, namespace, found)


def _message(record: Mapping[str, Any]) -> Message:
    role = field(record, "role", str)
    rest = {key: value for key, value in record.items() if key not in _ELSEWHERE and value not in (None, {}, [])}
    return Message(
        content=required_field(record, "memory", str),
        role=cast("Role", role if role in ROLES else "user"),
        author=next(filter(None, (field(record, key, str) for key in ("actor_id", "user_id", "agent_id"))), None),
        occurred_at=time_field(record, "created_at"),  # in UTC: its offset is that of mem0's server
        id=required_field(record, "id", str),
        expires_at=_day_after(field(record, "expiration_date", str)),
        data=rest or None,
    )


def _day_after(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.combine(date.fromisoformat(text) + timedelta(days=1), time(), UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f'"expiration_date" {shorten(text, 40)!r} is not a date such as 2026-03-09') from None
