"""Access tokens of namespaces: one namespace, the given scopes, until their end; and the secret is stored nowhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from nexus_tasks import Nexus
from nexus_tasks.errors import InvalidInput, NotFound
from nexus_tasks.integrations.mcp import http
from nexus_tasks.integrations.mcp.server import SCOPES, digest_uri, server
from nexus_tasks.integrations.serving.access import current
from nexus_tasks.integrations.serving.listening import LOOPBACK
from nexus_tasks.services.access import TokenChecker
from nexus_tasks.types import NewToken
from tests.commandline import nexus as command
from tests.integration.inline import say, work
from tests.integration.served import served
from tests.integration.test_mcp import transport, using
from tests.sandbox import Sandbox

STATIC = "the-operators-own-token"


@contextmanager
def serving(here: Sandbox, namespace: str | None = None, static: str = "") -> Iterator[tuple[str, TokenChecker]]:
    """A server that takes the tokens of namespaces."""
    checker = TokenChecker(here.deployment)
    with served(lambda port: http.application(server(namespace), static, LOOPBACK, port, checker=checker)) as port:
        yield f"http://{LOOPBACK}:{port}{http.PATH}", checker


def ask(url: str, token: str, tool: str, **arguments: Any) -> Any:
    """The result of a tool over HTTP."""
    client = Client(transport(url, Authorization=f"Bearer {token}"))
    return using(client, lambda connected: connected.call_tool(tool, arguments))


def status(url: str, token: str) -> int:
    """The HTTP status of a ping."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    return httpx2.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers).status_code


def actions(nexus: Nexus, **wanted: Any) -> list[str]:
    """The actions of the audit log with their reasons, oldest first."""
    return [f"{one.action} {one.reason}".strip() for one in reversed(nexus.audit(**wanted))]


def tokens_of(nexus: Nexus, **scopes: list[str]) -> dict[str, NewToken]:
    """A token for each name, in a namespace of that name."""
    return {name: nexus.create_token(name, "agent", scopes=wanted) for name, wanted in scopes.items()}  # type: ignore[arg-type]


