"""Parse the times of imported records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers.conversation import kind_of
from nexus_tasks.text import shorten
from nexus_tasks.types import to_utc

# The years 1973 to 2286, in seconds since 1970. A time of these years in milliseconds is larger than both bounds.
_FIRST, _LAST = 10**8, 10**10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_field(record: Mapping[str, Any], key: str) -> datetime | None:
    """The time ``record[key]`` in UTC; ``None`` when it is null or missing.

    It is an ISO 8601 time, or a number of seconds or milliseconds since 1970. A time without an offset is in UTC.

    Raises:
        InvalidInput: the value is no such time.
    """
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if _FIRST <= value < _LAST:
            return _EPOCH + timedelta(seconds=value)
        if _FIRST * 1000 <= value < _LAST * 1000:
            return _EPOCH + timedelta(milliseconds=value)
        raise InvalidInput(f'"{key}" {value} is neither seconds nor milliseconds since 1970')
    if not isinstance(value, str):
        raise InvalidInput(f'"{key}" must be a time, not {kind_of(value)}')
    try:
        return to_utc(datetime.fromisoformat(value))
    except (ValueError, OverflowError):
        raise InvalidInput(
            f'"{key}" {shorten(value, 40)!r} is not an ISO 8601 time such as 2026-03-09T14:30Z'
        ) from None
