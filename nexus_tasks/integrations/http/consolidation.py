"""Consolidation: dream, plan a dream, and undo a reflection."""

from __future__ import annotations

from pydantic import Field

from nexus_tasks.integrations.http.caller import Corrector, Writer
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import RequestedJob
from nexus_tasks.integrations.http.parameters import SpaceBody
from nexus_tasks.integrations.http.repeats import repeat
from nexus_tasks.integrations.http.slots import LONG_CALL
from nexus_tasks.types import DreamPlan, UndoReceipt

router = routes("consolidation")


class UndoBody(SpaceBody):
    """A reflection to undo."""

    reflection: int | str = Field(description="The reflection's number, or the id of the job that reflected.")


@router.post("/dream", status_code=202)
async def dream(caller: Writer, body: SpaceBody) -> RequestedJob:
    """Consolidate a namespace now: digest every session that has new messages, then reflect."""
    nexus, name = await caller.space(body.namespace)
    return RequestedJob.of(await nexus.adream(name))


@router.post("/dream/plan", dependencies=[LONG_CALL])
@repeat("anew")
async def plan_dream(caller: Corrector, body: SpaceBody) -> DreamPlan:
    """Show what a dream would do now. The model is asked, and a later dream does not pay for the answers again."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.adream_plans(name)


@router.post("/undo")
async def undo(caller: Corrector, body: UndoBody) -> UndoReceipt:
    """Undo one reflection: delete its memories, and restore the facts that it changed."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.aundo(name, body.reflection)
