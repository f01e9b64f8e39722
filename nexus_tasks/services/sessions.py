"""List, show and end sessions, and ask for a session's digest or extraction."""

from __future__ import annotations

from collections.abc import Sequence

from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.services import buffer_flush
from nexus_tasks.services.ingestion import SessionWriter
from nexus_tasks.storage import memories, namespaces, observations, sessions
from nexus_tasks.storage.messages import UNBOUNDED_SEQ
from nexus_tasks.tasks import digest_session, extract_session
from nexus_tasks.types import SessionDetails, SessionInfo, SourcedFact, as_stored, check_name, check_namespace


def list_sessions(deployment: Deployment, namespace: str, *, prefix: str, limit: int, offset: int) -> list[SessionInfo]:
    """See :meth:`nexus_tasks.client.Nexus.sessions`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        return sessions.listed(tx, known.id, as_stored(prefix), limit=limit, offset=offset)


def show_session(
    deployment: Deployment,
    namespace: str,
    session_key: str,
    *,
    after: int,
    before: int | None,
    newest: bool,
    ids: Sequence[str] | None,
    limit: int,
) -> SessionDetails:
    """See :meth:`nexus_tasks.client.Nexus.session`."""
    # An adapter gives these messages to a model as the history. When it takes back the newest message, it must not
    # erase an older message because the newest one still waits in the buffer.
    buffer_flush.store_pending(deployment)
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        session = sessions.get(tx, known.id, session_key)
        observed = observations.stats(tx, known.id, session.id)
        page = sessions.Page(
            after=after, before=UNBOUNDED_SEQ if before is None else before, limit=limit, newest=newest, ids=ids
        )
        return sessions.details(tx, session, observed[0] if observed else None, page)


def session_facts(
    deployment: Deployment,
    namespace: str,
    session_key: str,
    *,
    after: int,
    before: int | None,
    limit: int,
    offset: int,
    superseded: bool,
) -> list[SourcedFact]:
    """See :meth:`nexus_tasks.client.Nexus.session_facts`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        session = sessions.get(tx, known.id, session_key)
        before = UNBOUNDED_SEQ if before is None else before
        page = {"limit": limit, "offset": offset}
        return memories.facts_of_session(tx, session.id, after=after, before=before, superseded=superseded, **page)


def end_session(deployment: Deployment, namespace: str, session_key: str) -> JobResult | None:
    """See :meth:`nexus_tasks.client.Nexus.end_session`."""
    check_namespace(namespace)
    session_key = check_name("session_key", session_key)
    buffer_flush.store_pending(deployment, namespace, session_key)  # messages stored later would open the session again
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, namespace)
        writer = SessionWriter(deployment, tx, known, session_key)
        writer.end(sessions.get(tx, known.id, session_key, lock=True))
    writer.enqueue()
    if not writer.digest_wanted:
        return None
    request = digest_session.request(namespace, session_key, "session_end")
    return task_of(deployment.engine, request.kind).existing_result(request)


def digest(deployment: Deployment, namespace: str, session_key: str, *, rebuild: bool) -> JobResult:
    """See :meth:`nexus_tasks.client.Nexus.digest`."""
    check_namespace(namespace)
    reason: digest_session.Reason = "manual_rebuild" if rebuild else "manual_digest"
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, namespace)
        sessions.get(tx, known.id, check_name("session_key", session_key))
    return digest_session.digest_session.on(deployment).apply_async(
        kwargs={"namespace": namespace, "session_key": session_key, "reason": reason}
    )


def extract(deployment: Deployment, namespace: str, session_key: str) -> JobResult:
    """See :meth:`nexus_tasks.client.Nexus.extract`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        sessions.get(tx, known.id, check_name("session_key", session_key))
    return extract_session.extract_session.on(deployment).apply_async(
        kwargs={"namespace": namespace, "session_key": session_key.strip()}
    )
