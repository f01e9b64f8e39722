"""What is streamed: answers, the progress of jobs, exports and imports; and the bounds of long calls."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from nexus_tasks import Nexus, limits
from nexus_tasks.errors import NexusError
from nexus_tasks.integrations.http import progress
from nexus_tasks.services import intake
from nexus_tasks.services.ingestion import SessionWriter
from tests.integration.http_client import api, ok
from tests.integration.inline import NAMESPACE, facts, say, work
from tests.sandbox import Sandbox, eventually

SPACE = {"namespace": NAMESPACE}
EVENTS = {"Accept": "text/event-stream"}


def events(response: httpx2.Response) -> Iterator[tuple[str, Any]]:
    """The events of a stream."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_an_answer_comes_in_one_piece_or_sentence_by_sentence(here: Sandbox) -> None:
    say("My sister Clara got married in Porto.")
    work("derive_memory")
    asked = {**SPACE, "question": "Where did Clara get married?"}
    with api(here) as client:
        whole = ok(client.post("/v1/ask", json=asked))
        assert whole["remembered"]
        with client.stream("POST", "/v1/ask", json=asked, headers=EVENTS) as response:
            *sentences, last = events(response)
        assert [one["text"] for _, one in sentences] == [one["text"] for one in whole["sentences"]]
        assert {name for name, _ in sentences} == {"sentence"}
        assert (last[0], last[1]["text"]) == ("answer", whole["text"])
        missing = client.post("/v1/ask", json={"namespace": "nobody", "question": "x"}, headers=EVENTS)
        assert (missing.status_code, missing.json()["type"]) == (404, "urn:nexus-tasks:NotFound")


