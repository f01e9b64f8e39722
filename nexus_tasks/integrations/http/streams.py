"""Server-sent events, and files that are sent while they are written."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Send

from nexus_tasks.errors import NexusError
from nexus_tasks.integrations.http.documents import as_json
from nexus_tasks.integrations.serving import turns
from nexus_tasks.integrations.serving.access import Access, current
from nexus_tasks.integrations.serving.problems import document
from nexus_tasks.types import Document

CHUNK = 65_536  # characters
CHECK_EVERY = 5.0  # seconds between two checks of a stream's token
STILL_HERE = b": still here\n\n"  # a comment, which keeps proxies from closing a silent connection
_closing = set[asyncio.Future[None]]()  # asyncio itself keeps no reference


class Stream(StreamingResponse):
    """A response that is sent in parts.

    It ends within seconds when the token of its request is revoked, rotated or expired.
    """

    last_word = b""  # the last bytes of a stream whose token has become invalid

    async def stream_response(self, send: Send) -> None:
        """Send the parts."""
        parts = _while_valid(aiter(self.body_iterator), self.last_word)
        self.body_iterator = parts
        try:
            await super().stream_response(send)
        finally:
            # A client that was cut off has stopped this while a part was sent. The thread that writes the parts would
            # wait for ever, with its connection to Postgres.
            _begin_closing(parts)


async def _while_valid(parts: AsyncIterator[Any], last_word: bytes) -> AsyncIterator[Any]:
    """The parts, as long as the token of the request is valid. While Postgres is away, that is so."""
    access, loop = current.get() or Access(), asyncio.get_running_loop()
    checked, part = loop.time(), asyncio.ensure_future(anext(parts, None))
    try:
        while True:
            await asyncio.wait({part}, timeout=CHECK_EVERY)
            if loop.time() - checked >= CHECK_EVERY:
                checked = loop.time()
                if not await asyncio.to_thread(_valid, access):
                    yield last_word
                    return
            if part.done():
                if (made := part.result()) is None:
                    return
                yield made
                part = asyncio.ensure_future(anext(parts, None))
    finally:
        part.cancel()
        _begin_closing(parts, behind=part)


def _begin_closing(parts: AsyncIterator[Any], *, behind: asyncio.Future[Any] | None = None) -> None:
    """Close an iterator in a task of its own, because the present task may be cancelled. ``behind`` ends before."""
    closing = asyncio.ensure_future(_close(parts, behind))
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)


async def _close(parts: AsyncIterator[Any], behind: asyncio.Future[Any] | None) -> None:
    if behind is not None:
        await asyncio.wait({behind})
    await parts.aclose()  # type: ignore[attr-defined]


def _valid(access: Access) -> bool:
    try:
        return access.still_valid()
    except NexusError:
        return True


def described(events: Mapping[str, str]) -> dict[str, Any]:
    """The part of the OpenAPI document that describes a stream of events.

    Args:
        events: the name of each event, and the name of the schema of its data.
    """
    return {"text/event-stream": {"schema": {"oneOf": [_event(name, data) for name, data in events.items()]}}}


def _event(name: str, data: str) -> dict[str, Any]:
    fields = {"event": {"type": "string", "const": name}, "data": json_text(data)}
    return {"type": "object", "title": name, "properties": fields, "required": ["event", "data"]}


def json_text(schema: str) -> dict[str, Any]:
    """The schema of a text that is JSON of the schema with this name."""
    inside = {"$ref": f"#/components/schemas/{schema}"}
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": inside}


def event(name: str, document: Document) -> bytes:
    """A server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), as_json(document))


class EventStream(Stream):
    """A stream of server-sent events."""

    last_word = b"event: problem\ndata: %s\n\n" % document(
        401, "The token of this stream is no longer valid.", remedy="Ask the operator for a token, and ask again."
    )

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)


class Pipe(io.TextIOBase):
    """A text stream that a thread writes and the event loop reads. A writer that is ahead waits for the reader."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks = asyncio.Queue[bytes | None](8)
        self._text: list[str] = []
        self._size = 0
        self._closed = False

    def write(self, text: str) -> int:
        """Send ``text``.

        Raises:
            BrokenPipeError: the reader has gone.
        """
        self._text.append(text)
        self._size += len(text)
        if self._size >= CHUNK:
            self._send()
        return len(text)

    def read(self, _size: int | None = -1) -> str:
        """Nothing: the thread only writes."""
        raise io.UnsupportedOperation("read")

    def _send(self) -> None:
        if self._closed:
            raise BrokenPipeError
        chunk, self._text, self._size = "".join(self._text).encode(), [], 0
        asyncio.run_coroutine_threadsafe(self._chunks.put(chunk), self._loop).result()

    async def read_from(self, write: Callable[[], Awaitable[object]]) -> AsyncIterator[bytes]:
        """The chunks that ``write`` writes in its thread. Its error is raised behind the last chunk."""
        writing = asyncio.ensure_future(self._written(write))
        turns.keep_until(writing)
        try:
            while (chunk := await self._chunks.get()) is not None:
                yield chunk
            await writing
        finally:
            self._closed = True
            while not self._chunks.empty():  # a writer that waits for a place goes on, and finds the reader gone
                self._chunks.get_nowait()

    async def _written(self, write: Callable[[], Awaitable[object]]) -> None:
        try:
            await write()
            if self._text:
                await self._chunks.put("".join(self._text).encode())
        except BrokenPipeError:
            pass  # the client has gone
        finally:
            await self._chunks.put(None)


async def or_still_here(queue: asyncio.Queue[bytes | None], every: float) -> bytes | None:
    """The next entry of the queue, or a sign of life after ``every`` seconds."""
    try:
        return await asyncio.wait_for(queue.get(), every)
    except TimeoutError:
        return STILL_HERE
