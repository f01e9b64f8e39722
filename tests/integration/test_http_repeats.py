"""Idempotency keys: a repeat gets the same answer, and what holds after a crash between the effect and the answer."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from nexus_tasks import Nexus, limits
from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency import kept_answers
from nexus_tasks.types import Receipt
from tests.integration.http_client import TOKEN, api, as_token, ok
from tests.integration.inline import NAMESPACE, facts, say, work
from tests.sandbox import Sandbox, eventually

SPACE = {"namespace": NAMESPACE}


def key(name: str = "k1", token: str = TOKEN) -> dict[str, str]:
    return {"Idempotency-Key": name, **as_token(token)}


def remember(client: httpx2.Client, text: str = "Ann likes tea.", **headers: str) -> httpx2.Response:
    return client.post("/v1/memories", json={**SPACE, "text": text}, headers=headers)


def test_a_repeat_gets_the_kept_answer_and_another_body_is_refused(here: Sandbox) -> None:
    with api(here) as client:
        first = remember(client, **key())
        again = remember(client, **key())
        assert (first.status_code, again.json()) == (200, first.json())
        assert first.json()["stored"] == 1  # without the key the repeat would have been a duplicate
        assert (again.headers["Idempotency-Replayed"], "Idempotency-Replayed" in first.headers) == ("true", False)
        other = remember(client, "Ann likes coffee.", **key())
        assert (other.status_code, "new key" in other.json()["remedy"]) == (422, True)
        assert remember(client, **key("x" * 257)).status_code == 422
    assert here.sql("SELECT count(*) FROM memories") == [(1,)]


def test_keys_of_two_tokens_are_two_keys(here: Sandbox) -> None:
    nexus = Nexus(here.deployment)
    tokens = []
    for name in ("acme", "bank"):
        nexus.create_namespace(name)
        tokens.append(nexus.create_token(name, "agent", scopes=["write"]).token)
    with api(here) as client:
        for token in tokens:
            body = {"text": "Ann likes tea."}
            assert ok(client.post("/v1/memories", json=body, headers=key(token=token)))["stored"] == 1


def test_a_concurrent_duplicate_is_told_to_wait(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    held, begun, real = threading.Event(), threading.Event(), Nexus.remember

    def slow(self: Nexus, *args: Any, **given: Any) -> Receipt:
        begun.set()
        held.wait(60)
        return real(self, *args, **given)

    monkeypatch.setattr(Nexus, "remember", slow)
    with api(here) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(remember, client, **key())
        assert begun.wait(60)
        second = remember(client, **key())
        assert (second.status_code, second.json()["type"]) == (409, "urn:nexus-tasks:RequestRunning")
        held.set()
        assert first.result(60).status_code == 200
        assert remember(client, **key()).json() == first.result().json()


def test_a_request_without_an_answer_in_time_keeps_its_key_while_its_work_goes_on(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, calls, real = threading.Event(), list[None](), Nexus.remember

    def slow(self: Nexus, *args: Any, **given: Any) -> Receipt:
        calls.append(None)
        held.wait(60)
        return real(self, *args, **given)

    monkeypatch.setattr(Nexus, "remember", slow)
    monkeypatch.setattr(limits, "HTTP_ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(kept_answers, "LEASE", 1.0)
    monkeypatch.setattr(kept_answers, "RENEW_EVERY", 0.2)
    with api(here) as client:
        assert remember(client, **key()).status_code == 504
        time.sleep(1.5)  # longer than the lease
        assert remember(client, **key()).json()["type"] == "urn:nexus-tasks:RequestRunning"
        monkeypatch.setattr(limits, "HTTP_ANSWER_SECONDS", 60)
        held.set()
        again = eventually(lambda: (found := remember(client, **key())).status_code == 200 and found, within=30)
        assert (again.json()["stored"], again.json()["duplicates"], len(calls)) == (0, 1, 2)


def test_a_failed_request_frees_its_key(here: Sandbox) -> None:
    with api(here) as client:
        wrong = client.post("/v1/memories", json={**SPACE, "text": ""}, headers=key())
        assert wrong.status_code == 422
        missing = client.post("/v1/session/end", json={**SPACE, "session_key": "none"}, headers=key())
        assert missing.status_code == 404
        assert remember(client, **key()).json()["stored"] == 1


def test_after_a_crash_behind_the_effect_a_repeat_is_served_anew(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before it keeps the answer: the key stays taken for its lease, then the request runs again."""

    def died(*_args: object) -> None:
        raise QueueUnavailable

    monkeypatch.setattr(kept_answers, "keep", died)
    monkeypatch.setattr(kept_answers, "LEASE", 0.2)
    said = {**SPACE, "session_key": "chat", "messages": [{"content": "I like tea.", "id": "m1"}]}
    with api(here) as client:
        first = client.post("/v1/messages", json=said, headers=key())
        assert ok(first)["stored"] == 1
        while (again := client.post("/v1/messages", json=said, headers=key())).status_code == 409:
            pass
        assert (ok(again)["stored"], again.json()["duplicates"]) == (0, 1)  # by the message's id
    assert here.sql("SELECT count(*) FROM memories") == [(1,)]


