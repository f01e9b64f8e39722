"""Limit what clients over HTTP may send: headers, body, open connections, and the time for one request.

uvicorn has no limit for a body, and no time limit for a request that arrives slowly or never completely. So a client
without the token could open connections until the server has no file descriptor left.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import h11
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from nexus_tasks import limits
from nexus_tasks.integrations.serving import problems
from nexus_tasks.integrations.serving.access import current

# A text of JSON, also one without its end, so that no place is looked at twice.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)  # what contains no text without its end
_MARKS = (b",", b"[", b"{")  # each begins at most one value more
PART = 65_536  # bytes of an answer that are sent at a time
_SMALL = 64  # bytes; reading a chunk takes 13 µs, however short it is

_REASONS = {400: "Bad Request", 408: "Request Timeout", 429: "Too Many Requests", 431: "Header Fields Too Large"}


class _Bounded(h11.Connection):
    """A connection that refuses long headers, and a body of thousands of tiny chunks.

    Such a body would hold the event loop for seconds. h11 itself refuses only headers that have not come whole.
    """

    small = 0  # chunks of the body

    def next_event(self) -> Any:
        """The next part of a request.

        Raises:
            RemoteProtocolError: the headers are too long, the body has too many small chunks, or the client does not
                speak HTTP.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.small = 0
            if len(event.target) + sum(len(name) + len(value) for name, value in event.headers) > (
                limits.HTTP_HEADER_BYTES
            ):
                raise h11.RemoteProtocolError("the headers are too long", error_status_hint=431)
        elif isinstance(event, h11.Data) and len(event.data) < _SMALL:
            self.small += 1
            if self.small > limits.HTTP_SMALL_CHUNKS:
                raise h11.RemoteProtocolError("too many small chunks")
        return event


