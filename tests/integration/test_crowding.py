"""No client, with a token or without, keeps other clients of a server over HTTP waiting."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from nexus_tasks import Nexus, limits
from nexus_tasks.embeddings.hashing import HashingEmbedder
from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.claim_index import ClaimIndex
from nexus_tasks.integrations.http import documents, health, progress
from nexus_tasks.integrations.http.application import application
from nexus_tasks.integrations.http.documents import as_json
from nexus_tasks.integrations.mcp import http as mcp
from nexus_tasks.integrations.mcp.server import server
from nexus_tasks.integrations.serving import turns
from nexus_tasks.integrations.serving.listening import LOOPBACK
from nexus_tasks.llm.anthropic import AnthropicModel
from nexus_tasks.services.access import TokenChecker
from nexus_tasks.types import AnswerSentence
from tests.integration.serve_process import serve_process
from tests.integration.served import served
from tests.sandbox import Sandbox, eventually

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "memory_status", "arguments": {}}}
BOTH = {"Accept": "application/json, text/event-stream"}
STATUS: dict[str, Callable[[str, str], httpx2.Response]] = {
    "mcp": lambda url, token: httpx2.post(f"{url}/mcp", json=CALL, headers=bearer(token) | BOTH, timeout=60),
    "api": lambda url, token: httpx2.get(f"{url}/v1/status", headers=bearer(token), timeout=60),
}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def use(url: str, token: str, tool: str, **arguments: Any) -> Any:
    """The result of a tool over MCP."""
    asked = {**CALL, "params": {"name": tool, "arguments": arguments}}
    return httpx2.post(f"{url}/mcp", json=asked, headers=bearer(token) | BOTH, timeout=60).json()["result"]


@contextmanager
def serving(kind: str, here: Sandbox) -> Iterator[tuple[int, list[str]]]:
    """A server, and a token for each of two namespaces."""
    nexus, checker = Nexus(here.deployment), TokenChecker(here.deployment)
    tokens = []
    for name in ("acme", "other"):
        nexus.remember(name, f"The plan of {name}.")
        tokens.append(nexus.create_token(name, "agent", scopes=["read"]).token)

    def made(port: int) -> Any:
        if kind == "api":
            return application(nexus, "", checker=checker)
        return mcp.application(server(None), "", LOOPBACK, port, checker=checker)

    with served(made) as port:
        yield port, tokens


@pytest.mark.parametrize("kind", STATUS)
def test_slow_calls_of_a_namespace_keep_no_other_waiting(
    kind: str, here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, begun, status = threading.Event(), threading.Semaphore(0), Nexus.status

    def slow(self: Nexus, namespace: str | None = None, **options: Any) -> object:
        if namespace == "acme":
            begun.release()
            assert held.wait(60)
        return status(self, namespace, **options)

    monkeypatch.setattr(Nexus, "status", slow)
    monkeypatch.setattr(limits, "HTTP_NAMESPACE_REQUESTS", 12)
    with serving(kind, here) as (port, [acme, other]), ThreadPoolExecutor(60) as pool:
        url = f"http://{LOOPBACK}:{port}"
        calls = [pool.submit(STATUS[kind], url, acme) for _ in range(60)]
        try:
            assert all(begun.acquire(timeout=60) for _ in range(turns.AT_ONCE))
            assert pool.submit(STATUS[kind], url, other).result(30).status_code == 200
            assert not begun.acquire(blocking=False)
            done = [one for one in calls if one.done()]
            assert all(one.result().status_code == 429 for one in done)
        finally:
            held.set()
        statuses = [one.result(60).status_code for one in calls]
        assert statuses.count(200) >= limits.HTTP_NAMESPACE_REQUESTS
        assert set(statuses) <= {200, 429}
        assert STATUS[kind](url, acme).status_code == 200


@pytest.mark.parametrize("kind", STATUS)
@pytest.mark.parametrize("who", ["a namespace", "strangers"])
def test_checks_of_tokens_keep_no_other_waiting(
    kind: str, who: str, here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, all checks waited in one line: 512 connections of one token held another tenant for seconds."""
    held, look_up = threading.Event(), TokenChecker.look_up
    monkeypatch.setattr(limits, "HTTP_NAMESPACE_REQUESTS", 4)
    with serving(kind, here) as (port, [acme, other]), ThreadPoolExecutor(42) as pool:
        url = f"http://{LOOPBACK}:{port}"
        assert [STATUS[kind](url, one).status_code for one in (acme, other)] == [200, 200]

        def slow(self: TokenChecker, given: str) -> Any:
            assert given == other or held.wait(60)
            return look_up(self, given)

        monkeypatch.setattr(TokenChecker, "look_up", slow)
        flood = [acme] * 40 if who == "a namespace" else [acme[:-20] + f"{n:020}" for n in range(40)]
        calls = [pool.submit(STATUS[kind], url, token) for token in flood]
        try:
            if who == "a namespace":
                eventually(lambda: sum(one.done() for one in calls) == 36, within=30)
                assert {one.result().status_code for one in calls if one.done()} == {429}
            assert pool.submit(STATUS[kind], url, other).result(30).status_code == 200
        finally:
            held.set()
        statuses = [one.result(60).status_code for one in calls]
        assert set(statuses) == ({200, 429} if who == "a namespace" else {401})
        assert STATUS[kind](url, acme).status_code == 200