@pytest.mark.parametrize(
    "written",
    [
        {"status": "x", "body": "{}"},
        {"status": 99_999, "body": "{}"},
        {"status": -1, "body": None},
        {"status": None, "body": "{}"},
        {"status": 200, "body": {"a": 1}},
        {"status": 200, "body": "\ud800"},
    ],
)
def test_an_answer_that_another_program_wrote_is_no_answer(here: Sandbox, written: dict[str, Any]) -> None:
    with api(here) as client:
        assert remember(client, **key()).status_code == 200
        [name] = here.redis().keys(f"{here.name}:answer:*")
        request = json.loads(here.redis().get(name))["request"]
        here.redis().set(name, json.dumps({"request": request, **written}))
        assert ok(remember(client, **key()))["duplicates"] == 1
        assert json.loads(here.redis().get(name))["status"] == 200


def test_no_content_and_no_secret_is_kept(here: Sandbox) -> None:
    say("I live in Porto.")
    work("derive_memory")
    memory = facts()[0].id
    with api(here) as client:
        revise = {**SPACE, "content": "Ann lives in the town of Braga."}
        first, again = (client.patch(f"/v1/memories/{memory}", json=revise, headers=key()) for _ in range(2))
        assert ok(first)["content"] == ok(again)["content"]
        token = {**SPACE, "name": "agent", "scopes": ["read"]}
        made = ok(client.post("/v1/tokens", json=token, headers=key("k2")))["token"]
        refused = client.post("/v1/tokens", json=token, headers=key("k2"))
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:nexus-tasks:AnswerNotKept")
    redis = here.redis()
    kept = [redis.get(name) for name in redis.keys(f"{here.name}:answer:*")]
    assert len(kept) == 2
    assert not any(word in str(kept) for word in ("Braga", made))
    assert all(0 < redis.ttl(name) <= 86_400 for name in redis.keys(f"{here.name}:answer:*"))


def test_a_token_has_room_for_so_many_answers(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, one tenant's answers of a day could fill Redis, which has the jobs of all tenants."""
    redis = here.redis()

    def kept_for() -> list[int]:
        return sorted(redis.ttl(name) for name in redis.keys(f"{here.name}:answer:*"))

    with api(here) as client:
        assert remember(client, **key("k1")).status_code == 200
        [name] = redis.keys(f"{here.name}:answer:*")
        [used] = redis.keys(f"{here.name}:answers:*")
        assert 0.5 < redis.memory_usage(name) / int(redis.get(used)) < 1.5
        assert kept_for()[0] > 80_000
        monkeypatch.setattr(limits, "HTTP_ANSWERS_KEPT_BYTES", int(redis.get(used)) + 1)
        first = remember(client, "Ann likes rum.", **key("k2"))
        assert remember(client, "Ann likes rum.", **key("k2")).json() == first.json()
    assert kept_for()[0] <= 600
    assert kept_for()[1] > 80_000
    assert 80_000 < redis.ttl(used) <= 86_400


def test_without_redis_a_key_is_refused_and_nothing_is_done(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_args: object) -> None:
        raise QueueUnavailable

    monkeypatch.setattr(kept_answers, "take", away)
    with api(here) as client:
        refused = remember(client, **key())
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert remember(client).json()["stored"] == 1
