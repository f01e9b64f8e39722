"""``/livez`` and ``/readyz``: whether the process lives, and whether Postgres and Redis answer it. Without a token."""

from __future__ import annotations

import asyncio
import json

from fastapi import APIRouter, Request
from sqlalchemy import text
from starlette.responses import Response

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NexusError

router = APIRouter(include_in_schema=False)


@router.get("/livez")
async def livez() -> Response:
    """Answer: the event loop of this process runs."""
    return _page([])


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Ask Postgres and Redis. The answer is 503 when one of them does not answer."""
    state = request.app.state
    # All who ask meanwhile get the same answer. Otherwise strangers could take every thread while a server is silent.
    if state.readiness is None or state.readiness.done():
        state.readiness = asyncio.ensure_future(asyncio.to_thread(_faults, state.nexus.deployment))
    return _page(await asyncio.shield(state.readiness))


def _faults(deployment: Deployment) -> list[str]:
    found = []
    for name, ask in (("postgres", _ask_postgres), ("redis", _ask_redis)):
        try:
            ask(deployment)
        except NexusError as error:
            found.append(f"{name}: {type(error).__name__}")  # the message may name hosts, and anybody reads this page
    return found


def _ask_postgres(deployment: Deployment) -> None:
    with deployment.database.reading() as tx:
        tx.execute(text("SELECT 1"))


def _ask_redis(deployment: Deployment) -> None:
    deployment.claims.now()


def _page(faults: list[str]) -> Response:
    body = json.dumps({"ok": not faults, "faults": faults})
    return Response(body, 503 if faults else 200, media_type="application/json")
