"""The observation log of a session: show it, undo its last condensation, and clear the current task."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from nexus_tasks.integrations.http.caller import Corrector, Reader
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import ClearedTask
from nexus_tasks.integrations.http.parameters import Namespace, SessionBody, SessionKey
from nexus_tasks.integrations.http.repeats import repeat
from nexus_tasks.types import ObservationText

router = routes("sessions")


@router.get("/session/log")
async def observation_log(
    caller: Reader,
    session_key: SessionKey,
    namespace: Namespace = None,
    generation: Annotated[int | None, Query(ge=0, description="Show the text that this generation replaced.")] = None,
) -> ObservationText:
    """Show the notes on a session's old messages, and what condensations have replaced."""
    nexus, name = await caller.space(namespace)
    return await nexus.aobservation_log(name, session_key, generation=generation)


@router.post("/session/log/undo")
@repeat("refused")
async def undo_condensation(caller: Corrector, body: SessionBody) -> ObservationText:
    """Undo the last condensation of the notes. The notes that came since then stay."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.aundo_condensation(name, body.session_key)


@router.post("/session/task/clear")
async def clear_task(caller: Corrector, body: SessionBody) -> ClearedTask:
    """Clear the current task and the suggested response of the notes."""
    nexus, name = await caller.space(body.namespace)
    return ClearedTask(cleared=await nexus.aclear_task(name, body.session_key))
