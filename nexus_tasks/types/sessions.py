"""Sessions (conversations): their figures, their messages and their digests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nexus_tasks.types.document import Document
from nexus_tasks.types.names import Role


@dataclass(frozen=True, kw_only=True)
class SessionInfo(Document):
    """A session's figures."""

    session_key: str
    messages: int  # the `seq` of the last message; it does not fall when messages are erased
    digested_through: int  # the digests cover the messages 1 to this number; 0 before the first digest
    underived: int  # number of (message, observer) pairs whose derivation is still to be done
    open: bool  # False for an ended session; a new message opens the session again
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class SaidMessage(Document):
    """A stored message of a session."""

    id: int  # the memory id of the message; a citation has the form [m<id>]
    external_id: str | None  # the producer's own id of the message
    seq: int  # the message's number in the session, from 1
    author: str
    role: Role
    occurred_at: datetime
    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()  # as in `Message`
    data: Mapping[str, Any] | None = None  # as in `Message`


@dataclass(frozen=True, kw_only=True)
class DigestText(Document):
    """A digest of a session."""

    id: int  # the memory id of the digest
    content: str


@dataclass(frozen=True, kw_only=True)
class ObservationStats(Document):
    """The figures of an observed session: notes in its observation log replace its old messages in a context block.

    Token numbers are estimates: characters / 4, rounded up.
    """

    session_key: str
    generation: int  # how often the observation log has changed
    observed_through: int  # number of the last message that the log covers
    tail_messages: int  # messages after `observed_through`, without system prompts
    tail_tokens: int
    chunks: int  # number of finished notes that are not in the log yet
    buffered_through: int  # number of the last message that the log or a chunk covers
    log_tokens: int
    reflection_ready: bool  # whether a shorter log is ready to replace the log
    observing: str  # the state of the job that writes notes: idle, wanted or dead (the job gave up)
    reflecting: str  # the state of the job that shortens the log: idle, wanted or dead


@dataclass(frozen=True, kw_only=True)
class EarlierLog(Document):
    """The text of an observation log before it was condensed."""

    generation: int  # the generation of the log that replaced this text
    replaced_at: datetime
    tokens: int


@dataclass(frozen=True, kw_only=True)
class ObservationText(Document):
    """The observation log of a session, or an earlier text of the log. Each note cites its messages."""

    session_key: str
    generation: int
    text: str
    observed_through: int  # number of the last message that the text covers
    current_task: str  # of the present log, also with an earlier text; empty when it is not known
    current_task_at: datetime | None  # the time of the messages from which the task is known
    suggested_response: str
    suggested_response_at: datetime | None
    earlier: tuple[EarlierLog, ...]  # what condensations of the last seven days have replaced, the newest first


@dataclass(frozen=True, kw_only=True)
class SessionDetails(SessionInfo):
    """A session with its digests and a page of its messages."""

    digests: Mapping[str, DigestText]  # the current summary_short and summary_long; empty before the first digest
    said: tuple[SaidMessage, ...]  # a page of the session's messages, oldest first
    next_after: int | None  # the `after` of the next page; None when no message follows the page
    observation: ObservationStats | None  # None for a session that was never observed
    # The `before` of the page of `newest` messages before this one; None when no message precedes it.
    next_before: int | None = None
