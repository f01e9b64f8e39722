"""What the requests of one connection have to do with each other. A proxy sends those of several clients over one."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
from starlette.types import Receive, Scope, Send

from nexus_tasks.integrations.serving.listening import LOOPBACK
from tests.integration.served import served

before: ContextVar[str] = ContextVar("before", default="nothing")


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the path that a request before this one has left in its context."""
    if scope["type"] != "http":
        return
    found = before.get().encode()
    before.set(scope["path"])
    while scope["path"] != "/unread" and (await receive()).get("more_body"):
        pass
    length = str(len(found)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": found})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(lambda _port: application) as port:
        yield port


def test_a_request_behind_a_long_body_begins_afresh(port: int) -> None:
    """The server stops reading for a moment, and asyncio reads on in the context of the long request."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    connection.request("POST", "/first", b"x" * 1_000_000)
    assert connection.getresponse().read() == b"nothing"
    connection.request("GET", "/second")
    assert connection.getresponse().read() == b"nothing"
    connection.close()


def test_a_request_that_was_sent_before_the_answer_begins_afresh(port: int) -> None:
    first, second = (f"GET /{path} HTTP/1.1\r\nHost: a\r\n" for path in ("first", "second"))
    with socket.create_connection((LOOPBACK, port), timeout=60) as connection:
        connection.sendall(f"{first}\r\n{second}Connection: close\r\n\r\n".encode())
        said = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert said.count(b"\r\n\r\nnothing") == 2


EXPECTING = "POST /{} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"


def test_an_answer_before_the_body_was_asked_for_ends_the_connection(port: int) -> None:
    """A client that expects 100 leaves the body out then. Its next request would be taken for the body."""
    with socket.create_connection((LOOPBACK, port), timeout=60) as connection:
        connection.sendall(EXPECTING.format("unread").encode())
        said = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in said.lower()


def test_a_body_that_was_asked_for_keeps_the_connection(port: int) -> None:
    with socket.create_connection((LOOPBACK, port), timeout=60) as connection:
        connection.sendall(EXPECTING.format("first").encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"bodyGET /second HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        said = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert said.count(b" 200 OK") == 2
