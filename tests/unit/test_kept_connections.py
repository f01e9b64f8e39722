"""A request knows nothing of the earlier ones on its connection. A proxy sends the requests of several clients over one."""

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
    while (await receive()).get("more_body"):
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
