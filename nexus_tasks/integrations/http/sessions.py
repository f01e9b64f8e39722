"""Sessions: list, show, end, digest, extract and erase them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field

from nexus_tasks import limits
from nexus_tasks.integrations.http.caller import Corrector, Eraser, Reader, Writer
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import EndedSession, FactPage, RequestedJob, SessionPage, next_offset
from nexus_tasks.integrations.http.parameters import Limit, Namespace, Offset, SessionBody, SessionKey
from nexus_tasks.types import ForgetReceipt, SessionDetails

router = routes("sessions")


class DigestBody(SessionBody):
    """A session to digest."""

    rebuild: bool = Field(False, description="Make the digest again, from the first message to the last.")


@router.get("/sessions")
async def list_sessions(
    caller: Reader, namespace: Namespace = None, limit: Limit = 100, offset: Offset = 0
) -> SessionPage:
    """List sessions with their figures, newest first."""
    nexus, name = await caller.space(namespace)
    found = await nexus.asessions(name, limit=limit, offset=offset)
    return SessionPage(namespace=name, sessions=tuple(found), next_offset=next_offset(found, limit, offset))


@router.get("/session")
async def show_session(
    caller: Reader,
    session_key: SessionKey,
    namespace: Namespace = None,
    after: Annotated[int, Query(ge=0, description="Only messages with a greater seq: next_after of a page.")] = 0,
    before: Annotated[int | None, Query(ge=0, description="Only messages with a smaller seq, the newest ones.")] = None,
    newest: Annotated[bool, Query(description="The newest messages instead of the first ones.")] = False,
    ids: Annotated[list[str] | None, Query(description="Only messages with these ids of yours.")] = None,
    limit: Limit = limits.PAGE_ROWS,
) -> SessionDetails:
    """Show one session: its figures, its digests and a page of its messages."""
    nexus, name = await caller.space(namespace)
    return await nexus.asession(name, session_key, after=after, before=before, newest=newest, ids=ids, limit=limit)


@router.get("/session/facts")
async def session_facts(
    caller: Reader,
    session_key: SessionKey,
    namespace: Namespace = None,
    after: Annotated[int, Query(ge=0, description="Only facts of messages with a greater seq.")] = 0,
    before: Annotated[int | None, Query(ge=0, description="Only facts of messages with a smaller seq.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    superseded: Annotated[bool, Query(description="Also list superseded and expired facts.")] = False,
) -> FactPage:
    """List the facts that rest on a session's messages, or on some of them."""
    nexus, name = await caller.space(namespace)
    page = {"limit": limit, "offset": offset}
    found = await nexus.asession_facts(name, session_key, after=after, before=before, superseded=superseded, **page)
    following = next_offset(found, limit, offset)
    return FactPage(namespace=name, session_key=session_key, facts=tuple(found), next_offset=following)


@router.delete("/session")
async def forget_session(caller: Eraser, session_key: SessionKey, namespace: Namespace = None) -> ForgetReceipt:
    """Erase a session, and what rests on it alone. An erasure cannot be undone."""
    nexus, name = await caller.space(namespace)
    return await nexus.aforget(name, session_key=session_key)


@router.post("/session/end")
async def end_session(caller: Writer, body: SessionBody) -> EndedSession:
    """End a session: its waiting derivations run now, and then a job digests it."""
    nexus, name = await caller.space(body.namespace)
    job = await nexus.aend_session(name, body.session_key)
    return EndedSession(namespace=name, session_key=body.session_key, job=RequestedJob.of(job) if job else None)


@router.post("/session/digest", status_code=202)
async def digest(caller: Corrector, body: DigestBody) -> RequestedJob:
    """Digest a session now, even if only few messages are new."""
    nexus, name = await caller.space(body.namespace)
    return RequestedJob.of(await nexus.adigest(name, **body.given()))


@router.post("/session/extract", status_code=202)
async def extract(caller: Writer, body: SessionBody) -> RequestedJob:
    """Extract topics and facts from the messages since the last extraction."""
    nexus, name = await caller.space(body.namespace)
    return RequestedJob.of(await nexus.aextract(name, body.session_key))
