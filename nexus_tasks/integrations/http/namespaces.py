"""Namespaces: list, make, show and change them, and erase what they hold."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.http.caller import ChangingOperator, Eraser, Overseer, Reader
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import AccessInfo, NamespacePage, next_offset
from nexus_tasks.integrations.http.parameters import Body, Entries, Limit, Namespace, Offset
from nexus_tasks.types import ForgetReceipt, NamespaceDetails, NamespaceInfo

router = routes("namespaces")


class NamespaceBody(Body):
    """A namespace and settings of it."""

    namespace: str = Field(description="1 to 128 letters, digits and . _ - : /, without a dot in front.")
    observers: Entries[str] | None = Field(None, description="Each observer gets facts of its own from later messages.")
    budget_usd_per_day: float | None = Field(None, description="US dollars per day (UTC).")
    concurrency: int | None = Field(None, description="The largest number of jobs that run at a time.")
    observe: bool | None = Field(None, description="Whether notes replace old messages of long conversations.")
    scrub: bool | None = Field(None, description="Whether secrets in messages are replaced before they are stored.")
    time_zone: str | None = Field(None, description="Of speakers whose messages name none, such as Europe/Lisbon.")
    language: str | None = Field(None, description="Of all texts, such as german. Default: guessed for each text.")
    instructions: str | None = Field(None, description="What models should keep, and what they should leave out.")
    unset: Entries[Literal["budget_usd_per_day", "concurrency", "language"]] = Field(
        default=[], description="Settings to reset."
    )


@router.get("/access")
async def show_access(caller: Reader) -> AccessInfo:
    """Show what the token of this request may do."""
    access = caller.access
    return AccessInfo(namespace=access.namespace, scopes=access.scopes, operator=access.operator)


@router.get("/namespaces")
async def list_namespaces(caller: Overseer, limit: Limit = 100, offset: Offset = 0) -> NamespacePage:
    """List namespaces with their settings, sorted by name. Only for the operator."""
    nexus, _ = await caller.one_or_all(None)
    found = await nexus.anamespaces(limit=limit, offset=offset)
    return NamespacePage(namespaces=tuple(found), next_offset=next_offset(found, limit, offset))


@router.post("/namespaces")
async def create_namespace(caller: ChangingOperator, body: NamespaceBody) -> NamespaceInfo:
    """Make a namespace if it does not exist, and change the given settings. Only for the operator."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.acreate_namespace(name, **body.given())


@router.get("/namespace")
async def show_namespace(caller: Reader, namespace: Namespace = None) -> NamespaceDetails:
    """Show one namespace with its settings and the number of its memories at each level."""
    nexus, name = await caller.space(namespace)
    return await nexus.anamespace(name)


@router.patch("/namespace")
async def set_namespace(caller: ChangingOperator, body: NamespaceBody) -> NamespaceInfo:
    """Change the given settings of a namespace. Only for the operator."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.aset_namespace(name, **body.given())


@router.delete("/namespace")
async def forget_everything(
    caller: Eraser,
    confirm: Annotated[str, Query(description="The namespace's name once more.")],
    namespace: Namespace = None,
) -> ForgetReceipt:
    """Erase all memories of a namespace. Its settings and the record of its costs stay. This cannot be undone."""
    nexus, name = await caller.space(namespace)
    if confirm != name:
        raise InvalidInput(
            "confirm is not the name of the namespace.", remedy="Repeat the name in confirm; nothing was erased."
        )
    return await nexus.aforget(name, everything=True)
