"""Jobs: their state and why they wait; list, show, retry and drop them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from nexus_tasks.integrations.http.caller import Reader, Writer
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import JobPage, RequestedJob, next_offset
from nexus_tasks.integrations.http.parameters import Body, JobId, Limit, Offset, OneOrAll
from nexus_tasks.types import DroppedJob, JobDetails, StatusReport, Urgency

router = routes("jobs")


class RetryBody(Body):
    """How a dead letter runs again."""

    urgency: Urgency | None = None


@router.get("/status")
async def status(
    caller: Reader,
    namespace: OneOrAll = None,
    limit: Limit = 20,
    memories: Annotated[bool, Query(description="Whether to count the memories, which reads all of them.")] = True,
) -> StatusReport:
    """Show how many jobs wait, run or are dead letters, why jobs wait, and the USD spent today (UTC)."""
    nexus, name = await caller.one_or_all(namespace)
    return await nexus.astatus(name, limit=limit, memories=memories)


@router.get("/jobs")
async def list_jobs(
    caller: Reader,
    namespace: OneOrAll = None,
    status: Annotated[str | None, Query(description="Such as waiting, running, dead or completed.")] = None,
    kind: Annotated[str | None, Query(description="Such as derive_memory.")] = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> JobPage:
    """List jobs that are queued or run, dead letters, and finished runs."""
    nexus, name = await caller.one_or_all(namespace)
    found = await nexus.ajobs(namespace=name, status=status, kind=kind, limit=limit, offset=offset)
    return JobPage(jobs=tuple(found), next_offset=next_offset(found, limit, offset))


@router.get("/jobs/{job_id}")
async def show_job(caller: Reader, job_id: JobId) -> JobDetails:
    """Show all that is known about one job."""
    nexus, _ = await caller.one_or_all(None)
    return await nexus.ajob(job_id)


@router.delete("/jobs/{job_id}")
async def drop_job(caller: Writer, job_id: JobId) -> DroppedJob:
    """Drop a dead letter, a reflection that is held for review, or a queued job. Its work is not done.

    The job is still shown, with the status ``dropped``.
    """
    nexus, _ = await caller.one_or_all(None)
    return await nexus.adrop_job(job_id)


@router.post("/jobs/{job_id}/retry", status_code=202)
async def retry_job(caller: Writer, job_id: JobId, body: RetryBody) -> RequestedJob:
    """Run a dead letter again, or release a reflection that is held for review."""
    nexus, _ = await caller.one_or_all(None)
    return RequestedJob.of(await nexus.aretry_job(job_id, **body.given()))
