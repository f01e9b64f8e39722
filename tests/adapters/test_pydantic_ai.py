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
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SpeechPart,
    TextContent,
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


def test_a_thought_keeps_its_signature_and_a_call_its_id(nexus: Nexus) -> None:
    """Providers refuse a history in which one of them has changed."""
    signature = (
        "EqoBCkgIARABGAIiQL2UoU0b1OHYi+yCHpBY7U6FQW8/FcoLewocJQPa2HnmLM+NECy50y44F/kD4SULFXi57buI9fAvyBwtyjlOiO0="
    )
    call = "tooluse_kZJMlvQmRJ6eAyJE5GIl7Q"
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("weather?")]),
        ModelResponse(
            parts=[
                ThinkingPart("hm", signature=signature, provider_name="bedrock"),
                ThinkingPart("", id="redacted_thinking", signature=signature, provider_name="anthropic"),
                TextPart("I look.", provider_name="google", provider_details={"thought_signature": signature}),
                ToolCallPart("weather", {"city": "Lisbon"}, call),
            ]
        ),
        ModelRequest(parts=[ToolReturnPart("weather", "Sunny.", call)]),
    ]

    async def talk() -> None:
        history = History(nexus, "acme", "chat")
        await history.save(messages)
        assert await history.load() == messages

    asyncio.run(talk())


def test_an_attachment_with_a_secret_does_not_cost_the_history(nexus: Nexus) -> None:
    file = BinaryContent(b"user: ann\npassword: swordfish-9-and-more\n", media_type="text/plain")

    async def talk() -> None:
        history = History(nexus, "acme", "chat")
        await history.save([*MESSAGES, ModelRequest(parts=[UserPromptPart(["Read this.", file])])])
        *others, last = await history.load()
        assert others == MESSAGES
        text, found = last.parts[0].content  # type: ignore[misc]
        assert text == "Read this."
        assert b"swordfish" not in found.data
        assert found.data.startswith(b"[scrubbed:")

    asyncio.run(talk())


def test_a_nul_character_does_not_cost_the_history(nexus: Nexus) -> None:
    """A tool that reads a file may return one, and a model may write one."""
    messages: list[ModelMessage] = [
        ModelResponse(parts=[ToolCallPart("read", {"path": "a\0.pdf"}, "c1")]),
        ModelRequest(parts=[ToolReturnPart("read", {"pages": ["a page\0"]}, "c1")]),
        ModelResponse(parts=[TextPart("It\0 is read.")]),
    ]

    async def talk() -> None:
        history = History(nexus, "acme", "chat")
        await history.save(messages)
        call, result, answer = await history.load()
        assert call.parts[0].args == {"path": "a.pdf"}  # type: ignore[union-attr]
        assert result.parts[0].content == {"pages": ["a page"]}  # type: ignore[union-attr]
        assert answer.parts[0].content == "It is read."  # type: ignore[union-attr]

    asyncio.run(talk())


def test_a_message_may_be_as_long_as_its_data(nexus: Nexus) -> None:
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("x" * 900_000)]),
        ModelResponse(parts=[ToolCallPart("write", {"text": "y" * 900_000}, "c1")]),
    ]

    async def talk() -> None:
        history = History(nexus, "acme", "chat")
        await history.save(messages)
        assert await history.load() == messages

    asyncio.run(talk())


@pytest.mark.parametrize(("tool", "argument"), [("recall", "query"), ("remember", "text")])
def test_an_empty_argument_of_the_model_does_not_end_the_run(nexus: Nexus, tool: str, argument: str) -> None:
    def model(messages: list[ModelMessage], _: Any) -> ModelResponse:
        part: Any = messages[-1].parts[-1]
        if isinstance(part, UserPromptPart):
            return ModelResponse(parts=[ToolCallPart(tool, {argument: " "})])
        return ModelResponse(parts=[TextPart(f"I was told: {part.content}")])

    agent = Agent(FunctionModel(model), toolsets=[memory_toolset(nexus, "acme")])
    assert "empty" in asyncio.run(agent.run("Hello")).output


def test_what_is_said_in_tagged_texts_and_aloud_is_remembered(nexus: Nexus) -> None:
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart([TextContent("I moved to Lisbon.", metadata={"page": 1}), "And you?"])]),
        ModelRequest(parts=[SpeechPart(speaker="user", transcript="I drink tea.")]),
        ModelResponse(parts=[SpeechPart(speaker="assistant", transcript="Good to know.")]),
        ModelResponse(parts=[SpeechPart(speaker="assistant")]),
    ]

    async def talk() -> None:
        history = History(nexus, "acme", "chat")
        await history.save(messages)
        assert await history.load() == messages

    asyncio.run(talk())
    assert [(one.role, one.content) for one in nexus.session("acme", "chat").said] == [
        ("user", "I moved to Lisbon.\nAnd you?"),
        ("user", "I drink tea."),
        ("assistant", "Good to know."),
        ("assistant", ""),
    ]


def test_what_is_recalled_hides_nothing_from_people(nexus: Nexus) -> None:
    nexus.ingest("acme", "s", [{"content": "Deploys are on \u202eTuesdays.\U000e0068\U000e0069", "author": "ann"}])
    work()

    def model(messages: list[ModelMessage], _: Any) -> ModelResponse:
        part: Any = messages[-1].parts[-1]
        if isinstance(part, UserPromptPart):
            return ModelResponse(parts=[ToolCallPart("recall", {"query": "When are deploys?"})])
        return ModelResponse(parts=[TextPart(str(part.content))])

    told = asyncio.run(Agent(FunctionModel(model), toolsets=[memory_toolset(nexus, "acme")]).run("deploys?")).output
    assert "Tuesdays." in told
    assert not set(told) & set("\u202e\U000e0068\U000e0069")
    assert "\\u202e" not in told
