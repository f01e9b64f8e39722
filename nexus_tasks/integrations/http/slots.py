"""The places of long calls and of streams, as dependencies of routes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import Depends, FastAPI, Request

from nexus_tasks import limits
from nexus_tasks.integrations.serving.places import Places


def install(app: FastAPI) -> None:
    """Give ``app`` its places."""
    app.state.long_calls, app.state.streams = Places(limits.HTTP_LONG_CALLS), Places(limits.HTTP_STREAMS)


async def _long_call(request: Request) -> AsyncIterator[None]:
    most = limits.HTTP_NAMESPACE_LONG_CALLS
    with request.app.state.long_calls.one(
        most,
        too_many=f"At most {most} long calls of a namespace may run in this process.",
        remedy="Wait until one ends, and read exports without a pause.",
    ):
        yield


async def _stream(request: Request) -> AsyncIterator[None]:
    most = limits.HTTP_NAMESPACE_STREAMS
    with request.app.state.streams.one(
        most,
        too_many=f"At most {most} streams of a namespace may be open.",
        remedy="Close one, or ask for the job with GET /v1/jobs/{job_id} from time to time.",
    ):
        yield


# The dependencies of a route. The place is given back when the whole answer has been sent.
LONG_CALL, STREAM = Depends(_long_call), Depends(_stream)
