"""A session of OpenAI's Agents SDK: beside the SDK's own session, and in its real runner with a model of the test's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import InvalidInput
from tests.adapters.frameworks import needs
from tests.integration.inline import work

needs("agents")

from agents import Agent, Model, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool  # noqa: E402
from agents.memory import Session, SessionSettings  # noqa: E402
from openai.types.responses import (  # noqa: E402
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from nexus_tasks.integrations.openai_agents import NexusSession  # noqa: E402

pytestmark = pytest.mark.long

ITEMS: list[Any] = [
    {"role": "user", "content": "I moved to Lisbon."},
    {"content": [{"type": "input_text", "text": "And I drink tea. 🙂"}], "role": "user", "type": "message"},
    {"id": "rs_1", "type": "reasoning", "summary": [{"text": "it", "type": "summary_text"}], "encrypted_content": "x"},
    {"arguments": '{"city": "Lisbon"}', "call_id": "c1", "name": "weather", "type": "function_call", "id": "fc_1"},
    {"call_id": "c1", "output": "Sunny, 24.5 °C", "type": "function_call_output"},
    {"id": "m", "content": [{"annotations": [], "text": "It is sunny.", "type": "output_text", "logprobs": []}],
     "role": "assistant", "status": "completed", "type": "message"},
    {"role": "developer", "content": "Be brief."},
    {"type": "computer_call_output", "call_id": "c2", "output": {"type": "computer_screenshot", "image_url": "data:,"}},
    {"role": "user", "content": "ok"},
    {"role": "user", "content": "ok"},
]  # fmt: skip


def run(talk: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(talk())


def test_items_come_back_byte_for_byte(nexus: Nexus) -> None:
    async def talk() -> None:
        session = NexusSession("chat", nexus, "acme")
        assert await session.get_items() == []
        await session.add_items(ITEMS[:3])
        await session.add_items([])
        await session.add_items(ITEMS[3:])
        assert json.dumps(await session.get_items()) == json.dumps(ITEMS)
        for limit in (1, 3, 100):
            assert await session.get_items(limit) == ITEMS[-limit:]

    run(talk)
    assert isinstance(NexusSession("chat", nexus, "acme"), Session)


def test_it_does_what_the_sdks_own_session_does(nexus: Nexus) -> None:
    async def talk() -> None:
        settings = SessionSettings(limit=2)
        ours = NexusSession("chat", nexus, "acme", session_settings=settings)
        own = SQLiteSession("chat", session_settings=settings)
        for each in (ours, own):
            assert await each.pop_item() is None
            await each.clear_session()
            await each.add_items(ITEMS)
        for limit in (None, 0, 1, 4, 50):
            assert await ours.get_items(limit) == await own.get_items(limit), limit
        for _ in range(3):
            assert await ours.pop_item() == await own.pop_item()
        for each in (ours, own):
            await each.add_items([{"role": "user", "content": "after"}])
        assert await ours.get_items(100) == await own.get_items(100)
        for each in (ours, own):
            await each.clear_session()
        assert await ours.get_items(100) == await own.get_items(100) == []
        await ours.add_items(ITEMS[:1])
        assert await ours.get_items() == ITEMS[:1]

    run(talk)


def test_an_item_may_be_as_long_as_the_limit(nexus: Nexus) -> None:
    items: list[Any] = [
        {"call_id": "c1", "output": "x" * 900_000, "type": "function_call_output"},
        {"arguments": "x" * 900_000, "call_id": "c2", "name": "write", "type": "function_call", "id": "fc_2"},
    ]

    async def talk() -> None:
        session = NexusSession("chat", nexus, "acme")
        await session.add_items(items)
        assert await session.get_items() == items

    run(talk)


def test_a_tool_that_returns_a_nul_character_does_not_cost_the_run(nexus: Nexus) -> None:
    @function_tool
    def read() -> str:
        return "a page\0 of a PDF, and half a sign \ud83d"

    class Reads(Model):
        async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
            call = ResponseFunctionToolCall(arguments="{}", call_id="c1", name="read", type="function_call")
            text = ResponseOutputText(text="It is read.", type="output_text", annotations=[])
            said = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            self.calls = getattr(self, "calls", 0) + 1
            return ModelResponse(output=[call if self.calls == 1 else said], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    async def talk() -> None:
        session = NexusSession("chat", nexus, "acme")
        agent = Agent(name="reader", model=Reads(), tools=[read])
        told = await Runner.run(agent, "Read it.", session=session, run_config=RunConfig(tracing_disabled=True))
        assert told.final_output == "It is read."
        _, _, output, _ = await session.get_items()
        assert output["output"] == "a page of a PDF, and half a sign ?"  # type: ignore[typeddict-item]

    run(talk)


def test_pages_are_read_whole(nexus: Nexus) -> None:
    async def talk() -> None:
        session = NexusSession("chat", nexus, "acme")
        many: list[Any] = [{"role": "user", "content": f"number {n}"} for n in range(2_100)]
        nexus.create_namespace("acme")
        await session.add_items(many)
        assert await session.get_items() == many
        assert await session.get_items(1_500) == many[-1_500:]

    run(talk)


def test_what_is_said_is_remembered_with_its_speaker(nexus: Nexus) -> None:
    async def talk() -> None:
        await NexusSession("chat", nexus, "acme", author="ann").add_items(ITEMS)

    run(talk)
    said = nexus.session("acme", "chat").said
    assert [(one.role, one.author, one.content) for one in said[:6]] == [
        ("user", "ann", "I moved to Lisbon."),
        ("user", "ann", "And I drink tea. 🙂"),
        ("assistant", "assistant", ""),
        ("assistant", "assistant", ""),
        ("tool", "tool", "Sunny, 24.5 °C"),
        ("assistant", "assistant", "It is sunny."),
    ]
    assert said[3].tool_calls == ({"id": "c1", "name": "weather", "arguments": '{"city": "Lisbon"}'},)
    work()
    assert "Lisbon" in nexus.search("acme", "where does ann live?", levels=["explicit"])[0].content
    assert not nexus.status("acme").namespaces[0].jobs.dead


def test_a_popped_item_is_erased_with_its_facts(nexus: Nexus) -> None:
    async def talk() -> None:
        session = NexusSession("chat", nexus, "acme", author="ann")
        await session.add_items(ITEMS[:1])
        work()
        assert nexus.memories("acme", levels=["explicit"])
        assert await session.pop_item() == ITEMS[0]
        assert nexus.memories("acme") == []

    run(talk)


def test_secrets_are_replaced_unless_the_namespace_keeps_them(nexus: Nexus) -> None:
    item: Any = {"role": "user", "content": "my token is ghp_abcdefghijklmnopqrstuvwxyz0123456789"}

    async def talk() -> None:
        nexus.create_namespace("open", scrub=False)
        for name in ("acme", "open"):
            await NexusSession("chat", nexus, name).add_items([item])
        assert "ghp_" not in str(await NexusSession("chat", nexus, "acme").get_items())
        assert await NexusSession("chat", nexus, "open").get_items() == [item]
        with pytest.raises(InvalidInput, match="1,000,000"):
            await NexusSession("chat", nexus, "open").add_items([{"role": "user", "content": "x" * 1_000_000}])

    run(talk)


def test_what_others_said_in_the_session_is_part_of_the_history(nexus: Nexus) -> None:
    nexus.ingest("acme", "chat", [{"content": "Hello."}, {"content": "raw output", "role": "tool"}])

    async def talk() -> None:
        session = NexusSession("chat", nexus, "acme")
        assert await session.get_items() == [{"role": "user", "content": "Hello."}]
        assert await session.pop_item() == {"role": "user", "content": "Hello."}
        assert await session.pop_item() is None

    run(talk)


class Scripted(Model):
    """A model that calls a tool once, and then says what it was given."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []

    async def get_response(self, *_: Any, input: Any, **__: Any) -> ModelResponse:
        self.inputs.append(input)
        items = input if isinstance(input, list) else []
        if not any(item.get("type") == "function_call_output" for item in items):
            call = ResponseFunctionToolCall(
                arguments='{"city":"Lisbon"}', call_id="c1", name="weather", type="function_call"
            )
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        text = ResponseOutputText(annotations=[], text=f"I read {len(items)} items.", type="output_text")
        said = ResponseOutputMessage(id="m1", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


def test_the_sdks_runner_continues_a_conversation(nexus: Nexus) -> None:
    model = Scripted()
    agent = Agent(name="helper", model=model, tools=[weather])
    config = RunConfig(tracing_disabled=True)

    async def talk() -> None:
        for text, told in (("weather?", "I read 3 items."), ("and now?", "I read 5 items.")):
            session = NexusSession("chat", nexus, "acme")
            result = await Runner.run(agent, text, session=session, run_config=config)
            assert result.final_output == told
        assert len(await NexusSession("chat", nexus, "acme").get_items()) == 6

    run(talk)
    assert "It is sunny in Lisbon." in [one.content for one in nexus.session("acme", "chat").said]