def test_an_error_behind_a_sentence_is_the_last_event(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    say("My sister Clara got married in Porto.")
    work("derive_memory")
    real = Nexus.ask

    def broken(self: Nexus, *args: Any, **given: Any) -> Any:
        real(self, *args, **given)
        raise NexusError("It broke.", remedy="Mend it.")

    monkeypatch.setattr(Nexus, "ask", broken)
    with api(here) as client:
        asked = {**SPACE, "question": "Where did Clara get married?"}
        with client.stream("POST", "/v1/ask", json=asked, headers=EVENTS) as response:
            *_, (name, last) = events(response)
    assert (name, last["remedy"]) == ("problem", "Mend it.")


def test_the_progress_of_a_job_until_its_end(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOOK_EVERY", 0.05)
    say(*(f"I visited the town number {n} in May." for n in range(9)))
    job = Nexus(here.deployment).digest(NAMESPACE, "chat")
    with api(here) as client:
        seen = []
        with client.stream("GET", f"/v1/jobs/{job.job_id}/events") as response:
            for name, one in events(response):
                seen.append((name, one["status"]))
                if len(seen) == 1:
                    work()
        assert (seen[0][0], seen[-1]) == ("job", ("end", "completed"))
        assert client.get("/v1/jobs/nothing/events").status_code == 404


def test_an_export_streams_into_an_import(here: Sandbox) -> None:
    say(*(f"I keep thing {n} on shelf {n}." for n in range(40)))
    work()
    with api(here) as client:
        exported = client.get("/v1/export", params=SPACE)
        assert exported.headers["Content-Type"] == "application/x-ndjson"
        assert len(exported.text.splitlines()) > 40
        read = ok(client.post("/v1/import", params={"namespace": "copy"}, content=exported.content))
        of_space = "SELECT count(*) FROM memories JOIN namespaces n ON n.id = namespace_id WHERE n.name = :name"
        assert [(read["rows"]["memories"],)] == here.sql(of_space, name=NAMESPACE)  # also those that were superseded
        again = client.post("/v1/import", params={"namespace": "copy"}, content=exported.content)
        assert again.status_code == 422
        cut = client.post("/v1/import", params={"namespace": "cut"}, content=exported.content[:-200])
        assert cut.status_code == 422
        assert client.get("/v1/export", params={"namespace": "nobody"}).status_code == 404
    copied = Nexus(here.deployment).memories("copy", levels=["explicit"])
    assert {one.content for one in copied} == {one.content for one in facts()}


def test_a_client_that_leaves_an_export_ends_it(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    say("I like tea.")
    ended = threading.Event()

    def endless(_self: Nexus, _namespace: str, path: Any, **_given: Any) -> None:
        try:
            while True:
                path.write("x" * 100_000)
        except BrokenPipeError:
            ended.set()
            raise

    monkeypatch.setattr(Nexus, "export", endless)
    with api(here) as client:
        with client.stream("GET", "/v1/export", params=SPACE) as response:
            next(response.iter_bytes())
        assert ended.wait(60)
        assert ok(client.get("/v1/namespace", params=SPACE))


def test_a_longer_import_is_refused(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_IMPORT_BYTES", 1_000)
    with api(here) as client:
        refused = client.post("/v1/import", params=SPACE, content=b"x" * 2_000)
        assert (refused.status_code, "nexus import" in refused.json()["remedy"]) == (413, True)
        monkeypatch.setattr(limits, "HTTP_BODY_BYTES", 1_000)
        assert client.post("/v1/memories", content=b"x" * 2_000).status_code == 413


def test_long_calls_leave_threads_to_the_others(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_LONG_CALLS", 2)
    say("I like tea.")
    held, begun = threading.Event(), threading.Semaphore(0)

    def slow(*_args: object, **_given: object) -> None:
        begun.release()
        held.wait(60)
        raise NexusError("late")

    monkeypatch.setattr(Nexus, "ask", slow)
    asked = {**SPACE, "question": "tea?"}
    with api(here) as client, ThreadPoolExecutor() as pool:
        waiting = [pool.submit(client.post, "/v1/ask", json=asked) for _ in range(2)]
        try:
            assert all(begun.acquire(timeout=60) for _ in waiting)
            refused = client.post("/v1/ask", json=asked)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
            assert ok(client.post("/v1/search", json={**SPACE, "query": "tea"}))["results"]
        finally:
            held.set()
        assert {one.result(60).status_code for one in waiting} == {500}
        eventually(lambda: client.post("/v1/ask", json=asked).status_code == 500, within=30)


def test_a_call_without_an_answer_in_time_is_a_problem(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_ANSWER_SECONDS", 0.2)
    say("I like tea.")
    held = threading.Event()
    monkeypatch.setattr(Nexus, "search", lambda *_args, **_given: held.wait(60))
    with api(here) as client:
        late = client.post("/v1/search", json={**SPACE, "query": "tea"})
        held.set()
        assert (late.status_code, late.json()["type"]) == (504, "urn:nexus-tasks:WaitTimeout")


def test_a_call_with_a_long_body_has_the_time_of_a_long_call(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(intake, "without_secrets", _slowly(1.0, intake.without_secrets))
    said = {**SPACE, "session_key": "log", "messages": [{"content": f"Ship {n}."} for n in range(4_000)]}
    with api(here) as client:
        assert ok(client.post("/v1/messages", json=said))["stored"] == 4_000


def test_after_messages_without_an_answer_in_time_a_repeat_stores_nothing_twice(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(SessionWriter, "enqueue", _slowly(1.0, SessionWriter.enqueue))  # behind the commit
    said = {**SPACE, "session_key": "log", "messages": [{"content": "Ship 1.", "id": "1"}, {"content": "Ship 2."}]}
    with api(here) as client:
        late = client.post("/v1/messages", json=said)
        assert late.status_code == 504
        assert "may be stored already" in late.json()["detail"]
        assert "Send the same messages to the same session again" in late.json()["remedy"]
        monkeypatch.setattr(limits, "HTTP_ANSWER_SECONDS", 60)
        again = ok(client.post("/v1/messages", json=said))
        assert (again["stored"], again["duplicates"]) == (0, 2)


def _slowly(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*args: Any, **given: Any) -> Any:
        time.sleep(seconds)
        return function(*args, **given)

    return slow
