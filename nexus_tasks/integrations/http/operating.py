"""What the operator does with many jobs: count, retry and drop them, pause and resume, quarantine and repair."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field

from nexus_tasks.integrations.http.access import NamedSpaceBody
from nexus_tasks.integrations.http.caller import ChangingOperator, Operator, Reader
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import DroppedMessages, Quarantine, Resumed, next_offset
from nexus_tasks.integrations.http.parameters import Body, Limit, Offset, OneOrAll, SpaceBody, Time
from nexus_tasks.types import (
    DroppedJobs,
    FinishedJobs,
    JobRepair,
    PausedNamespace,
    RetriedJobs,
    SpendReport,
    Urgency,
)

router = routes("operating")


class RetryManyBody(SpaceBody):
    """Which dead letters run again."""

    namespace: str | None = Field(None, description="Only this namespace. Default: every namespace.")
    kind: str | None = None
    error: str | None = Field(None, description="Only dead letters whose error is of this class.")
    urgency: Urgency | None = None


class DropManyBody(SpaceBody):
    """Which jobs are dropped."""

    namespace: str | None = Field(None, description="Only this namespace. Default: every namespace.")
    kind: str | None = None
    status: str | None = Field(None, description="waiting, pending, running or dead. Default: waiting and pending.")


class PauseBody(NamedSpaceBody):
    """Why a namespace is paused."""

    reason: str = ""


class ResumeBody(Body):
    """A paused kind of jobs."""

    kind: str | None = Field(None, description="Default: every paused kind.")


@router.get("/spend")
async def spend(
    caller: Reader,
    namespace: OneOrAll = None,
    since: Annotated[Time | None, Query(description="Default: 30 days ago.")] = None,
    until: Annotated[Time | None, Query(description="Default: now.")] = None,
) -> SpendReport:
    """Show the cost of model calls in USD, their number and their tokens, by day (UTC) and purpose."""
    nexus, name = await caller.one_or_all(namespace)
    return await nexus.aspend(name, since=since, until=until)


@router.get("/finished-jobs")
async def finished_jobs(
    caller: Reader,
    namespace: OneOrAll = None,
    since: Annotated[Time | None, Query(description="Default: a day ago.")] = None,
    until: Annotated[Time | None, Query(description="Default: now.")] = None,
) -> FinishedJobs:
    """Count the jobs that have finished, by kind and by how they ended."""
    nexus, name = await caller.one_or_all(namespace)
    return await nexus.afinished_jobs(namespace=name, since=since, until=until)


@router.post("/jobs/retry")
async def retry_jobs(caller: ChangingOperator, body: RetryManyBody) -> RetriedJobs:
    """Run many dead letters again, the oldest first."""
    nexus, name = await caller.one_or_all(body.namespace)
    return await nexus.aretry_jobs(namespace=name, **body.given())


@router.post("/jobs/drop")
async def drop_jobs(caller: ChangingOperator, body: DropManyBody) -> DroppedJobs:
    """Drop many jobs or dead letters. Their work is not done."""
    nexus, name = await caller.one_or_all(body.namespace)
    return await nexus.adrop_jobs(namespace=name, **body.given())


@router.post("/jobs/repair")
async def repair_jobs(caller: ChangingOperator) -> JobRepair:
    """Correct the counters and indexes in Redis that differ from the jobs' own records."""
    nexus, _ = await caller.one_or_all(None)
    return await nexus.arepair_jobs()


@router.post("/namespace/pause")
async def pause_namespace(caller: ChangingOperator, body: PauseBody) -> PausedNamespace:
    """Let no job of a namespace begin until it is resumed."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.apause_namespace(name, **body.given())


@router.post("/namespace/resume")
async def resume_namespace(caller: ChangingOperator, body: NamedSpaceBody) -> Resumed:
    """Let the jobs of a paused namespace run again."""
    nexus, name = await caller.space(body.namespace)
    return Resumed(resumed=(name,) if await nexus.aresume_namespace(name) else ())


@router.post("/kinds/resume")
async def resume_kinds(caller: ChangingOperator, body: ResumeBody) -> Resumed:
    """Let a paused kind of jobs run again."""
    nexus, _ = await caller.one_or_all(None)
    return Resumed(resumed=await nexus.aresume_jobs(body.kind))


@router.delete("/quarantine")
async def drop_quarantined(
    caller: ChangingOperator, ids: Annotated[list[str] | None, Query(description="Default: all messages.")] = None
) -> DroppedMessages:
    """Delete messages from the quarantine."""
    nexus, _ = await caller.one_or_all(None)
    return DroppedMessages(dropped=await nexus.adrop_quarantined(ids))


@router.get("/quarantine")
async def quarantine(caller: Operator, limit: Limit = 100, offset: Offset = 0) -> Quarantine:
    """List the messages that no worker could read, newest first."""
    nexus, _ = await caller.one_or_all(None)
    found = await nexus.aquarantined(limit=limit, offset=offset)
    return Quarantine(messages=tuple(found), next_offset=next_offset(found, limit, offset))
