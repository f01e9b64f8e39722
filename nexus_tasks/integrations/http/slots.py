"""Places for calls that take long, so that they leave threads and connections for the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from fastapi import Depends, FastAPI, Request

from nexus_tasks import limits
from nexus_tasks.errors import Throttled
from nexus_tasks.integrations.serving.access import current


def install(app: FastAPI) -> None:
    """Give ``app`` its places."""
    app.state.long_calls = asyncio.Semaphore(limits.HTTP_LONG_CALLS)
    app.state.streams = asyncio.Semaphore(limits.HTTP_STREAMS)
    app.state.streams_of = Counter[str]()


async def _long_call(request: Request) -> AsyncIterator[None]:
    async with _place(request.app.state.long_calls):
        yield


async def _stream(request: Request) -> AsyncIterator[None]:
    access = current.get()
    with _place_of(request.app.state.streams_of, access.namespace if access else None):
        async with _place(request.app.state.streams):
            yield


@contextmanager
def _place_of(streams: Counter[str], namespace: str | None) -> Iterator[None]:
    """Count a stream of a namespace. Streams with the operator's token (``None``) are not counted.

    Raises:
        Throttled: the namespace has as many as it may have.
    """
    if namespace is None:
        yield
        return
    if streams[namespace] >= limits.HTTP_NAMESPACE_STREAMS:
        raise Throttled(
            f"At most {limits.HTTP_NAMESPACE_STREAMS} streams of a namespace may be open.",
            remedy="Close one, or ask for the job with GET /v1/jobs/{job_id} from time to time.",
            retry_after=5.0,
        )
    streams[namespace] += 1
    try:
        yield
    finally:
        streams[namespace] -= 1
        if not streams[namespace]:
            del streams[namespace]


def _place(places: asyncio.Semaphore) -> asyncio.Semaphore:
    """The places, when one is free.

    Raises:
        Throttled: all are taken.
    """
    if places.locked():
        raise Throttled("Too many long calls run in this process.", retry_after=5.0)
    return places


# The dependencies of a route. The place is given back when the whole answer has been sent.
LONG_CALL, STREAM = Depends(_long_call), Depends(_stream)
