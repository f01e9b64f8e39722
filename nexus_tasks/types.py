"""The values that cross the public surface: messages in, memories and receipts out. All frozen."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from nexus_tasks.errors import InvalidInput

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

ROLES: tuple[str, ...] = get_args(Role)
LEVELS: tuple[str, ...] = get_args(Level)

NAMESPACE = re.compile(r"[A-Za-z0-9_\-:/][A-Za-z0-9._\-:/]{0,127}")
MAX_NAME = 256
MAX_CONTENT = 1_000_000
# What Postgres cannot hold in text (NUL) or what corrupts a terminal or a prompt.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def check_namespace(value: object) -> str:
    """Return ``value`` when it is a namespace name, else raise :class:`InvalidInput`."""
    if not isinstance(value, str) or not NAMESPACE.fullmatch(value):
        raise InvalidInput(
            f"namespace {value!r} is not a name: 1 to 128 of letters, digits, . _ - : / without a leading dot."
        )
    return value


def check_name(field_name: str, value: object) -> str:
    """Return a session key, observer, subject or author as stored; raise :class:`InvalidInput` naming the field."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{field_name} must be a non-empty text, not {value!r}.")
    value = as_stored(value)
    if len(value) > MAX_NAME or not value.isprintable():
        raise InvalidInput(f"{field_name} must be one line of at most {MAX_NAME} printable characters.")
    return value


def as_stored(name: str) -> str:
    """``name`` trimmed and in NFC: however a keyboard composes its accents it is one name, as in a job's scope."""
    return unicodedata.normalize("NFC", name).strip()


def clean_text(value: str) -> str:
    """``value`` without control characters (tabs and line breaks stay) and without lone surrogates."""
    return _CONTROL.sub("", value).encode("utf-8", "replace").decode("utf-8")


def to_utc(value: datetime) -> datetime:
    """A time with a zone, in UTC; a naive one is taken as UTC."""
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn of a conversation, as the producer has it.

    ``id`` is the producer's own idempotency key, unique per (namespace, session). Without one, and without
    ``occurred_at``, the same text by the same author in a later call counts as a repeat and is not stored. ``author``
    defaults to the role, ``occurred_at`` (naive means UTC) to the time of storing.
    """

    content: str
    role: Role = "user"
    author: str | None = None
    occurred_at: datetime | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    id: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            raise InvalidInput(f"content must be text, not {type(self.content).__name__}.")
        object.__setattr__(self, "content", clean_text(self.content))
        if not self.content.strip() and not self.tool_calls:
            raise InvalidInput("content is empty, and there are no tool_calls either.")
        if len(self.content) > MAX_CONTENT:
            raise InvalidInput(f"content has {len(self.content):,} characters; at most {MAX_CONTENT:,} are stored.")
        if self.role not in ROLES:
            raise InvalidInput(f"role must be one of {', '.join(ROLES)}, not {self.role!r}.")
        if self.author is not None:
            object.__setattr__(self, "author", check_name("author", self.author))
        if self.id is not None:
            object.__setattr__(self, "id", check_name("id", self.id))
        if self.occurred_at is not None and not isinstance(self.occurred_at, datetime):
            raise InvalidInput(f"occurred_at must be a datetime, not {self.occurred_at!r}.")
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))


@dataclass(frozen=True, kw_only=True)
class Perspective:
    """Who holds a memory (``observer``), about whom (``subject``)."""

    observer: str
    subject: str


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What :meth:`Nexus.ingest` did. ``buffered``: messages kept in the session buffer while Postgres is away."""

    namespaces: tuple[str, ...]
    session_keys: tuple[str, ...]
    messages: int
    stored: int
    duplicates: int
    enqueued: int
    buffered: int = 0
    derived: int | None = None  # with --wait: how many of the stored messages are derived


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """How a job ended. ``details`` carries what the kind reports, such as ``facts`` for a derivation."""

    status: Status
    job_id: str = ""
    reasons: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Citation:
    """A source of a memory: the edge's role, and the source's ids."""

    id: int
    external_id: str | None
    role: str


@dataclass(frozen=True, kw_only=True)
class Recall:
    """One search hit. ``why`` names the arms that found it and their scores; ``score`` orders, it is no probability."""

    id: int
    external_id: str | None
    level: Level
    content: str
    score: float
    why: Mapping[str, float]
    confidence: float
    occurred_at: datetime
    session_key: str | None
    observer: str | None
    subject: str | None
    evidence: tuple[Citation, ...] = ()


class Recalls(list[Recall]):
    """Search hits, best first; ``missing_embeddings`` counts memories the vector arm could not see yet."""

    missing_embeddings: int = 0


@dataclass(frozen=True, kw_only=True)
class ContextSection:
    """One part of a context block: its name, its estimated tokens and the memories it rests on."""

    name: str
    tokens: int
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ContextBlock:
    """What :meth:`Nexus.context` returns. ``tokens`` never exceeds ``max_tokens``.

    ``counted_by`` says what counted them: ``estimate`` (characters / 4, rounded up), or ``anthropic`` (Claude's own
    count of the text as one message). The sections' tokens are always estimates.

    Only an observed session that is read whole may: when its observation is behind, ``notes`` says so.
    """

    namespace: str
    text: str
    tokens: int
    max_tokens: int
    sections: tuple[ContextSection, ...]
    citations: Mapping[str, Mapping[str, Any]]
    messages: tuple[Mapping[str, Any], ...] = ()  # format="anthropic": what to put before the conversation
    counted_by: str = "estimate"
    notes: tuple[str, ...] = ()  # what the reader should know of the block: what is left out, what is late

    def __str__(self) -> str:
        return self.text
