"""Nothing crosses keys: each route with the token of another namespace, without the scope, and beyond the rate."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.integrations.http.application import application
from nexus_tasks.integrations.http.serve import serve
from nexus_tasks.types import Message
from tests.integration.http_client import api, as_token, described, ok
from tests.integration.inline import say, work
from tests.sandbox import Sandbox

SECRET = "The vault opens with the word heron."
ROUTES = [
    (method.upper(), path, one) for path, methods in described()["paths"].items() for method, one in methods.items()
]
# Fields that a body must have, besides the namespace.
BODIES: dict[str, Any] = {
    "session_key": "vault",
    "messages": [{"content": "I was here."}],
    "text": "I was here.",
    "query": "vault",
    "question": "vault",
    "content": "I was here.",
    "reflection": 1,
    "name": "thief",
    "filename": "user.md",
    "new_filename": "thief.md",
    "url": "https://thief.example",
}
QUERIES = {"namespace": "thief", "session_key": "vault", "subject": "ann", "filename": "user.md", "confirm": "bank"}


Route = tuple[str, str, dict[str, Any]]


def called(client: httpx2.Client, route: Route, ids: dict[str, Any], token: str, **given: str) -> httpx2.Response:
    """The answer of a route, called with all that it requires and the namespace ``given``, if any."""
    method, path, one = route
    headers = as_token(token)
    query = {p["name"]: QUERIES[p["name"]] for p in one.get("parameters", ()) if p["in"] == "query" and p["required"]}
    body = None
    if found := one.get("requestBody", {}).get("content", {}).get("application/json"):
        schema = described()["components"]["schemas"][found["schema"]["$ref"].rpartition("/")[2]]
        body = {name: BODIES[name] for name in schema.get("required", ()) if name != "namespace"}
        body |= given if "namespace" in schema["properties"] else {}
    if any(p["name"] == "namespace" for p in one.get("parameters", ())):
        query |= given
    return client.request(method, path.format(**ids), params=query, json=body, headers=headers)


def takes_a_namespace(route: Route) -> bool:
    """Whether the query or the body of a route names a namespace."""
    one = route[2]
    schema = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    body = described()["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else {}
    return "namespace" in body.get("properties", {}) or any(p["name"] == "namespace" for p in one.get("parameters", ()))


@pytest.fixture
def two(here: Sandbox) -> tuple[Nexus, str, dict[str, Any]]:
    """A bank with a secret, a thief with a token of their own namespace, and ids of what the bank has."""
    nexus = Nexus(here.deployment)
    [memory] = say({"content": SECRET, "author": "ann"}, session="vault", namespace="bank")
    say("I like tea.", namespace="thief", session="vault")
    job = nexus.digest("bank", "vault")
    token = nexus.create_token("bank", "own", scopes=["read"])
    thief = nexus.create_token("thief", "thief", scopes=["read", "write", "erase"]).token
    return nexus, thief, {"memory_id": memory, "job_id": job.job_id, "token_id": token.id, "webhook_id": "none"}


def state(nexus: Nexus) -> Any:
    """What the bank has, without what the readers themselves count."""
    report, jobs = nexus.status("bank"), nexus.jobs(namespace="bank")
    return nexus.memories("bank"), nexus.sessions("bank"), nexus.namespace("bank"), report.namespaces[0].jobs, jobs


def test_no_route_crosses_to_another_namespace(here: Sandbox, two: tuple[Nexus, str, dict[str, Any]]) -> None:
    nexus, thief, ids = two
    before = state(nexus)
    with api(here) as client:
        for route in ROUTES:
            named = called(client, route, ids, thief, namespace="bank")
            unnamed = called(client, route, ids, thief)
            for answer in (named, unnamed):
                assert "heron" not in answer.text, route
                assert answer.status_code < 500, (route, answer.text)
            if "{job_id}" in route[1]:  # it takes no namespace: the job belongs to one
                assert named.status_code == 404, (route, named.text)
            elif route[1] != "/v1/access":  # it tells of the token itself
                assert named.status_code == 403, (route, named.text)
    assert state(nexus) == before


def test_each_route_wants_its_scopes(here: Sandbox, two: tuple[Nexus, str, dict[str, Any]]) -> None:
    nexus, _, ids = two
    tokens = {scope: nexus.create_token("bank", scope, scopes=[scope]).token for scope in ("read", "write", "erase")}
    with api(here) as client:
        for route in ROUTES:
            for scope, token in tokens.items():
                if route[2].get("x-operator-only") or route[2]["security"][0]["token"] != [scope]:
                    refused = called(client, route, ids, token)
                    assert refused.status_code == 403, (route, scope, refused.text)
    refusals = [one.reason for one in nexus.audit("bank", action="token.refuse")]
    assert {"read", "write", "erase", "operator"} <= set(refusals)


def test_replacing_a_message_needs_the_scope_erase(here: Sandbox) -> None:
    """Before, a token that may only write erased each message whose id it knew."""
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme")
    writer = as_token(nexus.create_token("acme", "writer", scopes=["write"]).token)
    eraser = as_token(nexus.create_token("acme", "eraser", scopes=["write", "erase"]).token)
    said = {"session_key": "chat", "messages": [{"id": "m1", "content": "I live in Porto."}]}
    changed = {**said, "messages": [{"id": "m1", "content": "I live in Lisbon."}], "replace": True}
    with api(here) as client:
        ok(client.post("/v1/messages", json=said, headers=writer))
        refused = client.post("/v1/messages", json=changed, headers=writer)
        assert (refused.status_code, refused.json()["detail"]) == (403, "This token lacks the scope erase.")
        assert [one.content for one in nexus.session("acme", "chat").said] == ["I live in Porto."]
        assert ok(client.post("/v1/messages", json=changed, headers=eraser))["stored"] == 1
    assert [one.content for one in nexus.session("acme", "chat").said] == ["I live in Lisbon."]


@pytest.mark.parametrize("may_read", [False, True])
def test_who_may_only_write_is_told_no_stored_words(here: Sandbox, may_read: bool) -> None:
    """The error about a known id quoted the stored message. Ids such as `m1` are easy to guess."""
    nexus = Nexus(here.deployment)
    nexus.ingest("acme", "chat", [{"id": "m1", "content": "The company is sold on Friday."}])
    token = nexus.create_token("acme", "feeder", scopes=["read", "write"] if may_read else ["write"])
    with api(here, token.token) as client:
        answer = client.post("/v1/messages", json={"session_key": "chat", "messages": [{"id": "m1", "content": "?"}]})
    assert answer.status_code == 422
    assert "has the message m1 with another text" in answer.json()["detail"]
    assert ("is sold on Friday" in answer.text) == may_read


def test_a_token_needs_no_namespace_and_is_named_in_the_audit_log(here: Sandbox) -> None:
    nexus = Nexus(here.deployment)
    nexus.ingest("acme", "chat", [Message(content="I like tea.", author="ann")])
    made = nexus.create_token("acme", "agent", scopes=["read", "erase"])
    with api(here, made.token) as client:
        assert ok(client.get("/v1/status"))["namespaces"][0]["namespace"] == "acme"
        assert len(ok(client.get("/v1/jobs"))["jobs"]) == 1
        ok(client.delete("/v1/session", params={"session_key": "chat"}))
        nexus.revoke_token("acme", made.id)
        assert client.get("/v1/status").status_code == 401
    [erased] = nexus.audit("acme", action="erase")
    assert (erased.actor, erased.token_name) == ("token", "agent")


def test_beyond_the_rate_a_token_waits_and_others_do_not(deploy: Any) -> None:
    here = deploy(NEXUS_HTTP_RATE="5")
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme")
    other = nexus.create_token("acme", "agent", scopes=["read"]).token
    with api(here) as client:
        answers = [client.get("/v1/namespace", params={"namespace": "acme"}) for _ in range(30)]
        refused = [one for one in answers if one.status_code == 429]
        assert 10 <= len(refused) < 30
        assert int(refused[0].headers["Retry-After"]) >= 1
        assert client.get("/v1/namespace", headers=as_token(other)).status_code == 200


def test_other_origins_are_answered_only_when_they_are_set(deploy: Any) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    for setting, allowed in (("", None), ("https://app.example", "https://app.example")):
        here = deploy(NEXUS_HTTP_ORIGINS=setting)
        with api(here) as client:
            answer = client.options("/v1/search", headers=asked)
            assert answer.headers.get("Access-Control-Allow-Origin") == allowed
            simple = client.get("/v1/status", headers={"Origin": "https://app.example"})
            assert simple.headers.get("Access-Control-Allow-Origin") == allowed


def test_a_server_that_no_token_opens_does_not_start(here: Sandbox) -> None:
    nexus = Nexus(here.deployment)
    with pytest.raises(ConfigurationError, match="NEXUS_HTTP_TOKEN"):
        application(nexus, "")
    with pytest.raises(ConfigurationError, match="NEXUS_HTTP_TOKEN"):
        serve(nexus, "0")


def test_other_machines_want_a_strong_token(deploy: Any) -> None:
    here = deploy(NEXUS_HTTP_TOKEN="secret")
    with pytest.raises(ConfigurationError, match=r"NEXUS_HTTP_TOKEN has about .* 128 bits"):
        serve(Nexus(here.deployment), "0.0.0.0:0")


def test_work_is_done_for_whom_it_was_asked(here: Sandbox) -> None:
    """A token's messages become facts in its own namespace, although workers serve all."""
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme")
    made = nexus.create_token("acme", "agent", scopes=["read", "write"])
    with api(here, made.token) as client:
        ok(client.post("/v1/memories", json={"text": "Ann lives in Lisbon.", "author": "ann"}))
        work("derive_memory")
        assert ok(client.post("/v1/search", json={"query": "where does ann live?"}))["results"]
