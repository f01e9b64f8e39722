"""Request the next digest of a session when enough messages are new since the last one."""

from __future__ import annotations

from nexus_tasks.settings import Settings
from nexus_tasks.storage import digest_requests
from nexus_tasks.storage.engine import Transaction


def want_rollover(tx: Transaction, settings: Settings, session_id: int) -> None:
    """Request a digest of a session if at least ``digest_min_messages`` messages are new since its last digest.

    New messages with at least ``digest_short_tokens`` tokens are also enough. Call this function in each transaction
    that derives messages or stores a digest. The request is then a row in Postgres, so it survives a crash of the
    process or of Redis. Reconcile waits at most 300 s for the session's derivations before it enqueues the digest.
    """
    digest_requests.want_rollover(
        tx, session_id, messages=settings.digest_min_messages, tokens=settings.digest_short_tokens
    )
