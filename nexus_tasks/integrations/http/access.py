"""Tokens of namespaces, and the audit log. Only for the operator."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from nexus_tasks.integrations.http.caller import ChangingOperator, Operator
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import AuditPage, TokenPage, next_offset
from nexus_tasks.integrations.http.parameters import Body, Entries, Limit, Offset, OneOrAll, Time
from nexus_tasks.integrations.http.repeats import repeat
from nexus_tasks.types import NewToken, TokenInfo, TokenScope

router = routes("access")

TokenId = Annotated[str, Path(description="The token's id.")]


class NamedSpaceBody(Body):
    """A namespace, which must be named."""

    namespace: str


class TokenBody(NamedSpaceBody):
    """A token to make."""

    name: str = Field(description="A name for people.")
    scopes: Entries[TokenScope] = Field(default=["read"])
    expires_at: Time | None = Field(None, description="The end of its validity. Default: it has no end.")


class RotateBody(NamedSpaceBody):
    """How a token is rotated."""

    grace: float = Field(0.0, description="Seconds for which the old secret stays valid, at most 30 days.")


@router.get("/tokens")
async def list_tokens(caller: Operator, namespace: str, limit: Limit = 100, offset: Offset = 0) -> TokenPage:
    """List the tokens of a namespace without their secrets, newest first."""
    nexus, name = await caller.space(namespace)
    found = await nexus.atokens(name, limit=limit, offset=offset)
    return TokenPage(tokens=tuple(found), next_offset=next_offset(found, limit, offset))


@router.post("/tokens", status_code=201)
@repeat("refused")
async def create_token(caller: ChangingOperator, body: TokenBody) -> NewToken:
    """Make a token for one namespace. Only this answer contains its secret."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.acreate_token(name, **body.given())


@router.post("/tokens/{token_id}/rotate")
@repeat("refused")
async def rotate_token(caller: ChangingOperator, token_id: TokenId, body: RotateBody) -> NewToken:
    """Give a token a new secret. Its id, name, scopes and end stay."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.arotate_token(name, token_id, **body.given())


@router.post("/tokens/{token_id}/revoke")
async def revoke_token(caller: ChangingOperator, token_id: TokenId, body: NamedSpaceBody) -> TokenInfo:
    """Refuse a token from now on. This cannot be undone."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.arevoke_token(name, token_id)


@router.get("/audit")
async def audit(
    caller: Operator,
    namespace: OneOrAll = None,
    action: Annotated[str | None, Query(description="Such as erase.session, or erase for all erasures.")] = None,
    since: Time | None = None,
    until: Time | None = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> AuditPage:
    """Read the audit log, newest first: erasures, exports, corrections, and changes and uses of tokens."""
    nexus, name = await caller.one_or_all(namespace)
    found = await nexus.aaudit(name, action=action, since=since, until=until, limit=limit, offset=offset)
    return AuditPage(entries=tuple(found), next_offset=next_offset(found, limit, offset))
