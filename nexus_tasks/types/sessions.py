"""Sessions (conversations): their figures, their messages and their digests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from nexus_tasks.types.document import Document
from nexus_tasks.types.names import Role


@dataclass(frozen=True, kw_only=True)
class SessionInfo(Document):
    """A session's figures."""

    session_key: str
    messages: int  # stored; also the number of the last message
    digested_through: int  # the digests cover the messages 1 to this number; 0 without a digest
    underived: int  # wanted derivations, one for each pair of message and observer
    open: bool  # False after the session was ended; a new message opens it again
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class SaidMessage(Document):
    """A stored message of a session."""

    id: int  # its memory's id, cited as [m<id>]
    external_id: str | None  # the producer's own id
    seq: int  # its number in the session, from 1
    author: str
    role: Role
    occurred_at: datetime
    content: str


@dataclass(frozen=True, kw_only=True)
class DigestText(Document):
    """A digest of a session."""

    id: int  # its memory's id
    content: str


@dataclass(frozen=True, kw_only=True)
class ObservationStats(Document):
    """The figures of an observed session. All tokens are estimates: characters / 4, rounded up."""

    session_key: str
    generation: int  # how often the log was changed
    observed_through: int  # number of the last message that the log covers
    tail_messages: int  # messages after `observed_through`, without system prompts
    tail_tokens: int
    chunks: int  # observations that are ready and not in the log yet
    buffered_through: int  # number of the last message that the log or a chunk covers
    log_tokens: int
    reflection_ready: bool  # a shorter log is ready
    observing: str  # idle, wanted or dead (its job gave up)
    reflecting: str  # as observing, for the job that shortens the log


@dataclass(frozen=True, kw_only=True)
class SessionDetails(SessionInfo):
    """A session with its digests and messages."""

    digests: Mapping[str, DigestText]  # the current digests: summary_short and summary_long; empty before the first
    said: tuple[SaidMessage, ...]  # oldest first
    observation: ObservationStats | None  # None for a session that was never observed
