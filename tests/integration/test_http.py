"""The HTTP API as a client meets it: over real HTTP, with the operator's token and with tokens of namespaces."""

from __future__ import annotations

from nexus_tasks import Nexus
from tests.integration.http_client import api, ok
from tests.integration.inline import NAMESPACE, say, work
from tests.sandbox import Sandbox

JSON = {"Content-Type": "application/json"}


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
        assert ok(client.get("/v1/status", params={"memories": False}))["namespaces"][0]["memories"] == {}
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


def test_a_refused_method_is_told_all_methods_of_the_path(here: Sandbox) -> None:
    with api(here) as client:
        assert client.put("/v1/memories").headers["Allow"] == "GET, POST"
        assert client.put("/v1/memories/1").headers["Allow"] == "DELETE, GET, PATCH"
        assert client.put("/v1/jobs/repair").headers["Allow"] == "POST"


def test_a_number_is_no_time(here: Sandbox) -> None:
    say("I like tea.")
    space = {"namespace": NAMESPACE}
    with api(here) as client:
        for response in (
            client.get("/v1/spend", params={**space, "until": "0.5"}),
            client.get("/v1/finished-jobs", params={**space, "since": "1772323200"}),
            client.get("/v1/memories", params={**space, "as_of": "1e3"}),
            client.post("/v1/search", json={**space, "query": "tea", "until": 1_772_323_200}),
            client.post("/v1/memories", json={**space, "text": "Tea.", "expires_at": 10**400}),
        ):
            assert response.status_code == 422, response.text
            assert "a time such as 2026-03-01T12:00:00Z" in response.json()["detail"]
        ok(client.get("/v1/spend", params={**space, "until": "2026-03-01T12:00:00Z"}))


def test_no_cache_keeps_an_answer(here: Sandbox) -> None:
    with api(here) as client:
        for path in ("/v1/status", "/v1/namespace?namespace=nobody"):
            assert client.get(path).headers["Cache-Control"] == "no-store"


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


