"""Memory over MCP, as the official SDK's client meets it: in memory, over standard input and output, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from typer.testing import CliRunner

from nexus_tasks import Nexus
from nexus_tasks.cli.main import app
from nexus_tasks.cognition.echo import without_echo
from nexus_tasks.errors import ConfigurationError, InvalidInput
from nexus_tasks.integrations.mcp import http
from nexus_tasks.integrations.mcp.server import digest_uri, server
from nexus_tasks.integrations.serving.listening import LOOPBACK, address
from tests.integration.inline import NAMESPACE, facts, say, work
from tests.integration.served import served
from tests.sandbox import Sandbox, eventually

T = TypeVar("T")
TOKEN = "a-long-random-token"
TOOLS = {
    *("remember", "recall", "context", "profile", "ask", "revise", "pin", "digest_session", "forget", "memory_status")
}


def using(client: Client, do: Callable[[Client], Awaitable[T]]) -> T:
    """What ``do`` returns for a connected client."""

    async def talk() -> T:
        async with client as connected:
            return await do(connected)

    return asyncio.run(asyncio.wait_for(talk(), 120))


def call(tool: str, *, of: str | None = NAMESPACE, **arguments: Any) -> Any:
    """The result of a tool, asked in memory."""
    return using(Client(server(of)), lambda client: client.call_tool(tool, arguments))


def test_remember_and_recall_with_citations(here: Sandbox) -> None:
    done = call("remember", text="Deploys happen on Tuesdays.", author="ops")
    assert done.structured_content == {"namespace": NAMESPACE, "session_key": "notes", "stored": 1, "buffered": 0}
    work("derive_memory")
    assert call("recall", query="deploy", min_standing="self").structured_content["results"][0]["standing"] == "self"
    assert "Tuesdays" in call("context", min_standing="self").structured_content["text"]
    found = call("recall", query="when do we deploy?", limit=5)
    hits = found.structured_content["results"]
    [fact] = [one for one in hits if one["level"] == "explicit"]
    assert fact["cited"].startswith(f"[m{fact['id']}] ")
    assert "Deploys happen on Tuesdays" in fact["cited"]
    [source] = fact["evidence"]
    assert source["role"] == "derived_from"
    assert found.content[0].text.splitlines() == [one["cited"] for one in hits]
    assert here.sql("SELECT count(*) FROM memories WHERE level = 'raw'") == [(1,)]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("shape", ["text", "pretty", "compact"])
def test_what_came_back_is_not_learned_again(shape: str) -> None:
    say("I moved to Lisbon in March.", "I drink green tea every morning.")
    work("derive_memory")
    before = facts()
    for result in (call("recall", query="Where does ann live?"), call("context", session_key="chat", query="tea")):
        document = result.structured_content
        told = {
            "text": result.content[0].text,
            "pretty": json.dumps(document, indent=2),
            "compact": json.dumps(document, separators=(",", ":")),
        }[shape]
        assert "Lisbon" not in without_echo(told, "assistant", {})
        assert "tea" not in without_echo(told, "assistant", {}).replace("query", "").replace('"tea', "")
        say({"role": "tool", "author": "ann", "content": told})
    work("derive_memory")
    assert facts() == before


@pytest.mark.usefixtures("here")
def test_context_digest_and_status() -> None:
    say(*(f"I visited the town number {n} in May." for n in range(9)))
    done = call("digest_session", session_key="chat", wait_seconds=0)
    assert done.structured_content["status"] == "running"
    assert done.structured_content["long"] is None
    work()
    done = call("digest_session", session_key="chat", wait_seconds=0).structured_content
    assert done["long"].startswith("[m")
    block = call("context", session_key="chat", max_tokens=300).structured_content
    assert block["tokens"] <= block["max_tokens"] == 300
    assert all(f"[{name}]" in block["text"] for name in block["citations"])
    whole = call("context", session_key="chat", observe=True).structured_content
    assert "off" in whole["notes"][0]
    found = call("memory_status").structured_content
    assert found["memories"]["raw"] == 9
    assert found["namespace"] == NAMESPACE


@pytest.mark.usefixtures("here")
def test_topics_are_resources() -> None:
    say(*(f"I keep thing {n} on shelf {n}." for n in range(4)))
    Nexus().extract(NAMESPACE, "chat")
    work("extract_session")

    async def look(client: Client) -> tuple[list[Any], str]:
        entries = json.loads((await client.read_resource(f"nexus://topics/{NAMESPACE}")).contents[0].text)
        return entries, (await client.read_resource(entries[0]["uri"])).contents[0].text

    for name in (NAMESPACE, None):
        [entry], text = using(Client(server(name)), look)
        assert entry["uri"] == f"nexus://topics/{NAMESPACE}/{entry['filename']}"
        assert "I keep thing 2 on shelf 2." in text


@pytest.mark.usefixtures("here")
def test_digests_are_resources() -> None:
    odd = "a/b ../c é"
    for key in ("chat", odd):
        say("I moved to Lisbon in March.", session=key)
        Nexus().digest(NAMESPACE, key)
    work()

    async def look(client: Client) -> tuple[list[str], list[Any], str, str]:
        listed = [str(one.uri) for one in (await client.list_resources()).resources]
        entries = json.loads((await client.read_resource(listed[0])).contents[0].text)
        texts = [(await client.read_resource(one["uri"])).contents[0].text for one in entries]
        templates = (await client.list_resource_templates()).resource_templates
        return listed, entries, texts[0], templates[0].uri_template

    listed, entries, text, template = using(Client(server(NAMESPACE)), look)
    assert listed == [f"nexus://{name}/{NAMESPACE}" for name in ("digests", "topics")]
    assert template == "nexus://digests/{namespace}/{session_key}"
    assert [one["session_key"] for one in entries] == [odd, "chat"]
    assert [one["uri"] for one in entries] == [digest_uri(NAMESPACE, odd), digest_uri(NAMESPACE, "chat")]
    assert "Lisbon" in text
    assert text.startswith("[m")

    async def look_in_vain(client: Client) -> None:
        with pytest.raises(MCPError, match="no session 'nobody'"):
            await client.read_resource(digest_uri(NAMESPACE, "nobody"))
        with pytest.raises(MCPError, match="acme only"):
            await client.read_resource(digest_uri("other", "chat"))

    using(Client(server(NAMESPACE)), look_in_vain)
    unbound = using(Client(server(None)), lambda client: client.read_resource(digest_uri(NAMESPACE, "chat")))
    assert "Lisbon" in unbound.contents[0].text


@pytest.mark.usefixtures("here")
def test_a_bound_server_never_crosses_and_an_unbound_one_wants_a_name() -> None:
    say("I like tea.")
    say("A secret of others.", namespace="others")
    crossed = call("recall", query="secret", namespace="others")
    assert crossed.is_error
    assert "acme only" in crossed.content[0].text
    assert call("recall", query="tea", namespace=NAMESPACE).structured_content["results"]
    nameless = call("recall", of=None, query="tea")
    assert nameless.is_error
    assert "--namespace" in nameless.content[0].text
    assert call("recall", of=None, query="tea", namespace=NAMESPACE).structured_content["results"]


def test_forgetting_comes_with_a_receipt(here: Sandbox) -> None:
    first, _ = say("I live in Porto.", "I drink tea.")
    say("I have a cat.", session="pets")
    work("derive_memory")
    done = call("forget", memory_id=first)
    receipt = done.structured_content
    assert receipt["namespace"] == NAMESPACE
    assert first in receipt["ids"]
    assert len(receipt["ids"]) == 2  # and the fact
    assert receipt["deleted"]["memories"] == 2
    assert done.content[0].text.startswith("Erased 2 memories")
    assert "Porto" not in call("recall", query="Porto").content[0].text
    assert call("forget", session_key="pets").structured_content["deleted"]["sessions"] == 1
    assert here.sql("SELECT count(*) FROM sessions") == [(1,)]
    for wrong, why in (
        ({}, "one of"),
        ({"memory_id": 10**9}, "nexus memories"),
        ({"session_key": "pets"}, "no session"),
    ):
        refused = call("forget", **wrong)
        assert refused.is_error
        assert why in refused.content[0].text


def test_everything_is_forgotten_only_when_it_is_meant(here: Sandbox) -> None:
    say("I live in Porto.")
    say("I live in Lagos.", namespace="others")
    for of, arguments, why in (
        (NAMESPACE, {}, f'confirm="{NAMESPACE}"'),
        (NAMESPACE, {"confirm": "yes"}, f'confirm="{NAMESPACE}"'),
        (NAMESPACE, {"confirm": "others", "namespace": "others"}, "acme only"),
        (None, {"confirm": "others", "namespace": "others"}, "--namespace NS"),
    ):
        refused = call("forget", of=of, everything=True, **arguments)
        assert refused.is_error
        assert why in refused.content[0].text
    assert here.sql("SELECT count(*) FROM memories WHERE level = 'raw'") == [(2,)]
    call("forget", everything=True, confirm=NAMESPACE)
    assert here.sql("SELECT content FROM memories WHERE level = 'raw'") == [("I live in Lagos.",)]


@pytest.mark.usefixtures("here")
def test_no_tool_of_a_bound_server_reaches_another_namespace() -> None:
    [theirs] = say("A secret of others.", session="chat", namespace="others")
    before = Nexus().status("others")
    for tool, arguments in (
        ("remember", {"text": "I was here."}),
        ("recall", {"query": "secret"}),
        ("context", {}),
        ("digest_session", {"session_key": "chat", "wait_seconds": 0}),
        ("forget", {"memory_id": theirs}),
        ("memory_status", {}),
    ):
        refused = call(tool, namespace="others", **arguments)
        assert refused.is_error, tool
        assert "acme only" in refused.content[0].text
    say("I like tea.")  # now it is there: an id of another namespace is none of its own
    assert call("forget", memory_id=theirs).is_error
    after = Nexus().status("others")
    assert [one.memories for one in after.namespaces] == [one.memories for one in before.namespaces]


@pytest.mark.usefixtures("here")
def test_errors_say_what_to_do() -> None:
    wrong = call("recall", query="tea")
    assert wrong.is_error
    assert "nexus ingest" in wrong.content[0].text  # no such namespace yet
    for tool, arguments in (("recall", {}), ("recall", {"query": "x", "limit": 0}), ("remember", {"text": " "})):
        assert call(tool, **arguments).is_error


def test_a_number_in_disguise_is_refused(here: Sandbox) -> None:
    """Before, `true` was the memory 1, and 3600 a time in 1970: the text was remembered, and expired at once."""
    say("I live in Porto.")
    for tool, arguments, why in (
        ("forget", {"memory_id": True}, "true or false"),
        ("pin", {"memory_id": True}, "true or false"),
        ("revise", {"memory_id": True, "content": "I live in Lisbon."}, "true or false"),
        ("remember", {"text": "I like tea.", "expires_at": 3_600}, "not a number"),
        ("remember", {"text": "I like tea.", "expires_at": "3600"}, "not a number"),
    ):
        refused = call(tool, **arguments)  # type: ignore[arg-type]
        assert refused.is_error, tool
        assert why in refused.content[0].text
    assert here.sql("SELECT content FROM memories") == [("I live in Porto.",)]
    assert not call("remember", text="I like tea.", expires_at="2999-01-01T00:00:00Z").is_error


def test_a_parameter_of_null_is_one_that_is_left_out(here: Sandbox) -> None:
    """Some clients send `null` for each parameter that they do not use. Before, `forget` failed without a reason."""
    say("I live in Porto.")
    tools = using(Client(server(NAMESPACE)), lambda client: client.list_tools()).tools
    left_out = {
        (tool.name, name)
        for tool in tools
        for name, schema in tool.input_schema["properties"].items()
        if {"type": "null"} in schema.get("anyOf", ())
    }
    assert ("forget", "memory_id") in left_out
    needed = {"text": "I like tea.", "query": "tea", "subject": "ann", "question": "tea?", "session_key": "chat"}
    needed |= {"memory_id": 10**9, "content": "I live in Lisbon."}
    for tool in tools:
        if tool.name == "forget":
            continue
        arguments = {name: needed[name] for name in tool.input_schema.get("required", ())}
        nothing = {name: None for name in tool.input_schema["properties"] if (tool.name, name) in left_out}
        expected, found = call(tool.name, **arguments), call(tool.name, **arguments, **nothing)
        assert found.is_error == expected.is_error, found.content[0].text
    erased = call("forget", memory_id=None, session_key="chat", confirm=None, namespace=None)
    assert not erased.is_error, erased.content[0].text
    assert here.sql("SELECT count(*) FROM sessions WHERE session_key = 'chat'") == [(0,)]
    with_one = call("forget", memory_id=0)
    assert "greater than or equal to 1" in with_one.content[0].text


def test_over_standard_input_and_output(here: Sandbox) -> None:
    command = [sys.executable, "-m", "nexus_tasks.cli.main", "mcp", "--namespace", NAMESPACE]
    started = StdioServerParameters(command=command[0], args=command[1:], env=here.environment, cwd=here.folder)

    async def talk(client: Client) -> tuple[set[str], Any, Any]:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["recall"].output_schema
        await client.call_tool("remember", {"text": "Deploys happen on Tuesdays."})
        found = await client.call_tool("recall", {"query": "deploys"})
        return set(tools), found, (await client.list_resources()).resources

    tools, found, resources = using(Client(started), talk)
    assert tools == TOOLS
    assert "Tuesdays" in found.structured_content["results"][0]["cited"]
    assert len(resources) == 2


# --- over HTTP --------------------------------------------------------------------------------------------------------
@contextmanager
def serving(namespace: str) -> Iterator[str]:
    """A server on a port of its own, as ``nexus mcp --http`` runs it."""
    with served(
        lambda port: http.application(server(namespace), TOKEN, LOOPBACK, port, allowed=["memory.example"])
    ) as port:
        yield f"http://{LOOPBACK}:{port}{http.PATH}"


@asynccontextmanager
async def transport(url: str, **headers: str) -> AsyncIterator[Any]:
    """A transport that sends ``headers`` along."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


