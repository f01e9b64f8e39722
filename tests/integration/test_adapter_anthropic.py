"""Anthropic's SDK with memory: its memory tool on topics, and a client that remembers, over HTTP to the stand-in."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic, APIStatusError, AsyncAnthropic
from anthropic.lib.tools import ToolError
from pydantic import BaseModel

from nexus_tasks import Nexus
from nexus_tasks.errors import InvalidInput, StorageUnavailable
from nexus_tasks.integrations.anthropic import AsyncMemoryTool, MemoryTool, remembering, turns
from nexus_tasks.integrations.anthropic.remembering import _finding, line_of
from tests.integration.inline import work
from tests.sandbox import Sandbox, eventually
from tests.standin import StandIn
from tests.standin.faults import status
from tests.standin.server import KEY

MODEL = "claude-sonnet-5-5"
FILE = "/memories/notes.md"


@pytest.fixture
def nexus(here: Sandbox) -> Nexus:
    return Nexus(here.deployment)


@pytest.fixture
def tool(nexus: Nexus) -> MemoryTool:
    return MemoryTool(nexus, "acme")


def do(tool: MemoryTool, command: str, **arguments: Any) -> str:
    told = tool.call({"command": command, **arguments})
    assert isinstance(told, str)
    return told


def contents(nexus: Nexus) -> dict[str, str]:
    return {one.filename: nexus.topic("acme", one.filename).content for one in nexus.topics("acme")}


# --- the memory tool --------------------------------------------------------------------------------------------------
def test_every_command_works_on_topics(nexus: Nexus, tool: MemoryTool) -> None:
    assert do(tool, "view", path="/memories").endswith("\n0.0K\t/memories")
    do(tool, "create", path=FILE, file_text="# Notes\nAnn likes tea.\nAnn lives in Porto.\n")
    assert contents(nexus) == {"notes.md": "# Notes\nAnn likes tea.\nAnn lives in Porto.\n"}
    told = do(tool, "str_replace", path=FILE, old_str="Porto", new_str="Lisbon")
    assert "     3\tAnn lives in Lisbon." in told
    do(tool, "insert", path=FILE, insert_line=1, insert_text="- written by Claude\n")
    do(tool, "insert", path=FILE, insert_line=4, insert_text="the end")
    do(tool, "insert", path=FILE, insert_line=0, insert_text="the beginning")
    assert contents(nexus)["notes.md"].splitlines() == [
        "the beginning",
        "# Notes",
        "- written by Claude",
        "Ann likes tea.",
        "Ann lives in Lisbon.",
        "the end",
    ]
    assert do(tool, "view", path=FILE, view_range=[2, 3]).splitlines()[1:] == [
        "     2\t# Notes",
        "     3\t- written by Claude",
    ]
    assert do(tool, "view", path=FILE, view_range=[6, -1]).splitlines()[1] == "     6\tthe end"
    do(tool, "rename", old_path=FILE, new_path="/memories/people/ann.md")
    assert list(contents(nexus)) == ["people--ann.md"]
    assert "K\t/memories/people/ann.md" in do(tool, "view", path="/memories")
    assert nexus.topic("acme", "people--ann.md").made_by == "assistant"
    do(tool, "delete", path="/memories/people/ann.md")
    assert contents(nexus) == {}


def test_folders_are_listed_renamed_and_deleted(nexus: Nexus, tool: MemoryTool) -> None:
    for path in ("/memories/a/one.md", "/memories/a/b/two.md", "/memories/ab.md"):
        do(tool, "create", path=path, file_text="x")
    shown = do(tool, "view", path="/memories/a")
    assert "two.md" in shown
    assert "ab.md" not in shown
    do(tool, "rename", old_path="/memories/a", new_path="/memories/c")
    assert sorted(contents(nexus)) == ["ab.md", "c--b--two.md", "c--one.md"]
    with pytest.raises(ToolError, match="already exists"):
        do(tool, "create", path="/memories/c", file_text="x")
    do(tool, "delete", path="/memories/c")
    assert sorted(contents(nexus)) == ["ab.md"]
    do(tool, "create", path="/memories/c/again.md", file_text="x")
    assert tool.clear_all_memory() == "All memory cleared"
    assert contents(nexus) == {}


def test_a_folder_beside_a_file_of_its_name_is_the_folder(nexus: Nexus, tool: MemoryTool) -> None:
    for path in ("/memories/a.md", "/memories/a/one.md", "/memories/b.md"):
        do(tool, "create", path=path, file_text="x")
    assert "/memories/a/one.md" in do(tool, "view", path="/memories/a")
    assert "1\tx" in do(tool, "view", path="/memories/a.md")
    do(tool, "rename", old_path="/memories/a", new_path="/memories/c")
    assert sorted(contents(nexus)) == ["a.md", "b.md", "c--one.md"]
    do(tool, "rename", old_path="/memories/a", new_path="/memories/c.md")
    assert sorted(contents(nexus)) == ["b.md", "c--one.md", "c.md"]
    do(tool, "delete", path="/memories/c")
    assert sorted(contents(nexus)) == ["b.md", "c.md"]
    do(tool, "delete", path="/memories/c")
    assert sorted(contents(nexus)) == ["b.md"]


def test_a_folder_is_renamed_whole_or_not_at_all(nexus: Nexus, tool: MemoryTool) -> None:
    for name in ("x" * 100, "short"):  # the newest is renamed first
        do(tool, "create", path=f"/memories/a/{name}.md", file_text="x")
    with pytest.raises(ToolError, match="too long"):
        do(tool, "rename", old_path="/memories/a", new_path=f"/memories/{'y' * 60}")
    assert sorted(contents(nexus)) == ["a--short.md", f"a--{'x' * 100}.md"]


def test_what_another_writer_has_just_deleted_holds_up_no_folder(
    nexus: Nexus, tool: MemoryTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, rename = nexus.delete_topic, nexus.rename_topic

    def deleted_twice(namespace: str, filename: str) -> None:
        if filename.endswith("two.md"):
            delete(namespace, filename)
        delete(namespace, filename)

    def deleted_before(namespace: str, filename: str, new_filename: str) -> Any:
        if filename.endswith("two.md"):
            delete(namespace, filename)
        return rename(namespace, filename, new_filename)

    monkeypatch.setattr(nexus, "delete_topic", deleted_twice)
    monkeypatch.setattr(nexus, "rename_topic", deleted_before)
    for name in ("one", "two", "three"):
        do(tool, "create", path=f"/memories/a/{name}.md", file_text="x")
    do(tool, "rename", old_path="/memories/a", new_path="/memories/b")
    assert sorted(contents(nexus)) == ["b--one.md", "b--three.md"]
    do(tool, "create", path="/memories/b/two.md", file_text="x")
    do(tool, "delete", path="/memories/b")
    assert contents(nexus) == {}
    for name in ("one", "two", "three"):
        do(tool, "create", path=f"/memories/{name}.md", file_text="x")
    tool.clear_all_memory()
    assert contents(nexus) == {}


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "/memories/../etc/passwd", "/memories/..", "/memories/a/../../b.md", "memories/a.md", ""),
        *("/memories/.hidden", "/memories/a b.md", "/memories/é.md", "/memories/a--b.md", "/memories//a.md"),
        *("/memoriesx/a.md", "/memories/%2e%2e/a.md", "/memories/con.md", "/memories/README.md", "/memories/a\0.md"),
        "/memories/" + "x" * 200,
        "/memories/a-/b.md",
    ],
)
@pytest.mark.parametrize("command", ["create", "str_replace", "insert", "delete", "rename", "rename to"])
def test_a_path_that_leads_elsewhere_is_refused(nexus: Nexus, tool: MemoryTool, command: str, path: str) -> None:
    do(tool, "create", path=FILE, file_text="kept")
    arguments: dict[str, Any] = {
        "create": {"path": path, "file_text": "x"},
        "str_replace": {"path": path, "old_str": "x", "new_str": "y"},
        "insert": {"path": path, "insert_line": 0, "insert_text": "x"},
        "delete": {"path": path},
        "rename": {"old_path": path, "new_path": "/memories/new.md"},
        "rename to": {"old_path": FILE, "new_path": path},
    }[command]
    with pytest.raises(ToolError):
        do(tool, command.partition(" ")[0], **arguments)
    assert contents(nexus) == {"notes.md": "kept"}


def test_what_cannot_be_done_is_told_with_its_reason(tool: MemoryTool) -> None:
    do(tool, "create", path=FILE, file_text="one\none\n")
    for command, arguments, why in (
        ("create", {"path": FILE, "file_text": "x"}, "already exists"),
        ("create", {"path": "/memories/b.md", "file_text": "x" * 8_001}, "8,000"),
        ("create", {"path": "/memories/b.md", "file_text": ""}, "empty"),
        ("view", {"path": "/memories/nonesuch.md"}, "does not exist"),
        ("str_replace", {"path": FILE, "old_str": "two", "new_str": "x"}, "did not appear verbatim"),
        ("str_replace", {"path": FILE, "old_str": "one", "new_str": "x"}, "in lines: 1, 2"),
        ("str_replace", {"path": FILE, "old_str": "", "new_str": "x"}, "did not appear"),
        ("insert", {"path": FILE, "insert_line": 3, "insert_text": "x"}, r"\[0, 2\]"),
        ("insert", {"path": FILE, "insert_line": -1, "insert_text": "x"}, r"\[0, 2\]"),
        ("delete", {"path": "/memories"}, "cannot be deleted"),
        ("delete", {"path": "/memories/nonesuch"}, "does not exist"),
        ("rename", {"old_path": "/memories/nonesuch", "new_path": "/memories/b.md"}, "does not exist"),
        ("rename", {"old_path": FILE, "new_path": FILE}, "already exists"),
    ):
        with pytest.raises(ToolError, match=why):
            do(tool, command, **arguments)


def test_an_edit_goes_on_the_newest_content(nexus: Nexus, tool: MemoryTool, monkeypatch: pytest.MonkeyPatch) -> None:
    do(tool, "create", path=FILE, file_text="one\n")
    write, calls = nexus.write_topic, []

    def raced(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            write("acme", "notes.md", "one\nof another writer\n")
        return write(*args, **kwargs)

    monkeypatch.setattr(nexus, "write_topic", raced)
    do(tool, "str_replace", path=FILE, old_str="one", new_str="two")
    assert contents(nexus) == {"notes.md": "two\nof another writer\n"}


def test_edits_of_the_facts_are_corrections(nexus: Nexus, tool: MemoryTool) -> None:
    nexus.ingest("acme", "s", [{"content": "I live in Porto.", "author": "ann"}], end=True)
    work("derive_memory")
    facts = "/memories/facts.md"
    assert facts in do(tool, "view", path="/memories")
    shown = do(tool, "view", path=facts)
    assert "Porto" in shown
    do(tool, "str_replace", path=facts, old_str="Porto", new_str="Lisbon")
    [fact] = nexus.memories("acme", levels=["explicit"])
    assert "Lisbon" in fact.content
    assert nexus.memory("acme", fact.id).superseded
    do(tool, "insert", path=facts, insert_line=0, insert_text="- Ann is allergic to nuts.")
    assert nexus.search("acme", "allergic nuts")[0].content == "Ann is allergic to nuts."
    told = do(tool, "insert", path=facts, insert_line=0, insert_text="- Ann is allergic to nuts.\n- Ann has a cat.")
    assert told.startswith("1 facts will be remembered.")
    assert told.endswith(" 1 were remembered already.")
    line = shown.splitlines()[1].partition("\t")[2]
    for old, new in (("- [m", "- [m9"), (f"[m{fact.id}]", "and"), (f"- [m{fact.id}]", f"- [m{fact.id}] x\n- [m1]")):
        with pytest.raises(ToolError, match="reworded"):
            do(tool, "str_replace", path=facts, old_str=old, new_str=new)
    for command, arguments in (("delete", {"path": facts}), ("create", {"path": facts, "file_text": line})):
        with pytest.raises(ToolError):
            do(tool, command, **arguments)


def test_an_edit_of_a_fact_that_two_observers_have_revises_both(nexus: Nexus, tool: MemoryTool) -> None:
    nexus.ingest("acme", "s", [{"content": "I live in Porto.", "author": "ann"}], observers=["one", "two"], end=True)
    work("derive_memory")
    facts = "/memories/facts.md"
    assert do(tool, "view", path=facts).count("Porto") == 1
    do(tool, "str_replace", path=facts, old_str="Porto", new_str="Lisbon")
    assert ("Porto" in do(tool, "view", path=facts), "Lisbon" in do(tool, "view", path=facts)) == (False, True)
    found = nexus.memories("acme", levels=["explicit"])
    assert {(fact.observer, "Lisbon" in fact.content) for fact in found} == {("one", True), ("two", True)}


def test_a_fact_of_several_lines_is_one_line_that_can_be_edited(nexus: Nexus, tmp_path: Path) -> None:
    nexus.ingest("acme", "s", [{"content": "I live in Porto.", "author": "ann"}], end=True)
    work("derive_memory")
    nexus.export("acme", tmp_path / "a.jsonl")
    [fact] = nexus.memories("acme", levels=["explicit"])
    exported = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(exported.replace(json.dumps(fact.content), json.dumps("Ann lives\nin Porto.")))
    nexus.import_("copy", tmp_path / "b.jsonl")
    [copied] = nexus.memories("copy", levels=["explicit"])
    assert copied.content == "Ann lives\nin Porto."
    other = MemoryTool(nexus, "copy")
    do(other, "str_replace", path="/memories/facts.md", old_str="Ann lives in Porto", new_str="Ann lives in Lisbon")
    assert [one.content for one in nexus.memories("copy", levels=["explicit"])] == ["Ann lives in Lisbon."]


def test_the_sdks_runner_uses_the_tool_sync_and_async(nexus: Nexus, standin: StandIn) -> None:
    def use(call: Any) -> Any:
        results = [block for said in call.params["messages"] for block in said["content"] if "tool_use_id" in block]
        if results:
            return f"The tool said: {results[-1]['content']}"
        command = {"command": "create", "path": call.params["messages"][0]["content"], "file_text": "Ann likes tea."}
        return [{"type": "tool_use", "id": "toolu_1", "name": "memory", "input": command}]

    standin.answer(lambda _: True, use)
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 500}
    with Anthropic(base_url=standin.url, api_key=KEY) as client:
        for path, told in (("/memories/a.md", "created successfully"), ("/memories/../b.md", "refused")):
            messages: Any = [{"role": "user", "content": path}]
            runner = client.beta.messages.tool_runner(tools=[MemoryTool(nexus, "acme")], messages=messages, **asked)
            assert told in json.dumps(runner.until_done().content[0].to_dict())
        assert client.beta.messages.tool_runner  # the tool is one of the SDK's own

    async def talk() -> str:
        async with AsyncAnthropic(base_url=standin.url, api_key=KEY) as client:
            messages: Any = [{"role": "user", "content": "/memories/c.md"}]
            runner = client.beta.messages.tool_runner(
                tools=[AsyncMemoryTool(nexus, "acme")], messages=messages, **asked
            )
            return json.dumps((await runner.until_done()).content[0].to_dict())

    assert "created successfully" in asyncio.run(talk())
    assert sorted(contents(nexus)) == ["a.md", "c.md"]


# --- the client that remembers ----------------------------------------------------------------------------------------
@pytest.fixture
def client(standin: StandIn) -> Iterator[Anthropic]:
    standin.answer(lambda _: True, lambda call: f"You said: {call.params['messages'][-1]['content']}")
    with Anthropic(base_url=standin.url, api_key=KEY, max_retries=1) as made:
        yield made


def said(nexus: Nexus, session: str = "chat") -> list[tuple[str, str, str]]:
    return [(one.role, one.author, one.content) for one in nexus.session("acme", session).said]


def turn(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant") * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {"model": MODEL, "max_tokens": 500, "messages": messages}


def test_the_client_recalls_and_remembers(nexus: Nexus, client: Anthropic, standin: StandIn) -> None:
    nexus.ingest("acme", "earlier", [{"content": "I drink green tea.", "author": "ann"}], end=True)
    work("derive_memory")
    own = remembering(client, nexus, "acme", session_key="chat", author="ann")
    answer = own.messages.create(**turn("What tea do I drink?"), system="Be brief.")
    assert answer.content[0].text == "You said: What tea do I drink?"
    asked = standin.counters.requests[-1].params["system"]
    assert asked[0] == {"type": "text", "text": "Be brief."}
    assert "green tea" in asked[1]["text"]
    assert said(nexus) == [
        ("user", "ann", "What tea do I drink?"),
        ("assistant", "assistant", "You said: What tea do I drink?"),
    ]
    own.messages.create(**turn("What tea do I drink?", answer.content[0].text, "ok"))
    assert [text for *_, text in said(nexus)[2:]] == ["ok", "You said: ok"]
    assert "system" not in standin.counters.requests[-1].params or "ok" not in str(said(nexus, "earlier"))


def test_every_way_of_calling_is_remembered_once(nexus: Nexus, client: Anthropic) -> None:
    own = remembering(client, nexus, "acme", session_key="chat")
    with own.messages.stream(**turn("one")) as stream:
        assert "".join(stream.text_stream) == stream.get_final_text() == "You said: one"
    assert (
        "".join(
            event.delta.text
            for event in own.messages.create(**turn("two"), stream=True)
            if event.type == "content_block_delta"
        )
        == "You said: two"
    )
    assert own.messages.with_raw_response.create(**turn("three")).parse().content[0].text == "You said: three"
    own.with_options(timeout=30).beta.messages.create(**turn("four"))
    with own.messages.with_streaming_response.create(**turn("five")) as response:
        assert response.parse().content[0].text == "You said: five"
    assert [text for role, _, text in said(nexus) if role == "user"] == ["one", "two", "three", "four", "five"]
    assert [text for role, _, text in said(nexus) if role == "assistant"] == [
        f"You said: {word}" for word in ("one", "two", "three", "four", "five")
    ]


@pytest.mark.usefixtures("client")
def test_the_async_client_remembers(nexus: Nexus, standin: StandIn) -> None:
    async def talk() -> None:
        async with AsyncAnthropic(base_url=standin.url, api_key=KEY) as plain:
            own = remembering(plain, nexus, "acme", session_key="chat")
            assert (await own.messages.create(**turn("one"))).content[0].text == "You said: one"
            async with own.messages.stream(**turn("two")) as stream:
                assert await stream.get_final_text() == "You said: two"
            async for _ in await own.messages.create(**turn("three"), stream=True):
                pass

    asyncio.run(talk())
    assert [text for role, _, text in said(nexus) if role == "assistant"] == [
        f"You said: {word}" for word in ("one", "two", "three")
    ]


def test_a_call_that_is_made_again_is_stored_once_and_equal_turns_twice(nexus: Nexus, client: Anthropic) -> None:
    own = remembering(client, nexus, "acme", session_key="chat")
    for _ in "ab":
        own.messages.create(**turn("ok"))
    own.messages.create(**turn("ok", "You said: ok", "ok"))
    assert [text for role, _, text in said(nexus) if role == "user"] == ["ok", "ok"]


def test_a_system_message_in_the_conversation_is_not_what_the_user_said(nexus: Nexus, client: Anthropic) -> None:
    own = remembering(client, nexus, "acme", session_key="chat", author="ann")
    asked = turn("one")
    asked["messages"].append({"role": "system", "content": "The user lives in Porto."})
    own.messages.create(**asked)
    assert [(role, author) for role, author, _ in said(nexus)] == [("user", "ann"), ("assistant", "assistant")]


def test_tools_and_their_results_are_stored_in_both_forms(nexus: Nexus, client: Anthropic, standin: StandIn) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Lisbon"}}
    standin.answer(
        lambda call: "weather?" in str(call.params["messages"][-1]),
        lambda _: [{"type": "text", "text": "I look."}, use],
    )
    own = remembering(client, nexus, "acme", session_key="chat")
    own.messages.create(**turn("weather?"))
    with own.messages.stream(**turn("weather?")) as stream:
        stream.until_done()
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Sunny."}]}
    history = [{"role": "user", "content": "weather?"}, {"role": "assistant", "content": [use]}]
    own.messages.create(model=MODEL, max_tokens=9, messages=[*history, {"role": "user", "content": [result]}])
    stored = nexus.session("acme", "chat").said
    assert [one.tool_calls for one in stored if one.role == "assistant"][:2] == [(use,), (use,)]
    assert [(one.content, one.tool_calls) for one in stored if one.role == "tool"] == [
        ("Sunny.", ({"tool_use_id": "toolu_1"},))
    ]


def test_a_prompt_whose_answer_the_caller_begins_is_stored(nexus: Nexus, client: Anthropic) -> None:
    own = remembering(client, nexus, "acme", session_key="chat")
    for _ in "ab":
        own.messages.create(**turn("Where do I live?", "You live in"))
    own.messages.create(**turn("Where do I live?", "You live in Lisbon.", "ok", "Fine"))
    assert [text for role, _, text in said(nexus) if role == "user"] == ["Where do I live?", "ok"]


def test_a_streamed_answer_may_have_any_line_separator() -> None:
    text = "one\u2028two\u2029three\x85four"
    block: dict[str, Any] = {"type": "text", "text": ""}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_1", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "message_stop"},
    ]
    lines = [f"event: {one['type']}\r\ndata: {json.dumps(one, ensure_ascii=False)}\r\n\r\n" for one in events]
    told = turns.streamed("".join(lines).encode())
    assert told is not None
    assert [one.content for one in turns.answer_of(told)] == [text]


def test_a_stream_that_is_left_at_its_last_event_is_remembered(nexus: Nexus, client: Anthropic) -> None:
    own = remembering(client, nexus, "acme", session_key="chat")
    with own.messages.stream(**turn("one")) as stream:
        assert any(event.type == "message_stop" for event in stream)
    events = own.messages.create(**turn("two"), stream=True)
    assert any(event.type == "message_stop" for event in events)

    async def talk() -> bool:
        async with AsyncAnthropic(api_key=KEY, base_url=client.base_url) as plain:
            own = remembering(plain, nexus, "acme", session_key="chat")
            async for event in await own.messages.create(**turn("three"), stream=True):
                if event.type == "message_stop":
                    return True
            return False

    assert asyncio.run(talk())
    words = ("one", "two", "three")
    assert [text for *_, text in said(nexus)] == [text for word in words for text in (word, f"You said: {word}")]


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_the_last_event_is_seen_in_parts_of_any_size(size: int) -> None:
    text = 'The last event is {"type": "message_stop"}\n'
    block: dict[str, Any] = {"type": "text", "text": text}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_1", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "message_stop", "more": "x" * 300},
    ]
    body = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events).encode()
    read = turns.Events()
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    split = [read.split(part) for part in parts]
    assert [number for number, (_, last) in enumerate(split) if last] == [(len(body) - 2) // size]
    assert b"".join(before + last for before, last in split) == body
    assert (size < 1_000) or split[0][1].startswith(b'data: {"type": "message_stop"')
    assert read.message() == {"id": "msg_1", "content": [block]}


def test_what_no_database_stores_of_a_tool_call_does_not_cost_its_messages(
    nexus: Nexus, client: Anthropic, standin: StandIn
) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "printf '\0'"}}
    standin.answer(lambda call: "print" in str(call.params["messages"][-1]), lambda _: [use])
    own = remembering(client, nexus, "acme", session_key="chat")
    own.messages.create(**turn("print a NUL"))
    stored = nexus.session("acme", "chat").said
    assert [(one.role, one.content) for one in stored] == [("user", "print a NUL"), ("assistant", "")]
    assert stored[1].tool_calls == ({"name": "bash", "id": "toolu_1"},)


def test_errors_of_the_call_are_the_clients_own_and_nothing_is_stored(
    nexus: Nexus, client: Anthropic, standin: StandIn
) -> None:
    own = remembering(client, nexus, "acme", session_key="chat")
    standin.always(status(400, "invalid_request_error", "no"))
    with pytest.raises(APIStatusError) as plain:
        client.messages.create(**turn("one"))
    with pytest.raises(APIStatusError) as wrapped:
        own.messages.create(**turn("one"))
    assert str(plain.value) == str(wrapped.value)
    assert isinstance(own, Anthropic)
    standin.heal()
    standin.faults.append(status(529, "overloaded_error", "busy"))
    own.messages.create(**turn("one"))  # the SDK's own retry
    with own.messages.stream(**turn("left early")) as stream:
        next(iter(stream))
    own.messages.count_tokens(model=MODEL, messages=turn("counted")["messages"])
    assert [text for *_, text in said(nexus)] == ["one", "You said: one"]


def test_a_page_of_a_gateway_comes_to_the_caller_as_without_memory(nexus: Nexus) -> None:
    import httpx2  # the SDK's own HTTP library

    page, kind = "<html>Please log in.</html>", {"Content-Type": "text/html"}
    gateway = httpx2.MockTransport(lambda _: httpx2.Response(200, text=page, headers=kind))
    with Anthropic(api_key=KEY, http_client=httpx2.Client(transport=gateway)) as plain:
        own = remembering(plain, nexus, "acme", session_key="chat")
        assert own.messages.create(**turn("one")) == plain.messages.create(**turn("one"))

    async def talk() -> list[Any]:
        async with AsyncAnthropic(api_key=KEY, http_client=httpx2.AsyncClient(transport=gateway)) as plain:
            both = (plain, remembering(plain, nexus, "acme", session_key="chat"))
            return [await each.messages.create(**turn("one")) for each in both]

    alone, remembered = asyncio.run(talk())
    assert remembered == alone


class Broken(Nexus):
    """A client whose memory is away, or does not answer."""

    def __init__(self, hangs: float = 0.0) -> None:
        super().__init__()
        self.hangs = hangs

    def context(self, *_: Any, **__: Any) -> Any:
        time.sleep(self.hangs)
        raise StorageUnavailable

    ingest = context


class Slow(Nexus):
    """A client whose first ``ingest`` takes a second longer."""

    stands = 1.0

    def ingest(self, *given: Any, **named: Any) -> Any:
        stands, self.stands = self.stands, 0.0
        time.sleep(stands)
        return super().ingest(*given, **named)


def test_a_slow_memory_keeps_the_conversation_in_order(here: Sandbox, client: Anthropic) -> None:
    nexus, words = Slow(here.deployment), ("zero", "one", "two", "three")
    remembering(client, Nexus(here.deployment), "acme", session_key="chat").messages.create(**turn("zero"))
    own = remembering(client, nexus, "acme", session_key="chat", timeout=0.2)
    for word in words[1:]:
        own.messages.create(**turn(word))
    eventually(lambda: len(said(nexus)) == 8)
    assert [text for *_, text in said(nexus)] == [text for word in words for text in (word, f"You said: {word}")]


def test_clients_made_for_each_request_keep_the_conversation_in_order(here: Sandbox, client: Anthropic) -> None:
    nexus, words = Slow(here.deployment), ("zero", "one", "two", "three", "four")
    remembering(client, Nexus(here.deployment), "acme", session_key="chat").messages.create(**turn("zero"))
    for word in words[1:]:
        remembering(client, nexus, "acme", session_key="chat", timeout=0.2).messages.create(**turn(word))
    eventually(lambda: len(said(nexus)) == 10)
    assert [text for *_, text in said(nexus)] == [text for word in words for text in (word, f"You said: {word}")]


def test_a_forked_process_does_not_wait_for_what_its_parent_stores(nexus: Nexus) -> None:
    line = line_of(nexus, "acme", "chat")
    with line.storing:
        child = os.fork()
        if child == 0:
            os._exit(0 if line_of(nexus, "acme", "chat").storing.acquire(timeout=5) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_that_is_forked_while_a_thread_finds_a_conversation_finds_one(nexus: Nexus) -> None:
    holds = threading.Event()

    def find() -> None:
        with _finding:
            holds.set()
            time.sleep(0.3)

    thread = threading.Thread(target=find)
    thread.start()
    holds.wait()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        line_of(nexus, "acme", "chat")
        os._exit(0)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Picky(Slow):
    """A slow client that refuses a text."""

    def ingest(self, *given: Any, **named: Any) -> Any:
        if any("two" in message.content for message in given[2]):
            raise InvalidInput("It is two.")
        return super().ingest(*given, **named)


def test_a_call_that_is_refused_costs_none_of_those_that_wait_with_it(here: Sandbox, client: Anthropic) -> None:
    nexus, words = Picky(here.deployment), ("zero", "one", "three")
    remembering(client, Nexus(here.deployment), "acme", session_key="chat").messages.create(**turn("zero"))
    own = remembering(client, nexus, "acme", session_key="chat", timeout=0.2)
    for word in ("one", "two", "three"):
        own.messages.create(**turn(word))
    eventually(lambda: len(said(nexus)) == 6)
    assert [text for *_, text in said(nexus)] == [text for word in words for text in (word, f"You said: {word}")]


@pytest.mark.parametrize("hangs", [0.0, 2.0])
def test_a_memory_that_fails_or_hangs_never_breaks_the_call(client: Anthropic, standin: StandIn, hangs: float) -> None:
    own = remembering(client, Broken(hangs), "acme", session_key="chat", timeout=0.2)
    began = time.monotonic()
    assert own.messages.create(**turn("one"), system="Be brief.").content[0].text == "You said: one"
    with own.messages.stream(**turn("two")) as stream:
        assert stream.get_final_text() == "You said: two"
    assert time.monotonic() - began < 1.8
    assert standin.counters.requests[0].params["system"] == "Be brief."


def test_calls_at_once_wait_for_a_hanging_memory_at_once() -> None:
    """The event loop has six threads for its calls on a machine of two processors."""
    import httpx2

    answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": [], "usage": None}
    gateway = httpx2.MockTransport(lambda _: httpx2.Response(200, json=answer))

    async def talk() -> float:
        async with AsyncAnthropic(api_key=KEY, http_client=httpx2.AsyncClient(transport=gateway)) as plain:
            own = remembering(plain, Broken(2.0), "acme", session_key="chat", timeout=0.5)
            began = time.monotonic()
            await asyncio.gather(*(own.messages.create(**turn(str(n))) for n in range(100)))
            return time.monotonic() - began

    assert asyncio.run(talk()) < 4


def test_odd_requests_pass_unharmed(nexus: Nexus, client: Anthropic, standin: StandIn) -> None:
    standin.answer(lambda _: True, lambda _: "fine")
    own = remembering(client, nexus, "acme", session_key="chat")
    picture: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    for content in ([picture], [{"type": "text", "text": "😀 \x00 odd"}, picture]):
        asked: Any = [{"role": "user", "content": content}]
        assert own.messages.create(model=MODEL, max_tokens=9, messages=asked).content[0].text == "fine"


class Reply(BaseModel):
    """What a caller wants parsed."""

    city: str


def test_parsed_answers_stay_parsed(nexus: Nexus, client: Anthropic, standin: StandIn) -> None:
    standin.answer(lambda _: True, lambda _: {"city": "Lisbon"})
    own = remembering(client, nexus, "acme", session_key="chat")
    parsed = own.messages.parse(**turn("where?"), output_format=Reply)
    assert parsed.parsed_output == Reply(city="Lisbon")
    assert said(nexus)[-1][2] == '{"city": "Lisbon"}'


def test_a_result_without_a_text_does_not_cost_the_turn() -> None:
    """A tool that reads a file may return a NUL character alone."""
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "\0"}
    content = [result, {"type": "text", "text": "I moved\0 to Lisbon."}]
    [said] = turns.new_turns([{"role": "user", "content": content}], "ann")
    assert (said.author, said.content) == ("ann", "I moved to Lisbon.")
