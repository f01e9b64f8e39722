"""When a session's next digest is due by itself."""

from __future__ import annotations

from nexus_tasks.settings import Settings
from nexus_tasks.storage import digest_requests
from nexus_tasks.storage.engine import Transaction


def want_rollover(tx: Transaction, settings: Settings, session_id: int) -> None:
    """Request a digest of a session with ``digest_min_messages`` or ``digest_short_tokens`` since its last digest.

    Call this in each transaction that derives messages or stores a digest: the request then outlives the process and
    Redis. Reconcile keeps it back while messages of the session are underived.
    """
    digest_requests.want_rollover(
        tx, session_id, messages=settings.digest_min_messages, tokens=settings.digest_short_tokens
    )