def test_streams_keep_no_other_call_of_their_namespace_waiting(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_NAMESPACE_STREAMS", turns.AT_ONCE + 1)
    monkeypatch.setattr(limits, "HTTP_NAMESPACE_REQUESTS", turns.AT_ONCE)
    with serving("api", here) as (port, [acme, other]), ExitStack() as stack:
        nexus, url = Nexus(here.deployment), f"http://{LOOPBACK}:{port}"
        jobs = {name: nexus.digest(name, "notes").job_id for name in ("acme", "other")}
        client = stack.enter_context(httpx2.Client(timeout=30))

        def stream(name: str, token: str) -> httpx2.Response:
            asked = client.stream("GET", f"{url}/v1/jobs/{jobs[name]}/events", headers=bearer(token))
            return stack.enter_context(asked)

        streams = [stream("acme", acme) for _ in range(limits.HTTP_NAMESPACE_STREAMS)]
        assert {one.status_code for one in streams} == {200}
        assert httpx2.get(f"{url}/v1/status", headers=bearer(acme), timeout=20).status_code == 200
        refused = httpx2.get(f"{url}/v1/jobs/{jobs['acme']}/events", headers=bearer(acme), timeout=20)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert refused.json()["detail"] == f"At most {turns.AT_ONCE + 1} streams of a namespace may be open."
        assert stream("other", other).status_code == 200
        streams[0].close()
        eventually(lambda: stream("acme", acme).status_code == 200)


def test_streams_of_jobs_leave_threads_to_others_while_a_server_is_silent(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "THREADS", progress.LOOKS_AT_ONCE + 4)
    held, looking, job = threading.Event(), threading.Semaphore(0), Nexus.job

    def silent(self: Nexus, job_id: str) -> object:
        looking.release()
        assert held.wait(60)
        return job(self, job_id)

    with serving("api", here) as (port, [acme, other]), ExitStack() as stack:
        url, asked = f"http://{LOOPBACK}:{port}", Nexus(here.deployment).digest("acme", "notes").job_id
        client = stack.enter_context(httpx2.Client(timeout=30))
        for _ in range(2 * turns.THREADS):
            stream = client.stream("GET", f"{url}/v1/jobs/{asked}/events", headers=bearer(acme))
            assert stack.enter_context(stream).status_code == 200
        monkeypatch.setattr(Nexus, "job", silent)
        try:
            assert all(looking.acquire(timeout=60) for _ in range(progress.LOOKS_AT_ONCE))
            time.sleep(2)  # each stream would look
            assert httpx2.get(f"{url}/v1/status", headers=bearer(other), timeout=20).status_code == 200
        finally:
            held.set()


def test_exports_read_slowly_leave_places_for_the_questions_of_others(here: Sandbox) -> None:
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme", scrub=False)  # which would take seconds
    nexus.ingest("acme", "log", [{"content": f"{n} {'x ' * 450_000}"} for n in range(10)], observers=[])
    with serving("api", here) as (port, [acme, other]), ExitStack() as stack:
        asked = f"GET /v1/export HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nAuthorization: Bearer {acme}\r\n\r\n"

        def export() -> bytes:
            """The head of the answer. The rest is never read, so the call goes on."""
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.settimeout(30)
            connection.connect((LOOPBACK, port))
            connection.sendall(asked.encode())
            return connection.recv(1_000)

        heads = [export() for _ in range(limits.HTTP_LONG_CALLS + 1)]
        assert sum(b" 200 " in one for one in heads) == limits.HTTP_NAMESPACE_LONG_CALLS == limits.HTTP_LONG_CALLS // 2
        assert all(b"retry-after: 5" in one.lower() for one in heads if b" 503 " in one)
        url, question = f"http://{LOOPBACK}:{port}", {"question": "What is the plan?"}
        answered = httpx2.post(f"{url}/v1/ask", json=question, headers=bearer(other), timeout=60)
        assert answered.status_code == 200, answered.text
        refused = httpx2.post(f"{url}/v1/ask", json=question, headers=bearer(acme), timeout=60)
        assert refused.status_code == 503
        assert refused.json()["detail"] == "At most 4 long calls of a namespace may run in this process."
        assert httpx2.get(f"{url}/v1/status", headers=bearer(acme), timeout=60).status_code == 200


def test_two_namespaces_do_not_take_all_places_of_long_calls(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    held, running = threading.Event(), threading.Semaphore(0)

    def slow(*_args: object, **_given: object) -> None:
        running.release()
        held.wait(60)
        raise NexusError("late")

    monkeypatch.setattr(Nexus, "ask", slow)
    nexus = Nexus(here.deployment)
    nexus.create_namespace("third")
    third = nexus.create_token("third", "agent", scopes=["read"]).token
    with serving("api", here) as (port, [acme, other]), ThreadPoolExecutor(20) as pool:

        def ask(token: str) -> httpx2.Response:
            asked = {"question": "What is the plan?"}
            return httpx2.post(f"http://{LOOPBACK}:{port}/v1/ask", json=asked, headers=bearer(token), timeout=60)

        try:
            for token in [acme] * limits.HTTP_NAMESPACE_LONG_CALLS + [other]:
                pool.submit(ask, token)
                assert running.acquire(timeout=60)
            refused = ask(other)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
            pool.submit(ask, third)
            assert running.acquire(timeout=60)
        finally:
            held.set()


def test_a_question_keeps_its_place_when_its_client_goes(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread goes on. Otherwise a tenant that asks and goes would take every thread of the server."""
    held, running = threading.Event(), threading.Semaphore(0)

    def slow(*_args: object, on_sentence: Callable[[AnswerSentence], None], **_given: object) -> None:
        on_sentence(AnswerSentence(text="The plan is tea.", citations=()))
        running.release()
        held.wait(60)
        raise NexusError("late")

    monkeypatch.setattr(Nexus, "ask", slow)
    with serving("api", here) as (port, [acme, _]):
        url, asked = f"http://{LOOPBACK}:{port}/v1/ask", {"question": "What is the plan?"}
        streaming = {**bearer(acme), "Accept": "text/event-stream"}
        try:
            for _ in range(limits.HTTP_NAMESPACE_LONG_CALLS):
                with httpx2.stream("POST", url, json=asked, headers=streaming, timeout=60) as answer:
                    assert next(answer.iter_bytes()).startswith(b"event: sentence")
                assert running.acquire(timeout=60)
            time.sleep(2)  # the server sees that they have gone
            refused = httpx2.post(url, json=asked, headers=streaming, timeout=60)
            assert (refused.status_code, running.acquire(timeout=0.1)) == (503, False)
        finally:
            held.set()
        eventually(lambda: httpx2.post(url, json=asked, headers=streaming, timeout=60).status_code == 200, within=30)


def ask_for_export(slow: socket.socket, port: int, token: str) -> None:
    """Send the request on a connection that takes few bytes at a time."""
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    slow.settimeout(30)
    slow.connect((LOOPBACK, port))
    slow.sendall(f"GET /v1/export HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())


def test_an_export_that_a_reader_holds_up_leaves_no_thread_and_no_connection(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_STALL_SECONDS", 2)
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme", scrub=False)  # which would take seconds
    nexus.ingest("acme", "log", [{"content": f"{n} {'x ' * 450_000}"} for n in range(20)], observers=[])
    pool: Any = here.deployment.database.engine.pool
    gc.disable()  # the collector also ends such a thread, in a server after hours or never
    try:
        with serving("api", here) as (port, [acme, _]), socket.socket() as slow:
            ask_for_export(slow, port, acme)
            assert slow.recv(1_000).startswith(b"HTTP/1.1 200 ")
            eventually(lambda: pool.checkedout() == 1, within=20)
            eventually(lambda: pool.checkedout() == 0, within=20)
    finally:
        gc.enable()


def test_a_reader_that_takes_little_at_a_time_is_cut_off(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an export would be open for hours, with a transaction because of which Postgres keeps deleted rows."""
    monkeypatch.setattr(limits, "HTTP_STALL_SECONDS", 3)
    monkeypatch.setattr(limits, "HTTP_LEAST_BYTES", 1_000_000)
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme", scrub=False)  # which would take seconds
    nexus.ingest("acme", "log", [{"content": f"{n} {'x ' * 450_000}"} for n in range(20)], observers=[])
    with serving("api", here) as (port, [acme, _]), socket.socket() as slow:
        ask_for_export(slow, port, acme)
        assert slow.recv(1_000).startswith(b"HTTP/1.1 200 ")
        pool: Any = here.deployment.database.engine.pool
        eventually(lambda: pool.checkedout() == 1, within=20)
        eventually(lambda: slow.recv(65_536) and pool.checkedout() == 0, within=40)


def test_no_connection_to_postgres_is_held_while_another_server_is_asked(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the other one is silent, the calls of three tenants would otherwise hold every connection of a server."""
    nexus, held = Nexus(here.deployment, namespaces=("acme",)), list[int]()
    pool: Any = here.deployment.database.engine.pool
    nexus.ingest("acme", "chat", [{"content": "The plan is tea.", "author": "ann"}])
    real, real_counts = HashingEmbedder.embed, ClaimIndex.counts

    def embed(self: HashingEmbedder, texts: Sequence[str]) -> Any:
        held.append(pool.checkedout())
        return real(self, texts)

    def count(_self: object, text: str) -> int:
        held.append(pool.checkedout())
        return len(text)

    def counts(self: ClaimIndex, names: Sequence[str]) -> Any:
        held.append(pool.checkedout())
        return real_counts(self, names)

    monkeypatch.setattr(HashingEmbedder, "embed", embed)
    monkeypatch.setattr(AnthropicModel, "count_tokens", count)
    monkeypatch.setattr(ClaimIndex, "counts", counts)
    calls: list[Callable[[], object]] = [
        lambda: nexus.search("acme", "the plan"),
        lambda: nexus.context("acme", query="the plan"),
        lambda: nexus.context("acme", query="the plan", count="anthropic"),
        lambda: nexus.context("acme", query="the plan", session_key="chat", observe=True),
        lambda: nexus.ask("acme", "What is the plan?"),
        lambda: nexus.status("acme"),
    ]
    for call in calls:
        held.clear()
        call()
        assert held
        assert set(held) == {0}


def test_a_call_without_an_answer_keeps_its_turn_until_its_thread_is_free(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a tenant whose calls last longer than 60 s could take every thread of the server."""
    held, running, status = threading.Event(), threading.Semaphore(0), Nexus.status

    def slow(self: Nexus, namespace: str | None = None, **options: Any) -> object:
        if namespace == "acme":
            running.release()
            assert held.wait(60)
        return status(self, namespace, **options)

    monkeypatch.setattr(Nexus, "status", slow)
    monkeypatch.setattr(limits, "HTTP_ANSWER_SECONDS", 1)
    with serving("api", here) as (port, [acme, other]), ThreadPoolExecutor(20) as pool:
        url = f"http://{LOOPBACK}:{port}"
        calls = [pool.submit(STATUS["api"], url, acme) for _ in range(turns.AT_ONCE)]
        try:
            assert {one.result(60).status_code for one in calls} == {504}
            assert all(running.acquire(timeout=60) for _ in calls)
            later = pool.submit(STATUS["api"], url, acme)
            assert not running.acquire(timeout=2)
            monkeypatch.setattr(limits, "HTTP_ANSWER_SECONDS", 60)
            assert STATUS["api"](url, other).status_code == 200
        finally:
            held.set()
        assert later.result(60).status_code == 200


def refuse(connection: socket.socket, asked: bytes) -> None:
    connection.sendall(asked)
    said = b""
    while not said.endswith(b"}"):
        said += connection.recv(10_000) or b"}"
    assert b" 401 " in said


@pytest.mark.parametrize("kind", STATUS)
def test_connections_kept_open_behind_an_answer_give_way(
    kind: str, here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 5)
    path = "/mcp" if kind == "mcp" else "/v1/status"
    asked = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
    with serving(kind, here) as (port, [token, _]), ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection((LOOPBACK, port), timeout=30)) for _ in range(5)]
        for one in opened:
            refuse(one, asked)
        for _ in range(3):
            assert STATUS[kind](f"http://{LOOPBACK}:{port}", token).status_code == 200
        refuse(opened[4], asked)  # the newest one is still open


def test_a_slow_reader_holds_its_turn_and_a_part_of_its_answer(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    made = threading.Semaphore(0)

    def large(document: Any) -> bytes:
        made.release()
        return b" " * 16_000_000 + as_json(document)

    monkeypatch.setattr(documents, "as_json", large)
    monkeypatch.setattr(limits, "HTTP_STALL_SECONDS", 20)
    with serving("api", here) as (port, [acme, other]), ExitStack() as stack:
        asked = f"GET /v1/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {acme}\r\n\r\n".encode()
        readers = [stack.enter_context(socket.create_connection((LOOPBACK, port), timeout=60)) for _ in range(12)]
        for one in readers:
            one.sendall(asked)
        assert all(made.acquire(timeout=60) for _ in range(turns.AT_ONCE))
        assert STATUS["api"](f"http://{LOOPBACK}:{port}", other).status_code == 200
        assert made.acquire(timeout=1), "that of the other namespace"
        assert not made.acquire(timeout=2), "the other readers wait for a turn"
        with pytest.raises(ConnectionResetError):  # a reader that takes no part is cut off, with its answer unsent
            eventually(lambda: readers[0].recv(1_000, socket.MSG_PEEK) and readers[0].send(b"x") and None, within=60)
        assert made.acquire(timeout=60)


def test_a_client_that_leaves_within_its_body_is_not_logged(here: Sandbox) -> None:
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme")
    token = nexus.create_token("acme", "agent", scopes=["read"]).token
    head = f"POST /v1/search HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 99\r\n\r\n{{"
    with serve_process(here) as (_, port):
        with socket.create_connection((LOOPBACK, port), timeout=30) as client:
            client.sendall(head.encode())
            time.sleep(1)  # the server waits for the rest of the body
        assert STATUS["api"](f"http://{LOOPBACK}:{port}", token).status_code == 200
        time.sleep(0.5)
        assert "ClientDisconnect" not in (here.folder / "serve.log").read_text()


def test_strangers_who_ask_for_readiness_take_one_thread(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    held, asked = threading.Event(), list[None]()

    def silent(_deployment: object) -> None:
        asked.append(None)
        held.wait(60)

    monkeypatch.setattr(health, "_ask_redis", silent)
    with serving("api", here) as (port, [acme, _]), ThreadPoolExecutor(turns.THREADS) as pool:
        url = f"http://{LOOPBACK}:{port}"
        ready = [pool.submit(httpx2.get, f"{url}/readyz", timeout=60) for _ in range(turns.THREADS)]
        try:
            eventually(lambda: asked)
            assert STATUS["api"](url, acme).status_code == 200
            time.sleep(1)
            assert len(asked) == 1
        finally:
            held.set()
        assert {one.result(60).status_code for one in ready} == {200}
        assert httpx2.get(f"{url}/readyz", timeout=60).status_code == 200
        assert len(asked) == 2


def test_mcp_opens_no_stream(here: Sandbox) -> None:
    with serving("mcp", here) as (port, [token, _]):
        accept = {"Accept": "text/event-stream"}
        refused = httpx2.get(f"http://{LOOPBACK}:{port}/mcp", headers=bearer(token) | accept, timeout=10)
        assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")


def test_mcp_opens_no_stream_of_changes(here: Sandbox) -> None:
    """No limit counts such streams. One token could hold all connections of a server, also after its revocation."""
    method, version = "subscriptions/listen", "2026-07-28"
    envelope = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"notifications": {"toolsListChanged": True}, "_meta": envelope}
    named = {"MCP-Protocol-Version": version, "Mcp-Method": method, **BOTH}
    with serving("mcp", here) as (port, [token, _]):
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        url = f"http://{LOOPBACK}:{port}/mcp"
        refused = httpx2.post(url, json=asked, headers=bearer(token) | named, timeout=10)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, -32_601)


def test_calls_that_wait_for_a_digest_hold_no_thread(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, five tenants that waited for digests held all threads of a server, for up to a minute."""
    monkeypatch.setattr(turns, "THREADS", 4)
    begun, digest = threading.Semaphore(0), Nexus.digest

    def counted(self: Nexus, *args: Any, **given: Any) -> Any:
        begun.release()
        return digest(self, *args, **given)

    monkeypatch.setattr(Nexus, "digest", counted)
    with serving("mcp", here) as (port, [_, other]), ThreadPoolExecutor(4) as pool:
        url = f"http://{LOOPBACK}:{port}"
        writer = Nexus(here.deployment).create_token("acme", "writer", scopes=["read", "write"]).token
        asked = {"session_key": "notes", "wait_seconds": 15}
        calls = [pool.submit(use, url, writer, "digest_session", **asked) for _ in range(4)]
        assert all(begun.acquire(timeout=60) for _ in calls)
        time.sleep(0.5)
        assert not any(one.done() for one in calls)
        answer = httpx2.post(f"{url}/mcp", json=CALL, headers=bearer(other) | BOTH, timeout=8)
        assert not answer.json()["result"]["isError"]
        assert {one.result(60)["structuredContent"]["status"] for one in calls} == {"running"}


def test_questions_over_mcp_leave_threads_to_others(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the questions of five tenants held all threads of a server until the model had answered."""
    held, running = threading.Event(), threading.Semaphore(0)

    def slow(*_args: object, **_given: object) -> None:
        running.release()
        held.wait(60)
        raise NexusError("late")

    monkeypatch.setattr(Nexus, "ask", slow)
    with serving("mcp", here) as (port, [acme, other]), ThreadPoolExecutor(20) as pool:
        url = f"http://{LOOPBACK}:{port}"
        try:
            for token in [acme] * limits.HTTP_NAMESPACE_LONG_CALLS + [other]:
                pool.submit(use, url, token, "ask", question="What is the plan?")
                assert running.acquire(timeout=60)
            for token, said in ((acme, "At most 4 long calls"), (other, "Too many long calls")):
                refused = pool.submit(use, url, token, "ask", question="What is the plan?").result(20)
                assert refused["isError"]
                assert said in refused["content"][0]["text"]
            assert not use(url, acme, "recall", query="plan")["isError"]
        finally:
            held.set()
        eventually(lambda: "late" in use(url, acme, "ask", question="What?")["content"][0]["text"], within=30)


def test_a_client_without_a_token_fills_no_memory(here: Sandbox) -> None:
    with serving("api", here) as (port, [token, _]):
        url = f"http://{LOOPBACK}:{port}"
        for path in ("/browser/key", "/readyz", "/", "/nowhere"):
            assert httpx2.post(url + path, content=b"x" * 20_000, timeout=20).status_code == 413, path
        long = {"query": "x" * 20_000}
        assert httpx2.post(f"{url}/v1/search", json=long, headers=bearer(token), timeout=20).status_code == 200


def test_a_tenant_imports_no_budget(here: Sandbox) -> None:
    nexus, checker = Nexus(here.deployment), TokenChecker(here.deployment)
    nexus.create_namespace("acme", budget_usd_per_day=1.0)
    token = nexus.create_token("acme", "agent", scopes=["read", "write", "erase"]).token
    settings = {"budget_usd_per_day": None, "scrub": False}
    lines = [{"format": "nexus-tasks memory", "version": 1, "settings": settings}, {"end": 0}]
    content = "\n".join(map(json.dumps, lines)).encode()
    with served(lambda _: application(nexus, "", checker=checker)) as port:
        url = f"http://{LOOPBACK}:{port}/v1/import"
        assert httpx2.post(url, content=content, headers=bearer(token), timeout=20).status_code == 403
    assert nexus.namespace("acme").budget_usd_per_day == 1.0
