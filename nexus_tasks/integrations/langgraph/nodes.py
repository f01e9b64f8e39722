"""Nodes for a LangGraph graph: one recalls before the model answers, one remembers after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import MessagesState

from nexus_tasks.client import Nexus
from nexus_tasks.errors import NotFound
from nexus_tasks.services.erasure import erased_ids
from nexus_tasks.services.transcript_messages import message_of
from nexus_tasks.types import Message, clean_text
from nexus_tasks.types.hidden_characters import strip_hidden

Node = Callable[[Mapping[str, Any], RunnableConfig], dict[str, Any]]


class MemoryState(MessagesState):
    """The state of a graph with memory: ``messages``, and what :func:`recall_node` has recalled."""

    memory: str


def recall_node(nexus: Nexus, namespace: str, *, subject: str | None = None, max_tokens: int = 1_000) -> Node:
    """A node that writes the memories that fit the newest message of the user into the state's ``memory``.

    Args:
        nexus: the client.
        namespace: the namespace.
        subject: only memories about this subject. Default: all.
        max_tokens: the most tokens of memories.

    Example::

        graph = StateGraph(MemoryState)
        graph.add_node("recall", recall_node(nexus, "acme"))
        graph.add_node("answer", answer)  # reads state["memory"]
        graph.add_node("remember", remember_node(nexus, "acme"))
    """

    def recall(state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:  # noqa: ARG001
        asked = next((one for one in reversed(state["messages"]) if isinstance(one, HumanMessage)), None)
        question = _text(asked) if asked else ""
        if not question:
            return {"memory": ""}
        try:
            found = nexus.context(namespace, query=question[-2_000:], subject=subject, max_tokens=max_tokens)
        except NotFound:  # nothing was said in the namespace yet
            return {"memory": ""}
        return {"memory": strip_hidden(str(found))}

    return recall


def remember_node(nexus: Nexus, namespace: str, *, author: str | None = None) -> Node:
    """A node that stores the messages of the state. The session is the graph's thread (``thread_id``).

    A message is stored once, by its id. A message that was edited replaces the stored one. Of a text that is too long,
    the middle is left out. Of a tool call that cannot be stored, for example because of a NUL character, the arguments
    are left out. A message that was erased is not stored again, although the state keeps it.

    Args:
        nexus: the client.
        namespace: the namespace. It is made by the first call.
        author: who speaks as the user. Default: ``user_id`` of the configuration, or ``user``.
    """

    def remember(state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
        named = config.get("configurable", {})
        user = named.get("user_id")  # may be a number
        said = list(_messages(state["messages"], author or (None if user in (None, "") else str(user))))
        # The state keeps a message that was erased, and gives it again at each turn of the thread.
        thread = str(named.get("thread_id", "langgraph"))
        cells, ids = nexus.cells, [one.id for one in said]
        if cells is None:
            gone = erased_ids(nexus.deployment, namespace, thread, ids)
        else:
            gone = cells.route(
                namespace, lambda cell: erased_ids(cells.deployments[cell], namespace, thread, ids), writing=False
            )
        kept = [one for one in said if one.id not in gone]
        nexus.ingest(namespace, thread, kept, replace=True)
        return {}

    return remember


def _messages(messages: Sequence[BaseMessage], author: str | None) -> Iterable[Message]:
    for message in messages:
        text = _text(message)
        said: dict[str, Any] = {"author": message.name, "content": text, "id": message.id}
        if isinstance(message, HumanMessage) and text:
            yield message_of({**said, "role": "user", "author": message.name or author})
        elif isinstance(message, AIMessage) and (text or message.tool_calls):
            yield message_of({**said, "role": "assistant", "tool_calls": [{**call} for call in message.tool_calls]})
        elif isinstance(message, ToolMessage) and text:
            yield message_of({**said, "role": "tool"})


def _text(message: BaseMessage) -> str:
    return clean_text(message.text).strip()
