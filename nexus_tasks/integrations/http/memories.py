"""Memories: store messages, list and show memories, correct and erase them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from nexus_tasks import limits
from nexus_tasks.integrations.http.caller import Corrector, Eraser, Reader, Writer
from nexus_tasks.integrations.http.documents import routes, unanswered
from nexus_tasks.integrations.http.pages import MemoryPage, PerspectivePage, next_offset
from nexus_tasks.integrations.http.parameters import (
    AsOf,
    Body,
    Entries,
    Levels,
    Limit,
    MemoryId,
    Namespace,
    Observer,
    Offset,
    OnlySession,
    SessionBody,
    SpaceBody,
    Subject,
    Time,
)
from nexus_tasks.integrations.http.repeats import repeat
from nexus_tasks.types import ForgetReceipt, MemoryDetails, Receipt, Role

router = routes("memories")


class SaidBody(Body):
    """A message of a conversation."""

    content: str = Field(max_length=limits.MESSAGE_CHARACTERS)
    role: Role = "user"
    author: str | None = Field(None, description="Default: the role.")
    occurred_at: Time | None = Field(None, description="Default: the time of storing. Without a zone: UTC.")
    tool_calls: Entries[dict[str, Any]] = Field(default=[])
    time_zone: str | None = Field(None, description="The speaker's, such as Europe/Lisbon.")
    id: str | None = Field(None, description="Your own id of the message. A repeat of it is not stored again.")
    expires_at: Time | None = Field(None, description="From then on the message counts as superseded.")
    erase_expired: bool = Field(False, description="Erase it within an hour after that time.")
    data: dict[str, Any] | None = Field(None, description="Your own JSON, which is stored with the message.")


class IngestBody(SessionBody):
    """Messages of a session."""

    messages: Entries[SaidBody] = Field(max_length=limits.MESSAGES_PER_CALL)
    observers: Entries[str] | None = Field(None, description="Default: the namespace's observers.")
    observe: bool | None = Field(None, description="Whether notes replace the session's old messages in contexts.")
    end: bool = Field(False, description="Also end the session.")
    replace: bool = Field(
        False,
        description="A message with a known id and another text takes that one's place, which is erased. It also needs"
        " the scope erase.",
    )

    def given(self) -> dict[str, Any]:
        """As of any body. The messages are made one by one, so that other threads run in between."""
        rest = self.model_dump(exclude={"namespace", "messages"}, exclude_unset=True)
        return {**rest, "messages": [one.given() for one in self.messages]}


class RememberBody(SpaceBody):
    """A text to remember."""

    text: str = Field(max_length=limits.MESSAGE_CHARACTERS, description="It should be clear without other messages.")
    author: str = "user"
    session_key: str = "notes"
    expires_at: Time | None = None
    erase_expired: bool = False


class ReviseBody(SpaceBody):
    """The correction of a fact."""

    content: str = Field(description="The corrected fact, at most 500 characters.")
    author: str = "user"
    expires_at: Time | None = None
    erase_expired: bool = False


@router.post("/messages")
@unanswered("Send the same messages to the same session again: those that are stored count as duplicates.")
async def ingest(caller: Writer, body: IngestBody) -> Receipt:
    """Store messages of a session. Facts are derived from them in the background."""
    nexus, name = await caller.space(body.namespace)
    if body.replace:
        await caller.check("erase")
    return await nexus.aingest(name, **await asyncio.to_thread(body.given))


@router.post("/memories")
async def remember(caller: Writer, body: RememberBody) -> Receipt:
    """Store one text to remember, as a message."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.aremember(name, **body.given())


@router.get("/memories")
async def list_memories(
    caller: Reader,
    namespace: Namespace = None,
    observer: Observer = None,
    subject: Subject = None,
    session_key: OnlySession = None,
    levels: Levels = None,
    as_of: AsOf = None,
    superseded: Annotated[bool, Query(description="Also list superseded and expired memories.")] = False,
    limit: Limit = 100,
    offset: Offset = 0,
) -> MemoryPage:
    """List memories, newest first."""
    nexus, name = await caller.space(namespace)
    found = await nexus.amemories(
        name,
        observer=observer,
        subject=subject,
        session_key=session_key,
        levels=levels,
        as_of=as_of,
        superseded=superseded,
        limit=limit,
        offset=offset,
    )
    return MemoryPage(namespace=name, memories=tuple(found), next_offset=next_offset(found, limit, offset))


@router.get("/perspectives")
async def list_perspectives(
    caller: Reader, namespace: Namespace = None, limit: Limit = 100, offset: Offset = 0
) -> PerspectivePage:
    """List who holds memories about whom, sorted by observer and subject."""
    nexus, name = await caller.space(namespace)
    found = await nexus.aperspectives(name, limit=limit, offset=offset)
    return PerspectivePage(namespace=name, perspectives=tuple(found), next_offset=next_offset(found, limit, offset))


@router.get("/memories/{memory_id}")
async def show_memory(caller: Reader, memory_id: MemoryId, namespace: Namespace = None) -> MemoryDetails:
    """Show one memory with its sources, and with the memories that it supports or superseded."""
    nexus, name = await caller.space(namespace)
    return await nexus.amemory(name, memory_id)


@router.patch("/memories/{memory_id}")
@repeat("anew")
async def revise(caller: Corrector, memory_id: MemoryId, body: ReviseBody) -> MemoryDetails:
    """Replace a fact or a reflection by a corrected fact. The old one stays readable, and undo reverses it."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.arevise(name, memory_id, **body.given())


@router.delete("/memories/{memory_id}")
async def forget_memory(caller: Eraser, memory_id: MemoryId, namespace: Namespace = None) -> ForgetReceipt:
    """Erase a memory, and what rests on it alone. An erasure cannot be undone."""
    nexus, name = await caller.space(namespace)
    return await nexus.aforget(name, memory_id=memory_id)


@router.post("/memories/{memory_id}/pin")
@repeat("anew")
async def pin(caller: Corrector, memory_id: MemoryId, body: SpaceBody) -> MemoryDetails:
    """Pin a fact or a reflection: it comes first in contexts, and no later message ends it."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.apin(name, memory_id)


@router.post("/memories/{memory_id}/unpin")
@repeat("anew")
async def unpin(caller: Corrector, memory_id: MemoryId, body: SpaceBody) -> MemoryDetails:
    """Take back a pin."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.aunpin(name, memory_id)
