"""The progress of a job as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from starlette.responses import Response

from nexus_tasks import limits
from nexus_tasks.client import Nexus
from nexus_tasks.errors import NexusError, NotFound
from nexus_tasks.integrations.http.caller import Reader
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.errors import problem_document
from nexus_tasks.integrations.http.parameters import JobId
from nexus_tasks.integrations.http.slots import STREAM
from nexus_tasks.integrations.http.streams import STILL_HERE, EventStream, described, event
from nexus_tasks.types import JobDetails

router = routes("jobs")
LOOK_EVERY, STILL_HERE_EVERY = 1.0, 15.0  # seconds
LOOKS_AT_ONCE = 8  # of all streams of a process; a look takes about 5 ms, and seconds while a server is silent
_EVENTS = described({"job": "JobDetails", "end": "JobDetails", "problem": "Problem"})


def install(app: FastAPI) -> None:
    """Give ``app`` the turns of its streams to look at their jobs."""
    app.state.looks = asyncio.Semaphore(LOOKS_AT_ONCE)


@router.get(
    "/jobs/{job_id}/events",
    dependencies=[STREAM],
    responses={200: {"content": _EVENTS}},
    response_class=Response,
    response_model=None,
)
async def job_events(request: Request, caller: Reader, job_id: JobId) -> Response:
    """Follow a job until it ends, for at most 10 minutes.

    Each change of the job is an event `job`. The event `end` has the job as it ended. A client that is cut off asks
    again: the first event is the job as it is then.
    """
    nexus, _ = await caller.one_or_all(None)
    return EventStream(_progress(nexus, job_id, await nexus.ajob(job_id), request.app.state.looks))


async def _progress(nexus: Nexus, job_id: str, job: JobDetails, looks: asyncio.Semaphore) -> AsyncIterator[bytes]:
    now = asyncio.get_running_loop().time
    until, silent_since = now() + limits.HTTP_EVENTS_SECONDS, now()
    yield event("job", job)
    while job.source == "queue" and now() < until:
        await asyncio.sleep(LOOK_EVERY)
        try:
            async with looks:  # else the streams would hold all threads of the server while Redis is silent
                found = await nexus.ajob(job_id)
        except NotFound as error:  # it was dropped, or its kind keeps no record of runs
            yield b"event: problem\ndata: %s\n\n" % problem_document(error)
            return
        except NexusError:
            found = job  # a server is away for a moment; the next look finds more
        if found != job:
            job, silent_since = found, now()
            yield event("job", job)
        elif now() - silent_since > STILL_HERE_EVERY:
            silent_since = now()
            yield STILL_HERE
    if job.source != "queue":
        yield event("end", job)