@pytest.mark.usefixtures("here")
def test_over_http_behind_a_token() -> None:
    async def talk(client: Client) -> Any:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        await client.call_tool("remember", {"text": "Deploys happen on Tuesdays."})
        return await client.call_tool("recall", {"query": "deploys"})

    with serving(NAMESPACE) as url:
        found = using(Client(transport(url, Authorization=f"Bearer {TOKEN}")), talk)
        assert "Tuesdays" in found.structured_content["results"][0]["cited"]
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        right = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}
        port = url.split(":")[2].split("/")[0]
        for headers, status in (
            ({}, 401),
            ({"Authorization": f"Bearer {TOKEN}x"}, 401),
            ({"Authorization": TOKEN}, 401),
            ({"Authorization": "Bearer \xff"}, 401),
            ({"Host": "evil.example"}, 401),
            (right | {"Host": "evil.example"}, 421),
            (right | {"Host": f"evil.example:{port}"}, 421),
            (right | {"Origin": "http://evil.example"}, 403),
        ):
            encoded = {name: value.encode("latin-1") for name, value in headers.items()}
            assert httpx2.post(url, json=body, headers=encoded).status_code == status, headers
        for allowed in ({"Host": "memory.example"}, {"Origin": f"http://localhost:{port}"}, {}):
            assert httpx2.post(url, json=body, headers=right | allowed).status_code not in (401, 403, 421)