def test_every_part_of_the_client(here: Sandbox) -> None:
    """Each route once, with an answer as the document describes it (see ``conforms``)."""
    space = {"namespace": NAMESPACE}
    session = {**space, "session_key": "chat"}
    with api(here) as client:
        ok(client.post("/v1/namespaces", json={**space, "observers": ["assistant"], "concurrency": 4}))
        said = [{"content": f"I keep thing {n} on shelf {n}.", "author": "ann", "id": f"m{n}"} for n in range(6)]
        ok(client.post("/v1/messages", json={**session, "messages": said, "observe": True}))
        ok(client.post("/v1/memories", json={**space, "text": "Ann likes tea.", "author": "ann"}))
        ok(client.post("/v1/session/extract", json=session))
        job = ok(client.post("/v1/session/digest", json={**session, "rebuild": True}))
        work()
        assert ok(client.get(f"/v1/jobs/{job['job_id']}"))["status"] == "completed"
        facts = ok(client.get("/v1/memories", params={**space, "levels": ["explicit"]}))["memories"]
        pinned = ok(client.post(f"/v1/memories/{facts[0]['id']}/pin", json=space))
        assert pinned["pinned"]
        assert not ok(client.post(f"/v1/memories/{facts[0]['id']}/unpin", json=space))["pinned"]
        revised = ok(client.patch(f"/v1/memories/{facts[0]['id']}", json={**space, "content": "Ann likes coffee."}))
        assert revised["superseded"] == [facts[0]["id"]]
        assert ok(client.post("/v1/undo", json={**space, "reflection": revised["reflection"]}))["status"] == "undone"
        assert ok(client.get("/v1/profile", params={**space, "subject": "ann"}))["namespace"] == NAMESPACE
        [topic, *_] = ok(client.get("/v1/topics", params=space))["topics"]
        assert ok(client.get("/v1/topic", params={**space, "filename": topic["filename"]}))["content"]
        written = ok(client.put("/v1/topic", json={**space, "filename": "tea", "content": "Green.", "revision": 0}))
        again = {**space, "filename": "tea", "content": "Black.", "revision": 0}
        assert (written["filename"], client.put("/v1/topic", json=again).status_code) == ("tea.md", 409)
        renamed = {**space, "filename": "tea.md", "new_filename": "teas.md"}
        assert ok(client.post("/v1/topic/rename", json=renamed))["filename"] == "teas.md"
        assert ok(client.delete("/v1/topic", params={**space, "filename": "teas.md"}))["filename"] == "teas.md"
        assert ok(client.get("/v1/session", params={**session, "newest": True, "limit": 1}))["said"][0]["seq"] == 6
        assert ok(client.get("/v1/session/log", params=session))["session_key"] == "chat"
        assert not ok(client.post("/v1/session/task/clear", json=session))["cleared"]
        assert client.post("/v1/session/log/undo", json=session).status_code == 404
        dream = ok(client.post("/v1/dream", json=space))
        work()
        assert ok(client.get(f"/v1/jobs/{dream['job_id']}"))["kind"] == "finish_dream"
        assert ok(client.post("/v1/dream/plan", json=space))["namespace"] == NAMESPACE
        assert ok(client.get("/v1/jobs", params=space))["jobs"]
        assert ok(client.get("/v1/finished-jobs", params=space))["counts"]["derive_memory"]
        assert ok(client.get("/v1/spend", params=space))["cost_usd"] == 0
        assert ok(client.post("/v1/namespace/pause", json={**space, "reason": "a move"}))["reason"] == "a move"
        assert ok(client.get("/v1/status", params=space))["namespaces"][0]["paused"]
        assert ok(client.post("/v1/namespace/resume", json=space))["resumed"] == [NAMESPACE]
        assert ok(client.post("/v1/kinds/resume", json={}))["resumed"] == []
        assert ok(client.post("/v1/jobs/retry", json=space))["retried"] == 0
        assert ok(client.post("/v1/jobs/drop", json=space))["dropped"] == 0
        assert ok(client.post("/v1/jobs/repair"))["entries_put_back"] == 0
        assert ok(client.get("/v1/quarantine"))["messages"] == []
        assert ok(client.delete("/v1/quarantine"))["dropped"] == 0
        made = ok(client.post("/v1/tokens", json={**space, "name": "agent", "scopes": ["read"]}))
        rotated = ok(client.post(f"/v1/tokens/{made['id']}/rotate", json={**space, "grace": 60}))
        assert rotated["token"] != made["token"]
        assert ok(client.post(f"/v1/tokens/{made['id']}/revoke", json=space))["revoked_at"]
        assert "token" not in ok(client.get("/v1/tokens", params=space))["tokens"][0]
        assert ok(client.patch("/v1/namespace", json={**space, "unset": ["concurrency"]}))["concurrency"] is None
        assert ok(client.delete(f"/v1/memories/{facts[1]['id']}", params=space))["ids"]
        assert ok(client.delete("/v1/namespace", params={**space, "confirm": NAMESPACE}))["deleted"]
        assert ok(client.get("/v1/audit", params={**space, "action": "erase"}))["entries"][0]["action"].startswith(
            "erase"
        )
        assert ok(client.get("/v1/namespace", params=space))["memories"]["raw"] == 0


def test_dead_letters_are_retried_and_dropped(here: Sandbox) -> None:
    [message] = say("I like tea.")
    job_id = here.sql("SELECT count(*) FROM memories") and Nexus().jobs(namespace=NAMESPACE)[0].id
    with api(here) as client:
        assert ok(client.delete(f"/v1/jobs/{job_id}"))["status"] == "dropped"
        assert client.delete(f"/v1/jobs/{job_id}").status_code == 404
        assert client.post(f"/v1/jobs/{job_id}/retry", json={}).status_code == 404
    assert message