def test_the_secret_is_shown_once_and_stored_nowhere(here: Sandbox) -> None:
    nexus = Nexus()
    nexus.create_namespace("acme")
    made = nexus.create_token("acme", "support agent", scopes=["write", "read"])
    rotated = nexus.rotate_token("acme", made.id)
    assert made.scopes == ("read", "write")
    assert made.token != rotated.token
    tables = [name for (name,) in here.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    stored = " ".join(str(here.sql(f'SELECT t::text FROM "{table}" AS t')) for table in tables)
    for one in (made, rotated):
        secret = one.token.split("_", 2)[2]
        assert len(secret) == 43  # 256 bits
        assert one.token not in repr(one)
        assert one.to_dict()["token"] == one.token
        assert secret not in stored
        assert secret not in str(nexus.tokens("acme")) + str(nexus.audit())


def test_names_are_unique_among_valid_tokens(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    nexus = Nexus()
    nexus.create_namespace("acme")
    nexus.create_namespace("other")
    first = nexus.create_token("acme", "agent")
    with pytest.raises(InvalidInput, match="already"):
        nexus.create_token("acme", "agent")
    nexus.create_token("other", "agent")
    assert nexus.revoke_token("acme", first.id).revoked_at
    second = nexus.create_token("acme", "agent")
    assert [one.id for one in nexus.tokens("acme")] == [second.id, first.id]
    for wrong in ({"scopes": []}, {"scopes": ["all"]}, {"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}):
        with pytest.raises(InvalidInput):
            nexus.create_token("acme", "another", **wrong)  # type: ignore[arg-type]
    for call in (nexus.rotate_token, nexus.revoke_token):
        with pytest.raises(NotFound):
            call("other", second.id)
    with pytest.raises(NotFound, match="revoked"):
        nexus.rotate_token("acme", first.id)
    with pytest.raises(NotFound):
        nexus.create_token("nowhere", "agent")


def test_a_token_ends_by_rotation_revocation_and_the_clock_of_postgres(here: Sandbox) -> None:
    nexus = Nexus()
    nexus.create_namespace("acme")
    checker = TokenChecker(here.deployment)
    made = nexus.create_token("acme", "agent", expires_at=datetime.now(UTC) + timedelta(days=1))
    assert checker.check(made.token).namespace == "acme"
    after = nexus.rotate_token("acme", made.id, grace=3_600)
    assert [checker.check(one.token).refusal for one in (made, after)] == ["", ""]
    here.sql("UPDATE tokens SET previous_until = now() - interval '1 s'")
    assert [checker.check(one.token).refusal for one in (made, after)] == ["unknown", ""]
    last = nexus.rotate_token("acme", made.id)
    assert [checker.check(one.token).refusal for one in (after, last)] == ["unknown", ""]
    here.sql("UPDATE tokens SET expires_at = now()")
    assert checker.check(last.token).refusal == "expired"
    nexus.revoke_token("acme", made.id)
    assert checker.check(last.token).refusal == "revoked"
    for wrong in ("", "nexus_", made.token[:-1], made.token + "x", made.token.replace(made.id, "0" * 16)):
        assert checker.check(wrong).refusal == "unknown"


def test_each_tool_wants_its_scope(here: Sandbox) -> None:
    nexus = Nexus()
    message, _ = say("I like tea.", "I live in Porto.")
    work("derive_memory")
    [(fact,)] = here.sql("SELECT id FROM memories WHERE level = 'explicit' AND content LIKE '%Porto%'")
    calls: dict[str, dict[str, Any]] = {
        "remember": {"text": "Deploys happen on Tuesdays."},
        "recall": {"query": "tea"},
        "context": {},
        "profile": {"subject": "ann"},
        "ask": {"question": "Where does ann live?"},
        "pin": {"memory_id": fact},
        "revise": {"memory_id": fact, "content": "I live in Lisbon."},
        "memory_status": {},
        "digest_session": {"session_key": "chat", "wait_seconds": 0},
        "forget": {"memory_id": message},
    }
    assert calls.keys() == SCOPES.keys()
    with serving(here) as (url, checker):
        for granted in (["read"], ["write"], ["erase"], ["read", "write"]):
            token = nexus.create_token("acme", "-".join(granted), scopes=granted).token  # type: ignore[arg-type]
            client = Client(transport(url, Authorization=f"Bearer {token}"))
            listed = using(client, lambda connected: connected.list_tools()).tools
            allowed = {tool for tool, wanted in SCOPES.items() if set(wanted) <= set(granted)}
            assert {tool.name for tool in listed} == allowed
            for tool, arguments in calls.items():
                done = ask(url, token, tool, **arguments)
                assert done.is_error == (tool not in allowed), (granted, tool, done.content[0].text)
                assert not done.is_error or "lacks the scope" in done.content[0].text
        checker.write_refusals()
    refused = {(one.token_name, one.reason): one.count for one in nexus.audit(action="token.refuse")}
    assert refused["read", "write"] == 4  # remember, digest_session, revise, pin
    assert refused["write", "read"] == 8
    remembered = here.sql("SELECT count(*) FROM memories WHERE level = 'raw' AND content LIKE 'Deploys%'")
    assert remembered == [(1,)]  # twice, by two tokens


def test_a_token_never_leaves_its_namespace(here: Sandbox) -> None:
    nexus = Nexus()
    [theirs] = say("A secret of others.", namespace="others")
    say("I like tea.")
    made = tokens_of(nexus, acme=["read", "write", "erase"], others=["read"])
    mine = made["acme"].token
    with serving(here) as (url, checker):
        for tool, arguments in (
            ("remember", {"text": "I was here."}),
            ("recall", {"query": "secret"}),
            ("context", {}),
            ("memory_status", {}),
            ("digest_session", {"session_key": "chat", "wait_seconds": 0}),
            ("forget", {"memory_id": theirs}),
            ("forget", {"everything": True, "confirm": "others"}),
        ):
            done = ask(url, mine, tool, namespace="others", **arguments)
            assert done.is_error, tool
            assert "acme only" in done.content[0].text
        assert ask(url, mine, "forget", memory_id=theirs).is_error
        assert "others" not in ask(url, mine, "recall", query="secret of others").content[0].text

        async def read(client: Client) -> None:
            with pytest.raises(MCPError, match="acme only"):
                await client.read_resource(digest_uri("others", "chat"))

        using(Client(transport(url, Authorization=f"Bearer {mine}")), read)
        checker.write_refusals()
    assert [one.count for one in nexus.audit("acme", action="token.refuse")] == [8]
    with serving(here, "acme") as (url, checker):  # a server that is bound takes tokens of its namespace only
        assert status(url, mine) == 200
        assert status(url, made["others"].token) == 401
        checker.write_refusals()
    assert "token.refuse namespace" in actions(nexus, namespace="others")
    assert here.sql("SELECT count(*) FROM memories WHERE level = 'raw'") == [(2,)]


def test_two_tokens_at_once_do_not_mix(here: Sandbox) -> None:
    nexus = Nexus()
    names = [f"tenant-{n}" for n in range(4)]
    for name in names:
        say(f"The word of {name} is {name}-word.", namespace=name)
    made = tokens_of(nexus, **{name: ["read"] for name in names})
    with serving(here) as (url, _):

        async def many(name: str) -> list[str]:
            async with Client(transport(url, Authorization=f"Bearer {made[name].token}")) as client:
                found = [await client.call_tool("recall", {"query": "the word"}) for _ in range(8)]
            return [one.structured_content["namespace"] for one in found]

        async def all_at_once() -> list[list[str]]:
            return await asyncio.gather(*(many(name) for name in names))

        assert asyncio.run(all_at_once()) == [[name] * 8 for name in names]


def test_the_operators_token_and_tokens_of_namespaces_work_side_by_side(here: Sandbox) -> None:
    nexus = Nexus()
    say("I like tea.")
    say("I like coffee.", namespace="others")
    token = nexus.create_token("acme", "agent").token
    with serving(here, static=STATIC) as (url, _):
        for namespace in ("acme", "others"):
            assert not ask(url, STATIC, "recall", query="like", namespace=namespace).is_error
        assert not ask(url, token, "recall", query="like").is_error
        assert [status(url, one) for one in (STATIC, token, token[:-1], STATIC + "x", "x")] == [200, 200, 401, 401, 401]
        nexus.revoke_token("acme", nexus.tokens("acme")[0].id)
        assert status(url, token) == 401
    client = server("acme")
    client.memory.needs_access = True  # as over HTTP: what reaches a tool past the check of tokens may do nothing
    assert current.get() is None
    done = using(Client(client), lambda connected: connected.call_tool("recall", {"query": "tea"}))
    assert done.is_error
    assert "no token" in done.content[0].text


def test_uses_are_noted_once_a_day_and_refusals_are_counted(here: Sandbox) -> None:
    nexus = Nexus()
    nexus.create_namespace("acme")
    made = nexus.create_token("acme", "agent")
    with serving(here) as (url, checker):
        assert [status(url, made.token) for _ in range(3)] == [200] * 3
        for _ in range(5):
            assert status(url, made.token[:-2] + "xx") == 401
        checker.write_refusals()
    assert actions(nexus) == ["token.create", "token.use", "token.refuse unknown"]
    assert [one.count for one in nexus.audit(action="token.refuse")] == [5]
    assert nexus.audit(action="token.refuse")[0].namespace is None
    [used] = nexus.audit("acme", action="token.use")
    assert (used.token_id, used.token_name, used.actor) == (made.id, "agent", "token")
    [info] = nexus.tokens("acme")
    assert info.last_used_at is not None
    assert (info.last_used_at.minute, info.last_used_at.second) == (0, 0)
    here.sql("UPDATE tokens SET last_used_at = last_used_at - interval '1 day'")
    with serving(here) as (url, _):
        assert status(url, made.token) == 200
    assert [one.count for one in nexus.audit("acme", action="token.use")] == [2]  # the clock did not move to a new day


def test_the_commands(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    assert command("namespaces", "create", "acme").returncode == 0
    made = command("tokens", "create", "agent", "--namespace", "acme", "--scope", "read", "--expires", "30d")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("nexus_")
    assert "not shown again" in made.stderr
    token_id = made.stdout.split("_")[1]
    [listed] = json.loads(command("tokens", "list", "--namespace", "acme", "--json").stdout)["tokens"]
    assert (listed["id"], listed["scopes"]) == (token_id, ["read"])
    assert "token" not in listed
    rotated = command("tokens", "rotate", token_id, "--namespace", "acme", "--grace", "12h", "--json")
    assert json.loads(rotated.stdout)["token"].startswith(f"nexus_{token_id}_")
    assert command("tokens", "revoke", token_id, "--namespace", "acme").returncode == 0
    assert "revoked" in command("tokens", "list", "--namespace", "acme").stdout
    found = json.loads(command("audit", "--namespace", "acme", "--action", "token", "--json").stdout)["entries"]
    assert [one["action"] for one in found] == ["token.revoke", "token.rotate", "token.create"]
    assert {one["actor"] for one in found} == {"operator"}
    assert "token.rotate" in command("audit").stdout
    for wrong in (("--scope", "all"), ("--expires", "soon"), ("--expires", "9999999999d")):
        assert command("tokens", "create", "x", "--namespace", "acme", *wrong).returncode == 2
    assert command("tokens", "create", "x", "--namespace", "nowhere").returncode == 1