@pytest.mark.long
def test_over_http_as_a_process_of_its_own(here: Sandbox) -> None:
    """As an operator starts it: the command, a port that is free, and the SDK's client."""
    command = [sys.executable, "-m", "nexus_tasks.cli.main", "mcp", "--http", "0", "--namespace", NAMESPACE]
    log = here.folder / "mcp.log"
    with log.open("wb") as told:
        environment = here.environment | {"NEXUS_MCP_TOKEN": TOKEN}
        process = subprocess.Popen(command, env=environment, cwd=here.folder, stderr=told)

    def address() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        return re.search(r"http://127\.0\.0\.1:\d+/mcp", log.read_text())

    try:
        found = eventually(address, within=120)
        assert found

        async def talk(client: Client) -> Any:
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
            await client.call_tool("remember", {"text": "Deploys happen on Tuesdays."})
            return await client.call_tool("recall", {"query": "deploys"})

        hits = using(Client(transport(found[0], Authorization=f"Bearer {TOKEN}")), talk)
        assert "Tuesdays" in hits.structured_content["results"][0]["cited"]
        assert httpx2.post(found[0], json={}, timeout=60).status_code == 401
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    assert here.sql("SELECT content FROM memories WHERE level = 'raw'") == [("Deploys happen on Tuesdays.",)]


def test_an_address_that_is_taken_is_said() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}.*--http"):
            http.serve(server(NAMESPACE), TOKEN, LOOPBACK, port)


def test_no_token_no_http(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="NEXUS_MCP_TOKEN"):
        http.application(server(None), "", LOOPBACK, 0)
    assert "NEXUS_MCP_TOKEN" not in here.environment
    ran = CliRunner().invoke(app, ["mcp", "--http", "0"])
    assert isinstance(ran.exception, ConfigurationError)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "nexus_tasks.integrations.mcp.server")
    ran = CliRunner().invoke(app, ["mcp"])
    assert "nexus-tasks[mcp]" in str(ran.exception)


def test_the_address_is_this_machine_unless_told_otherwise() -> None:
    assert address("8000") == address(":8000") == ("127.0.0.1", 8000)
    assert address("0.0.0.0:80") == ("0.0.0.0", 80)
    assert address("[::1]:80") == ("::1", 80)
    for wrong in ("", "localhost", "a:b", "a:99999"):
        with pytest.raises(InvalidInput, match="address"):
            address(wrong)
