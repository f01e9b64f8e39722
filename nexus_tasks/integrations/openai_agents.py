"""A ``Session`` of OpenAI's Agents SDK on a session of nexus-tasks. Extra: ``nexus-tasks[openai-agents]``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from nexus_tasks.client import Nexus
from nexus_tasks.errors import NotFound
from nexus_tasks.integrations.extras import extra
from nexus_tasks.integrations.storable import storable
from nexus_tasks.types import MAX_CONTENT, Message, SaidMessage, json_size

with extra("openai-agents", "agents"):
    from agents.memory import SessionSettings
    from agents.memory.session_settings import resolve_session_limit

if TYPE_CHECKING:
    from agents import TResponseInputItem

_PAGE = 1_000
_ROLES: Mapping[str, Any] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_OUTPUTS = "_output"  # the end of the type of an item that a tool has returned


class NexusSession:
    """The history of one conversation, for ``Runner.run(agent, input, session=…)``.

    Items come back as they were given, in the same order. What people and the agent say in them is remembered: facts
    are derived from it, and searches find it. Secrets in items are replaced, unless the namespace's setting ``scrub``
    is off. NUL characters are left out. An item has at most 1,000,000 characters as JSON.

    Args:
        session_id: the conversation, which is the key of a session.
        nexus: the client.
        namespace: the namespace. It is made by the first item.
        author: who speaks as the user. Default: ``user``.
        session_settings: the SDK's settings, such as how many items it reads.

    Example::

        session = NexusSession("chat-42", Nexus(), "acme", author="ann")
        result = await Runner.run(agent, "I moved to Lisbon.", session=session)
    """

    def __init__(
        self,
        session_id: str,
        nexus: Nexus,
        namespace: str,
        *,
        author: str | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        self.session_id, self.nexus, self.namespace, self.author = session_id, nexus, namespace, author
        self.session_settings = session_settings or SessionSettings()

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The newest ``limit`` items in the order of the conversation, or all items."""
        limit = resolve_session_limit(limit, self.session_settings)
        found: list[TResponseInputItem] = []
        before: int | None = None
        while limit is None or len(found) < limit:
            said, before = await self._page(before, _PAGE)
            found[:0] = [item for one in said if (item := _item(one)) is not None]
            if before is None:
                break
        return found if limit is None else found[max(len(found) - limit, 0) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items."""
        if items:
            said = [_message(storable(item), self.author) for item in items]
            await self.nexus.aingest(self.namespace, self.session_id, said)

    async def pop_item(self) -> TResponseInputItem | None:
        """Erase the newest item, with what was derived from it alone, and return it; ``None`` when there is none."""
        before: int | None = None
        while True:
            said, before = await self._page(before, 10)
            for one in reversed(said):
                if (item := _item(one)) is not None:
                    await self.nexus.aforget(self.namespace, memory_id=one.id)
                    return item
            if before is None:
                return None

    async def clear_session(self) -> None:
        """Erase the conversation, with what was derived from it alone."""
        try:
            await self.nexus.aforget(self.namespace, session_key=self.session_id)
        except NotFound:
            return

    async def _page(self, before: int | None, limit: int) -> tuple[tuple[SaidMessage, ...], int | None]:
        """A page of the newest messages, and where the page before it ends; ``None`` when there is none."""
        try:
            page = await self.nexus.asession(self.namespace, self.session_id, newest=True, before=before, limit=limit)
        except NotFound:
            return (), None
        return page.said, page.next_before


def _message(item: Mapping[str, Any], author: str | None) -> Message:
    """The message that keeps an item: the item itself as data, and what it says as text."""
    kind = str(item.get("type", "message"))
    role = _ROLES.get(str(item.get("role")), "tool" if kind.endswith(_OUTPUTS) else "assistant")
    text = _text(item.get("output" if kind.endswith(_OUTPUTS) else "content"))
    calls = ({"id": item.get("call_id"), "name": item.get("name"), "arguments": item.get("arguments")},)
    kept = Message(
        role=role,
        author=author if role == "user" else None,
        content="",
        tool_calls=calls if kind == "function_call" else (),
        data=item,
        id=f"item:{uuid.uuid4()}",
    )
    if json_size(kept) > MAX_CONTENT:  # the item itself has the call too
        kept = replace(kept, tool_calls=())
    said = text if kind == "message" or kind.endswith(_OUTPUTS) else ""
    return replace(kept, content=said[: max(MAX_CONTENT - json_size(kept), 0)])


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str))


def _item(said: SaidMessage) -> TResponseInputItem | None:
    """The item that a message keeps. What others have said in the session becomes an item, except tools' output."""
    if said.data is not None:
        return cast("TResponseInputItem", dict(said.data))
    if said.role == "tool" or not said.content:
        return None
    return cast("TResponseInputItem", {"role": said.role, "content": said.content})