class LimitedConnection(H11Protocol):
    """One HTTP connection. Beyond a limit it answers 408, 429 or 431, and is closed."""

    _deadline: asyncio.TimerHandle | None = None
    _waits_since: float | None = None  # the loop's time since which no request is answered here; ``None``: one is
    _part = 0  # bytes of the request that have come since the time limit began

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.app = InParts(OneLength(NoBodyUnasked(self.app)), self._cut_off)
        self.conn = _Bounded(h11.SERVER, limits.HTTP_HEADER_BYTES)

    def connection_made(self, transport: Any) -> None:
        """Expect a request within the time limit. When too many connections are open, close one.

        That is the connection that has waited longest for a whole request, the first one or another behind an answer.
        So connections that send nothing, send slowly, or are kept open after an answer, take no place from a client
        that sends its request at once. When every connection has its request, the new connection is refused.
        """
        super().connection_made(transport)
        if len(self.connections) > limits.HTTP_CONNECTIONS:
            waiting = [one for one in self.connections if isinstance(one, LimitedConnection) and one._waits_since]
            oldest = min(waiting, key=lambda one: one._waits_since or 0.0, default=self)
            oldest._give_way()
            if oldest is self:
                return
        self._waits_since = self.loop.time()
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self.transport.is_closing():
            return
        self._part += len(data)
        if self._part > limits.HTTP_BODY_BYTES:  # a body that is streamed: each such part has the time of a request
            self._stop_waiting()
        self._expect_request()
        super().data_received(data)
        if self.conn.their_state is not h11.SEND_BODY and not self.conn.trailing_data[0]:
            self._stop_waiting()  # the request is complete
            if self.cycle is not None and not self.cycle.response_complete:
                self._waits_since = None

    def handle_events(self) -> None:
        """Begin the requests that have come, each in an empty context.

        Otherwise a request would begin in the context of an earlier one of its connection, with the access of that
        one's token: asyncio reads on in the context of the request that has last waited for its body. A proxy sends the
        requests of several clients over one connection.
        """
        contextvars.Context().run(super().handle_events)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._waits_since = self.loop.time()
        super().on_response_complete()
        if self.cycle is not None and not self.cycle.response_complete:  # the client had sent its next request before
            self._waits_since = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time limit."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, or whose headers are too long."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        if status == 431:
            msg = f"The headers have more than {limits.HTTP_HEADER_BYTES:,} bytes. Send fewer or shorter ones."
        self._refuse(status if status in _REASONS else 400, msg)

    def _expect_request(self) -> None:
        if self._deadline is None:
            self._part = 0
            self._deadline = self.loop.call_later(limits.HTTP_REQUEST_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut_off(self) -> None:
        self.transport.abort()

    def _give_up(self) -> None:
        self._refuse(408, f"The request did not arrive within {limits.HTTP_REQUEST_SECONDS} s. Send it again.")

    def _give_way(self) -> None:
        """Close this connection for the sake of another one."""
        kept_open = self._waits_since is not None and self._deadline is None
        self._waits_since = None  # it is closed only later, and must not be chosen again
        if kept_open:
            self.transport.abort()  # an answer would be taken for that of the next request, or the last is not read
        else:
            self._refuse(429, f"At most {limits.HTTP_CONNECTIONS:,} connections may be open. Try again later.")

    def _refuse(self, status: int, text: str) -> None:
        self._stop_waiting()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = problems.document(status, text)
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {problems.MEDIA_TYPE}\r\n"
            self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        self.transport.close()


class InParts:
    """ASGI middleware that sends the body of an answer in parts, each when the client has taken those before.

    Without it a long answer would be copied whole for each client, however slowly the client reads, and the request
    would end at once, with its place among the requests of its namespace. A client is cut off that takes no part for
    60 s, or that takes fewer than 16,384 bytes per second after it has let the server wait for 60 s altogether. Else an
    export, which takes a place of a long call and keeps a transaction open, would last as long as its reader wishes.

    Args:
        app: the application behind this one.
        cut_off: closes the connection.
    """

    def __init__(self, app: ASGIApp, cut_off: Callable[[], None]) -> None:
        self.app, self.cut_off = app, cut_off

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and send its answer."""
        has_stalled = False
        waited, taken = 0.0, 0  # seconds in which the client took nothing, and the bytes that it has taken

        async def in_time(message: Message) -> None:
            nonlocal has_stalled, waited, taken
            now = asyncio.get_running_loop().time
            began = now()
            left = limits.HTTP_STALL_SECONDS + taken / limits.HTTP_LEAST_BYTES - waited
            try:
                async with asyncio.timeout(min(limits.HTTP_STALL_SECONDS, left)):
                    await send(message)
            except TimeoutError:
                has_stalled = True
                self.cut_off()
                raise
            waited += now() - began
            taken += len(message.get("body", b""))

        async def in_parts(message: Message) -> None:
            body = message.get("body", b"")
            for start in range(0, len(body) - PART, PART):
                await in_time({"type": message["type"], "body": body[start : start + PART], "more_body": True})
            rest = (len(body) - 1) // PART * PART
            await in_time({**message, "body": body[rest:]} if rest > 0 else message)

        try:
            await self.app(scope, receive, in_parts)
        except Exception:
            if not has_stalled:
                raise


class OneLength:
    """ASGI middleware that answers 400 to a request that says its length in two ways.

    A proxy in front may believe the other one. Then it takes the rest of the body for the next request, or the
    beginning of the next request for the rest of the body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400 and close the connection."""
        if scope["type"] == "http" and {b"content-length", b"transfer-encoding"} <= {
            name for name, _ in scope["headers"]
        }:
            said = "The request has both Content-Length and Transfer-Encoding."
            refusal = problems.problem(400, said, remedy="Send one of them.", headers={"Connection": "close"})
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)


class NoBodyUnasked:
    """ASGI middleware that closes the connection when a request is answered before its announced body is read.

    A client with the header ``Expect: 100-continue`` sends the body only when the server asks for it. Without the body,
    the server would take the next request for it, which may be that of another client behind the same proxy.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or not any(name == b"expect" for name, _ in scope["headers"]):
            await self.app(scope, receive, send)
            return
        asked = False

        async def asking() -> Message:
            nonlocal asked
            asked = True
            return await receive()

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and not asked:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self.app(scope, asking, closing)


class BodyLimit:
    """ASGI middleware that answers 413 to a request whose body is too long, and passes on any other request.

    A request without a valid token may have only a short body. Otherwise clients without a token could fill the memory.

    Args:
        app: the application behind this one.
        streamed: paths whose bodies ``app`` reads, and limits, by itself.
    """

    def __init__(self, app: ASGIApp, *, streamed: Collection[str] = ()) -> None:
        self.app = app
        self.streamed = streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then pass the request on."""
        if scope["type"] != "http" or scope["path"] in self.streamed:
            await self.app(scope, receive, send)
            return
        most = limits.HTTP_BODY_BYTES if current.get() is not None else limits.HTTP_OPEN_BODY_BYTES
        read, size = list[Message](), 0
        while not read or (read[-1]["type"] == "http.request" and read[-1].get("more_body")):
            read.append(await receive())
            if read[-1]["type"] == "http.disconnect":  # the client has closed the connection
                return
            size += len(read[-1].get("body", b""))
            if size > most:
                said = f"The body has more than {most:,} bytes. Send less in one call."
                await answer_and_drain(problems.problem(413, said, headers={"Connection": "close"}), receive, send)
                return
        if await _has_too_many_values([one.get("body", b"") for one in read]):
            said = f"The body has more than {limits.HTTP_BODY_VALUES:,} values. Send less in one call."
            await problems.problem(413, said)(scope, receive, send)
            return
        read.reverse()

        async def again() -> Message:
            return read.pop() if read else await receive()

        await self.app(scope, again, send)


async def _has_too_many_values(parts: list[bytes]) -> bool:
    """Whether a body of JSON has more values than may be parsed at once. Only a body that may have is read closely."""
    if sum(map(_marks, parts)) <= limits.HTTP_BODY_VALUES:
        return False
    return await asyncio.to_thread(_has_too_many_outside_texts, b"".join(parts))


def _has_too_many_outside_texts(body: bytes) -> bool:
    """Count the marks that are not in a text, in one short part of the body after the other.

    No other thread runs during a call of a pattern. One call for the whole body would keep all clients waiting.
    """
    found, at, step = 0, 0, PART
    while at < len(body) and found <= limits.HTTP_BODY_VALUES:
        part = body[at : at + step]
        end = _WHOLE.match(part).end()  # type: ignore[union-attr]
        if end > 0:
            found += _marks(_TEXT.sub(b"", part[:end]))
            at, step = at + end, PART
        elif at + step < len(body):
            step *= 2  # a longer text begins here
        else:
            break  # a text without its end
    return found > limits.HTTP_BODY_VALUES


def _marks(body: bytes) -> int:
    return sum(map(body.count, _MARKS))


async def answer_and_drain(answer: Response, receive: Receive, send: Send) -> None:
    """Send the whole answer, then read on for a while, and only then close the connection.

    Most clients read an answer only when they have sent everything. When a server closes a connection with unread
    bytes, the system resets it, and the client never sees the answer.
    """
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    drained, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.HTTP_REQUEST_SECONDS):
            while more and drained < limits.HTTP_DRAINED_BYTES:
                message = await receive()
                more = message["type"] == "http.request" and message.get("more_body", False)
                drained += len(message.get("body", b""))
    await send({"type": "http.response.body", "body": b""})
