"""Places for calls that take long, so that they leave threads and connections for the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import Depends, FastAPI, Request

from nexus_tasks import limits
from nexus_tasks.errors import Throttled


def install(app: FastAPI) -> None:
    """Give ``app`` its places."""
    app.state.long_calls = asyncio.Semaphore(limits.HTTP_LONG_CALLS)
    app.state.streams = asyncio.Semaphore(limits.HTTP_STREAMS)


async def _long_call(request: Request) -> AsyncIterator[None]:
    async with _place(request.app.state.long_calls):
        yield


async def _stream(request: Request) -> AsyncIterator[None]:
    async with _place(request.app.state.streams):
        yield


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
