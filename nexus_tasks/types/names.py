"""The fixed words of the API (roles, levels, statuses), and the checks of names and texts from callers."""

from __future__ import annotations

import re
from collections.abc import Sized
from datetime import UTC, datetime
from typing import Literal, get_args

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput
from nexus_tasks.types.unicode_form import nfc

Role = Literal["user", "assistant", "system", "tool"]
Level = Literal["raw", "explicit", "derived", "contradiction", "summary_short", "summary_long"]
Urgency = Literal["live", "dream"]
Status = Literal[
    "completed",
    "skipped",
    "unchanged",
    "empty",
    "gone",
    "already_derived",
    "superseded",
    "needs_review",
    "dead",
    "dropped",
]

# Whose words a memory rests on, from the most to the least trusted: a person's about themselves, another person's, an
# assistant's, a tool's output, and text that nobody in the conversation said.
Standing = Literal["self", "other", "assistant", "tool", "import"]

ROLES: tuple[str, ...] = get_args(Role)
STANDINGS: tuple[Standing, ...] = get_args(Standing)
LEVELS: tuple[str, ...] = get_args(Level)

NAMESPACE = re.compile(r"[A-Za-z0-9_\-:/][A-Za-z0-9._\-:/]{0,127}")
MAX_NAME = limits.NAME_CHARACTERS
# Control characters. Postgres cannot store a NUL in text. The other control characters corrupt a terminal or a prompt.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def check_namespace(value: object) -> str:
    """Check that ``value`` is a namespace name, and return it.

    Raises:
        InvalidInput: ``value`` is not a namespace name.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"namespace must be text, not {type(value).__name__}.")
    if not NAMESPACE.fullmatch(value):
        raise InvalidInput(
            f"namespace {value!r:.200} is not a name: 1 to 128 of letters, digits, . _ - : / without a leading dot."
        )
    return value


def check_name(field_name: str, value: object) -> str:
    """Return a session key, observer, subject or author in the form in which it is stored.

    Raises:
        InvalidInput: ``value`` is empty, longer than 256 characters or not printable. The message names the field.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{field_name} must be a non-empty text, not {type(value).__name__}.")
    if not value.strip():
        raise InvalidInput(f"{field_name} must be a non-empty text.")
    value = as_stored(value)
    if len(value) > MAX_NAME or not value.isprintable():
        raise InvalidInput(f"{field_name} must be one line of at most {MAX_NAME} printable characters.")
    return value


def check_count(field_name: str, values: Sized, most: int) -> None:
    """Check that ``values`` has at most ``most`` entries.

    Raises:
        InvalidInput: it has more. The message names the field.
    """
    if len(values) > most:
        raise InvalidInput(
            f"{field_name} has {len(values):,} entries; at most {most:,} are allowed.",
            remedy="Make several calls with fewer each.",
        )


def as_stored(name: str) -> str:
    """Trim ``name`` and convert it to Unicode NFC. An accented letter then has one spelling, however it was typed."""
    return nfc(name).strip()


def clean_text(value: str) -> str:
    """Remove control characters from ``value``, and replace lone surrogates by ``?``. Tabs and line breaks stay."""
    return _CONTROL.sub("", value).encode("utf-8", "replace").decode("utf-8")


def standing_rank(standing: Standing) -> int:
    """The number by which standings are stored and compared: 5 for ``self`` down to 1 for ``import``."""
    return len(STANDINGS) - STANDINGS.index(standing)


def standing_named(rank: int | None) -> Standing | None:
    """The standing that :func:`standing_rank` gives this number, or ``None`` when it is unknown."""
    return None if rank is None else STANDINGS[len(STANDINGS) - rank]


def check_standing(field_name: str, value: object) -> int:
    """The rank of the standing ``value``.

    Raises:
        InvalidInput: ``value`` is no standing.
    """
    if value not in STANDINGS:
        raise InvalidInput(f"{field_name} must be one of {', '.join(STANDINGS)}, not {value!r:.80}.")
    return standing_rank(value)


def check_time(field_name: str, value: object) -> datetime:
    """Return ``value`` in UTC.

    Raises:
        InvalidInput: ``value`` is no time, or is not in the years 1 to 9999 in UTC. The message names the field.
    """
    if not isinstance(value, datetime):
        raise InvalidInput(f"{field_name} must be a datetime, not {type(value).__name__}.")
    try:
        return to_utc(value)
    except OverflowError:
        raise InvalidInput(f"{field_name} must be in the years 1 to 9999, in UTC.") from None
    except ValueError:  # the time zone's offset from UTC is a day or more
        raise InvalidInput(f"{field_name} has a time zone without a valid offset from UTC.") from None


def to_utc(value: datetime) -> datetime:
    """The time ``value`` in UTC. A naive time means UTC."""
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
