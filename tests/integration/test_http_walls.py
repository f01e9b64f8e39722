"""What a server over HTTP refuses to strangers and ends by itself, met with raw sockets and real processes."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx2
import psutil
import pytest

from nexus_tasks import Nexus, limits
from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.http import streams
from nexus_tasks.integrations.http.application import application
from nexus_tasks.integrations.serving.listening import LOOPBACK
from nexus_tasks.services.access import TokenChecker
from nexus_tasks.types import NewToken
from tests.integration.http_client import TOKEN, api, as_token
from tests.integration.serve_process import serve_process
from tests.integration.served import served
from tests.integration.test_http_streams import events
from tests.sandbox import Sandbox, eventually

ENDS: dict[str, Callable[[Sandbox, NewToken], object]] = {
    "revoked": lambda here, token: Nexus(here.deployment).revoke_token("acme", token.id),
    "rotated": lambda here, token: Nexus(here.deployment).rotate_token("acme", token.id),
    "expired": lambda here, token: here.sql("UPDATE tokens SET expires_at = now() WHERE id = :id", id=token.id),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_stream_ends_with_its_token(here: Sandbox, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(streams, "CHECK_EVERY", 0.2)
    nexus = Nexus(here.deployment)
    nexus.remember("acme", "The plan.")
    token = nexus.create_token("acme", "agent", scopes=["read"])
    job = nexus.digest("acme", "notes")
    with (
        api(here, token.token) as client,
        client.stream("GET", f"/v1/jobs/{job.job_id}/events", timeout=60) as response,
    ):
        told = events(response)
        assert next(told)[0] == "job"
        ENDS[end](here, token)
        name, last = next(told)
        assert (name, last["status"]) == ("problem", 401)
        assert last["remedy"]
        assert list(told) == []


def test_an_export_ends_with_its_token(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHECK_EVERY", 0.0)
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme", scrub=False)
    nexus.ingest("acme", "log", [{"content": f"{n} {'x ' * 400_000}"} for n in range(10)], observers=[])
    token = nexus.create_token("acme", "agent", scopes=["read"])
    with api(here, token.token) as client, client.stream("GET", "/v1/export", timeout=60) as response:
        parts = response.iter_bytes()
        next(parts)
        nexus.revoke_token("acme", token.id)
        assert b'{"end"' not in b"".join(parts)[-200:]


@contextmanager
def raw(port: int, sent: bytes) -> Iterator[socket.socket]:
    with socket.create_connection((LOOPBACK, port), timeout=60) as connection:
        connection.sendall(sent)
        yield connection


def everything(connection: socket.socket) -> bytes:
    said = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            said += part
    return said


@contextmanager
def serving(here: Sandbox, hosts: tuple[str, ...] | None = None) -> Iterator[int]:
    checker = TokenChecker(here.deployment)
    with served(lambda _: application(Nexus(here.deployment), TOKEN, checker=checker, hosts=hosts)) as port:
        yield port


@pytest.mark.parametrize("path", ["/livez", "/v1/status"])
def test_a_request_with_two_lengths_is_refused_and_nothing_behind_it_is_served(here: Sandbox, path: str) -> None:
    auth = f"Authorization: Bearer {TOKEN}\r\n"
    smuggled = f"GET /livez HTTP/1.1\r\nHost: x\r\n{auth}\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(here) as port, raw(port, (head + "0\r\n\r\n" + smuggled).encode()) as connection:
        said = everything(connection)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"both Content-Length and Transfer-Encoding" in said
    assert said.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_20_mb_gets_an_answer_that_can_be_read(here: Sandbox, chunked: bool) -> None:
    body = b"x" * 20_000_000
    parts = (body[n : n + 65_536] for n in range(0, len(body), 65_536)) if chunked else body
    with api(here) as client:
        answer = client.post("/v1/messages", content=parts, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert "8,000,000" in answer.json()["detail"]
        assert client.get("/v1/status").status_code == 200


def test_of_an_endless_body_a_part_is_read(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_DRAINED_BYTES", 1_000_000)
    head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {10**12}\r\n\r\n"
    sent = 0
    with serving(here) as port, raw(port, head.encode()) as connection, suppress(OSError):
        while sent < 100_000_000:
            sent += connection.send(b"x" * 65_536)
    assert limits.HTTP_BODY_BYTES <= sent < 50_000_000


@pytest.mark.parametrize("head", ["", f"Authorization: Bearer {TOKEN}\r\n"])
def test_a_body_of_tiny_chunks_is_refused(here: Sandbox, head: str) -> None:
    sent = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\n{head}Transfer-Encoding: chunked\r\n\r\n".encode()
    with serving(here) as port:
        with raw(port, sent + b"1\r\nx\r\n" * (limits.HTTP_SMALL_CHUNKS + 1)) as connection:
            assert b" 400 " in everything(connection) or not head  # without a token the answer 401 may be sent before
        allowed = sent + b"1\r\n[\r\n" * (limits.HTTP_SMALL_CHUNKS - 1) + b"0\r\n\r\n"
        for _ in range(2):  # also behind another request of the connection
            with raw(port, allowed) as connection:
                assert connection.recv(100).startswith(b"HTTP/1.1 4" + (b"22" if head else b"01"))


def host(port: int, name: str, path: str = "/", **headers: str) -> int:
    return httpx2.get(f"http://{LOOPBACK}:{port}{path}", headers={"Host": name, **headers}, timeout=60).status_code


def test_an_unknown_host_gets_nothing_without_a_token(here: Sandbox) -> None:
    with serving(here, hosts=("memory.example",)) as port:
        for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "x@y"):
            for path in ("/", "/livez", "/browser/app.js", "/openapi.json", "/nowhere"):
                assert host(port, name, path) == 421, (name, path)
            assert host(port, name, "/v1/status") == 401
            assert host(port, name, "/v1/status", **as_token(TOKEN)) == 200
        known = (f"127.0.0.1:{port}", "localhost", f"LOCALHOST.:{port}", "a.localhost", "[::1]:80", "10.0.0.7")
        for name in (*known, "Memory.example", f"memory.example:{port}"):
            assert host(port, name) == 200, name


def test_the_command_serves_known_hosts_on_loopback(here: Sandbox) -> None:
    here.sql("SELECT 1")
    with serve_process(here, "--host", "memory.example", NEXUS_HTTP_TOKEN=TOKEN) as (_, port):
        assert (host(port, "memory.example", "/livez"), host(port, "evil.example", "/livez")) == (200, 421)


def test_connections_give_way_where_few_files_may_be_open(here: Sandbox) -> None:
    """As on macOS, where a shell allows 256."""
    few = ("sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh")
    with ExitStack() as stack:
        _, port = stack.enter_context(serve_process(here, within=few, NEXUS_HTTP_TOKEN=TOKEN))
        for _ in range(600):
            stack.enter_context(raw(port, b"POST /v1/search HTTP/1.1\r\nHost: x\r\n"))
        asked = httpx2.get(f"http://{LOOPBACK}:{port}/v1/status", headers=as_token(TOKEN), timeout=15)
        assert asked.status_code == 200
    assert (here.folder / "serve.log").stat().st_size < 10_000


def test_the_processes_of_a_killed_server_end(here: Sandbox) -> None:
    with serve_process(here, "--processes", "2", NEXUS_HTTP_TOKEN=TOKEN) as (pid, port):
        eventually(lambda: answers(port))
        children = psutil.Process(pid).children(recursive=True)
        assert len(children) >= 2
        assert host(port, "evil.example", "/livez") == 421
        os.kill(pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert alive == []
        assert not answers(port)


def answers(port: int) -> bool:
    with suppress(httpx2.HTTPError):
        return httpx2.get(f"http://{LOOPBACK}:{port}/livez", timeout=20).status_code == 200
    return False


def test_an_expired_token_is_not_rotated(here: Sandbox) -> None:
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme")
    token = nexus.create_token("acme", "agent")
    here.sql("UPDATE tokens SET expires_at = now() + interval '1 day'")
    assert nexus.rotate_token("acme", token.id).token
    here.sql("UPDATE tokens SET expires_at = now()")
    with pytest.raises(InvalidInput, match="has expired") as caught:
        nexus.rotate_token("acme", token.id)
    assert "nexus tokens create" in caught.value.remedy
    assert nexus.audit("acme", action="token.rotate")[1:] == []


PRIVATE = (
    "127.0.0.1",
    "[::1]",
    "10.0.0.1",
    "localhost:8443",
    "169.254.169.254",
    "[::ffff:10.0.0.1]",
    "[64:ff9b::a00:1]",
)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_webhook_to_a_private_address_is_refused_when_it_is_made(here: Sandbox, name: str) -> None:
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme")
    with pytest.raises(InvalidInput, match="private network") as caught:
        nexus.create_webhook("acme", f"https://{name}/hook")
    assert "NEXUS_WEBHOOK_PRIVATE" in caught.value.remedy
    assert nexus.webhooks("acme") == []
    nexus.create_webhook("acme", "https://8.8.8.8/hook")


def test_a_wrong_number_is_refused_over_http(here: Sandbox) -> None:
    Nexus(here.deployment).remember("acme", "The plan.")
    with api(here) as client:
        refused = client.post("/v1/search", json={"namespace": "acme", "query": "plan", "limit": True})
        assert (refused.status_code, "limit must be a number" in refused.json()["detail"]) == (422, True)


def test_threads_of_ended_streams_end(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes in the middle of an export leaves no thread that writes it."""
    before = threading.active_count()  # of servers that earlier tests started in this process, too
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme", scrub=False)
    nexus.ingest("acme", "log", [{"content": f"{n} {'x ' * 400_000}"} for n in range(10)], observers=[])
    monkeypatch.setattr(limits, "HTTP_LONG_CALLS", 2)
    with api(here) as client:
        for _ in range(6):
            with client.stream("GET", "/v1/export", params={"namespace": "acme"}, timeout=60) as response:
                assert response.status_code == 200
                next(response.iter_bytes())
            eventually(lambda: client.get("/v1/export", params={"namespace": "acme"}).status_code == 200)
    assert threading.active_count() - before < 80


@pytest.mark.parametrize("second", [f"Bearer {TOKEN}", "Bearer another"])
def test_a_request_with_two_tokens_is_refused(here: Sandbox, second: str) -> None:
    both = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", second)]
    with api(here, "") as client:
        answer = client.get("/v1/namespaces", headers=both)
        assert (answer.status_code, answer.json()["remedy"]) == (400, "Send one.")
        assert client.get("/v1/namespaces", headers=both[:1]).status_code == 200
