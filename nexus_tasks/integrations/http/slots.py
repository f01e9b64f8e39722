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
    app.state.long_calls_of = Counter[str]()
    app.state.streams = asyncio.Semaphore(limits.HTTP_STREAMS)
    app.state.streams_of = Counter[str]()


async def _long_call(request: Request) -> AsyncIterator[None]:
    state, most = request.app.state, limits.HTTP_NAMESPACE_LONG_CALLS
    refusal = Throttled(
        f"At most {most} long calls of a namespace may run in this process.",
        remedy="Wait until one ends, and read exports without a pause.",
        retry_after=5.0,
    )
    with _counted(state.long_calls_of, most, refusal):
        async with _place(state.long_calls):
            yield


async def _stream(request: Request) -> AsyncIterator[None]:
    state, most = request.app.state, limits.HTTP_NAMESPACE_STREAMS
    refusal = Throttled(
        f"At most {most} streams of a namespace may be open.",
        remedy="Close one, or ask for the job with GET /v1/jobs/{job_id} from time to time.",
        retry_after=5.0,
    )
    with _counted(state.streams_of, most, refusal):
        async with _place(state.streams):
            yield


@contextmanager
def _counted(places: Counter[str], most: int, refusal: Throttled) -> Iterator[None]:
    """Count a place of the caller's namespace. Places with the operator's token are not counted.

    Raises:
        Throttled: ``refusal``, because the namespace has ``most`` places.
    """
    access = current.get()
    if access is None or access.namespace is None:
        yield
        return
    if places[access.namespace] >= most:
        raise refusal
    places[access.namespace] += 1
    try:
        yield
    finally:
        places[access.namespace] -= 1
        if not places[access.namespace]:
            del places[access.namespace]


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
