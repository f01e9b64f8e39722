"""The HTTP API as a client meets it: over real HTTP, with the operator's token and with tokens of namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from nexus_tasks import Nexus
from nexus_tasks.integrations.http.application import application
from nexus_tasks.integrations.serving.listening import LOOPBACK
from nexus_tasks.services.access import TokenChecker
from tests.integration.inline import NAMESPACE, say, work
from tests.integration.served import served
from tests.sandbox import Sandbox

TOKEN = "the-operators-own-token"
JSON = {"Content-Type": "application/json"}


@contextmanager
def api(here: Sandbox, token: str = TOKEN) -> Iterator[httpx2.Client]:
    """A client of a server, with the operator's token."""
    checker = TokenChecker(here.deployment)
    with served(lambda _: application(Nexus(here.deployment), TOKEN, checker=checker)) as port:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx2.Client(base_url=f"http://{LOOPBACK}:{port}", headers=headers, timeout=60) as client:
            yield client


def ok(response: httpx2.Response) -> Any:
    """The document of an answer that is no error."""
    assert response.status_code < 300, response.text
    return response.json()


def test_a_conversation_over_http(here: Sandbox) -> None:
    with api(here) as client:
        said = [{"content": "I moved to Lisbon in March.", "author": "ann", "id": "m1"}]
        body = {"namespace": "a/b:c", "session_key": "chat/1", "messages": said}
        assert ok(client.post("/v1/messages", json=body))["stored"] == 1
        assert ok(client.post("/v1/messages", json=body))["duplicates"] == 1
        work("derive_memory")
        found = ok(client.post("/v1/search", json={"namespace": "a/b:c", "query": "where does ann live?"}))
        hit = found["results"][0]
        assert (hit["subject"], "Lisbon" in hit["content"]) == ("ann", True)
        memory = ok(client.get(f"/v1/memories/{hit['id']}", params={"namespace": "a/b:c"}))
        assert memory["evidence"][0]["external_id"] == "m1"
        block = ok(client.post("/v1/context", json={"namespace": "a/b:c", "session_key": "chat/1", "query": "ann"}))
        assert f"[m{hit['id']}]" in block["text"]
        page = ok(client.get("/v1/session", params={"namespace": "a/b:c", "session_key": "chat/1"}))
        assert page["said"][0]["content"] == said[0]["content"]
        ended = ok(client.post("/v1/session/end", json={"namespace": "a/b:c", "session_key": "chat/1"}))
        work()
        assert ok(client.get(f"/v1/jobs/{ended['job']['job_id']}"))["status"] == "completed"
        assert [one["namespace"] for one in ok(client.get("/v1/namespaces"))["namespaces"]] == ["a/b:c"]
        assert ok(client.get("/v1/status"))["namespaces"][0]["memories"]["raw"] == 1
        erased = ok(client.delete("/v1/session", params={"namespace": "a/b:c", "session_key": "chat/1"}))
        assert erased["deleted"]["sessions"] == 1


def test_pages_lead_to_the_next_one(here: Sandbox) -> None:
    say(*(f"I keep thing {n} on shelf {n}." for n in range(5)))
    with api(here) as client:
        offset, found = 0, list[int]()
        while offset is not None:
            page = ok(client.get("/v1/memories", params={"namespace": NAMESPACE, "limit": 2, "offset": offset}))
            found += [one["id"] for one in page["memories"]]
            offset = page["next_offset"]
    assert len(set(found)) == len(found) == 5


def test_errors_are_problems_with_a_remedy(here: Sandbox) -> None:
    say("I like tea.")
    space = {"namespace": NAMESPACE}
    with api(here) as client:
        for response, status, kind in (
            (client.get("/v1/memories/1", params={"namespace": "nobody"}), 404, "NotFound"),
            (client.get("/v1/memories"), 422, "InvalidInput"),
            (client.get("/v1/memories", params={"namespace": ".hidden"}), 422, "InvalidInput"),
            (client.get("/v1/memories", params={**space, "limit": -1}), 422, "InvalidInput"),
            (client.post("/v1/search", json={**space, "query": "tea", "qery": 1}), 422, "InvalidInput"),
            (client.post("/v1/search", content=b"{"), 422, "InvalidInput"),
            (client.get("/v1/memories", params={**space, "subject": "\0"}), 422, "InvalidInput"),
            (client.delete("/v1/namespace", params={**space, "confirm": "no"}), 422, "InvalidInput"),
            (client.get("/v1/nothing"), 404, ""),
            (client.put("/v1/memories"), 405, ""),
        ):
            problem = response.json()
            assert (response.status_code, response.headers["Content-Type"]) == (status, "application/problem+json")
            assert problem["type"] == (f"urn:nexus-tasks:{kind}" if kind else "about:blank"), problem
            assert problem["status"] == status
            assert problem["title"], problem["detail"]
            assert problem["remedy"]


def test_no_token_no_answer_but_health(here: Sandbox) -> None:
    with api(here, token="") as client:
        for path in ("/v1/status", "/v1", "/v1/nothing"):
            refused = client.get(path)
            assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert refused.json()["remedy"]
        assert ok(client.get("/livez")) == ok(client.get("/readyz")) == {"ok": True, "faults": []}
        assert ok(client.get("/openapi.json"))["openapi"].startswith("3.1")


def test_half_a_surrogate_pair_is_refused(here: Sandbox) -> None:
    say("I like tea.")
    with api(here) as client:
        for field in ("query", "subject", "namespace", "nothing"):
            body = rb'{"namespace": "acme", "query": "tea", "%s": "\ud800"}' % field.encode()
            assert client.post("/v1/search", headers=JSON, content=body).status_code == 422


def test_perspectives_history_and_facts_beside_messages(here: Sandbox) -> None:
    ids = say("I live in Lisbon.", "I drink green tea every morning.", end=True)
    work()
    space = {"namespace": NAMESPACE}
    with api(here) as client:
        [known] = ok(client.get("/v1/perspectives", params=space))["perspectives"]
        assert known["memories"] == 2
        [session] = ok(client.get("/v1/sessions", params=space))["sessions"]
        facts = ok(client.get("/v1/session/facts", params={**space, "session_key": session["session_key"]}))["facts"]
        assert [one["sources"] for one in facts] == [[ids[0]], [ids[1]]]
        revised = ok(client.patch(f"/v1/memories/{facts[0]['id']}", json={**space, "content": "Ann lives in Porto."}))
        levels = {**space, "levels": "explicit"}
        now = ok(client.get("/v1/memories", params=levels))["memories"]
        ever = ok(client.get("/v1/memories", params={**levels, "superseded": True}))["memories"]
        assert {one["id"] for one in now} == {facts[1]["id"], revised["id"]}
        assert {one["id"] for one in ever} == {facts[0]["id"], facts[1]["id"], revised["id"]}
