"""Access tokens, and the entries of the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from nexus_tasks.types.document import Document

# What a token may do: read memories; store messages, and with `read` also correct memories; erase memories.
TokenScope = Literal["read", "write", "erase"]
TOKEN_SCOPES: tuple[str, ...] = get_args(TokenScope)


@dataclass(frozen=True, kw_only=True)
class TokenInfo(Document):
    """An access token of a namespace, without its secret."""

    id: str
    namespace: str
    name: str
    scopes: tuple[str, ...]  # of read, write and erase
    created_at: datetime
    expires_at: datetime | None  # by Postgres' clock; None: the token does not expire
    rotated_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None  # the hour of the last use


@dataclass(frozen=True, kw_only=True)
class NewToken(TokenInfo):
    """A token that was created or rotated. Only this value contains the secret; no later call returns it."""

    token: str = field(repr=False)  # the whole token, which a client sends in the header Authorization


@dataclass(frozen=True, kw_only=True)
class AuditEntry(Document):
    """An entry of the audit log. It contains no content and no secret."""

    id: int
    at: datetime
    # correct.pin, correct.replace, correct.revise, correct.unpin, erase.expired, erase.memory, erase.moved,
    # erase.namespace, erase.session, erase.topic, export.begin, export.end, move, token.create, token.rotate,
    # token.revoke, token.use, token.refuse, webhook.create, webhook.resume or webhook.delete
    action: str
    namespace: str | None  # None: a refused request whose token is unknown
    reason: str  # why a token was refused: unknown, revoked, expired, namespace, operator, or a missing scope
    actor: str  # operator, worker or token
    token_id: str  # the token that acted or was refused; for token.create and such the changed token
    token_name: str
    user: str  # the user of the operating system whose process wrote the entry
    host: str  # the host of that process
    counts: Mapping[str, int]  # table → number of rows that were erased, exported or corrected
    count: int  # how often it happened; above 1 only for uses and refusals of tokens, which have one entry per day
