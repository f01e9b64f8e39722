"""Who calls: the dependency of every route. It checks the scopes of the token, and gives a client for its namespace."""

from __future__ import annotations

import asyncio
from typing import Annotated, NamedTuple

from fastapi import Depends, Request

from nexus_tasks.client import Nexus
from nexus_tasks.errors import InvalidInput, NotAllowed
from nexus_tasks.integrations.serving.access import Access, current
from nexus_tasks.types import TOKEN_SCOPES


class Space(NamedTuple):
    """A namespace, and a client that may use no other one."""

    nexus: Nexus
    name: str


class Caller:
    """The caller of a request, whose scopes have been checked."""

    def __init__(self, nexus: Nexus, access: Access) -> None:
        self._nexus, self._access = nexus, access

    @property
    def access(self) -> Access:
        """What the token may do."""
        return self._access

    @property
    def identity(self) -> str:
        """A name of the token, which no other token has."""
        return self._access.actor.token_id if self._access.actor else "operator"

    async def check(self, scope: str) -> None:
        """Check that the token has a scope, which only some requests to the route need.

        Raises:
            NotAllowed: the scope is missing.
        """
        if not self._access.has(scope):
            await asyncio.to_thread(self._access.check, scope)  # counts the refusal in the audit log, and raises

    async def space(self, named: str | None) -> Space:
        """The namespace of the request. A token of a namespace may leave it out.

        Raises:
            InvalidInput: no namespace is named, or the name is wrong.
            NotAllowed: the token is for another namespace.
        """
        nexus, name = await self.one_or_all(named)
        if name is None:
            raise InvalidInput("namespace is missing.", remedy="Name the namespace, or use a token of a namespace.")
        return Space(nexus, name)

    async def one_or_all(self, named: str | None) -> tuple[Nexus, str | None]:
        """A client, and the namespace of the request; ``None`` when the operator means all namespaces.

        Raises:
            InvalidInput: the name is wrong.
            NotAllowed: the token is for another namespace.
        """
        own = self._access.namespace
        if own is not None and named not in (None, own):
            await asyncio.to_thread(self._access.refused, "namespace")
            raise NotAllowed(
                f"This token gives access to the namespace {own} only.",
                remedy="Leave namespace out, or ask the operator for a token of the other namespace.",
            )
        name = own if named is None else named
        if name is None:
            return self._nexus, None
        nexus = self._nexus
        if nexus.cells is not None:
            return Nexus(cells=nexus.cells, namespaces=(name,)), name
        return Nexus(nexus.deployment, namespaces=(name,)), name


class Needs:
    """The dependency that gives the caller when the token has ``scopes``, or is the operator's own.

    Args:
        scopes: what the token must be allowed to do. Default, for the operator: everything.
        operator: whether only the operator's own token will do.
    """

    def __init__(self, *scopes: str, operator: bool = False) -> None:
        self.scopes, self.operator = scopes or TOKEN_SCOPES, operator

    async def __call__(self, request: Request) -> Caller:
        """Check the token of the request.

        Raises:
            NotAllowed: the token may not do this.
        """
        access = current.get()
        if access is None:
            raise NotAllowed("This call has no token.")
        if not access.has(*self.scopes):
            await asyncio.to_thread(access.check, *self.scopes)  # counts the refusal in the audit log, and raises
        if self.operator and not access.operator:
            await asyncio.to_thread(access.refused, "operator")
            raise NotAllowed(
                "This concerns all namespaces or their access, and only the operator's own token may do it.",
                remedy="Use NEXUS_HTTP_TOKEN, or let the operator do it.",
            )
        return Caller(request.app.state.nexus, access)


Reader = Annotated[Caller, Depends(Needs("read"))]
Writer = Annotated[Caller, Depends(Needs("write"))]
Corrector = Annotated[Caller, Depends(Needs("read", "write"))]
Eraser = Annotated[Caller, Depends(Needs("erase"))]
Overseer = Annotated[Caller, Depends(Needs("read", operator=True))]
# A page of `nexus browse` that may only read has the operator's token too, with the scope `read` alone.
Operator = Annotated[Caller, Depends(Needs("read", operator=True))]
ChangingOperator = Annotated[Caller, Depends(Needs("read", "write", operator=True))]
