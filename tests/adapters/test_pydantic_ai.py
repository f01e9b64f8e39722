"""Pydantic AI's agent with memory, with a function as its model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nexus_tasks import Nexus
from tests.adapters.frameworks import needs
from tests.integration.inline import work

needs("pydantic_ai")

from pydantic_ai import Agent  # noqa: E402
from pydantic_ai.messages import (  # noqa: E402
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel  # noqa: E402

from nexus_tasks.integrations.pydantic_ai import History, memory_toolset  # noqa: E402

pytestmark = pytest.mark.long

MESSAGES: list[ModelMessage] = [
    ModelRequest(parts=[UserPromptPart("I moved to Lisbon."), UserPromptPart(["and", ImageUrl("https://x/y.png")])]),
    ModelResponse(parts=[ThinkingPart("hm"), TextPart("I look."), ToolCallPart("weather", {"city": "Lisbon"}, "c1")]),
    ModelRequest(parts=[ToolReturnPart("weather", {"sky": "clear"}, "c1")]),
    ModelResponse(parts=[TextPart("It is sunny. 🙂")]),
]


def test_a_history_comes_back_as_it_was_given(nexus: Nexus) -> None:
    async def talk() -> None:
        history = History(nexus, "acme", "chat", author="ann")
        assert await history.load() == []
        await history.save([])
        await history.save(MESSAGES[:1])
        await history.save(MESSAGES[1:])
        nexus.ingest("acme", "chat", [{"content": "of somebody else", "data": {"x": 1}}])
        loaded = await history.load()
        dump = ModelMessagesTypeAdapter.dump_json
        assert loaded == MESSAGES
        assert dump(loaded) == dump(MESSAGES)

    asyncio.run(talk())
    said = nexus.session("acme", "chat").said
    assert [(one.role, one.author, one.content) for one in said[:4]] == [
        ("user", "ann", "I moved to Lisbon.\nand"),
        ("assistant", "assistant", "I look."),
        ("tool", "tool", "{'sky': 'clear'}"),
        ("assistant", "assistant", "It is sunny. 🙂"),
    ]
    assert said[1].tool_calls == ({"id": "c1", "name": "weather", "arguments": {"city": "Lisbon"}},)


def test_an_agent_remembers_and_recalls_in_another_conversation(nexus: Nexus) -> None:
    def model(messages: list[ModelMessage], _: Any) -> ModelResponse:
        part: Any = messages[-1].parts[-1]
        if isinstance(part, UserPromptPart):
            tool = (
                ("recall", {"query": part.content})
                if "?" in str(part.content)
                else ("remember", {"text": part.content})
            )
            return ModelResponse(parts=[ToolCallPart(*tool)])
        return ModelResponse(parts=[TextPart(f"{len(messages)} messages: {part.content}")])

    agent = Agent(FunctionModel(model), toolsets=[memory_toolset(nexus, "acme", author="ann")])

    async def talk() -> None:
        assert (await agent.run("Anything known?")).output == "3 messages: []"
        history = History(nexus, "acme", "chat-1", author="ann")
        for text, told in (("I live in Porto.", "3 messages: It is"), ("I drink green tea.", "7 messages: It is")):
            result = await agent.run(text, message_history=await history.load())
            assert result.output.startswith(told)
            await history.save(result.new_messages())
        work()
        assert "Porto" in (await agent.run("Where do I live?")).output

    asyncio.run(talk())
