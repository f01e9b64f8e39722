"""digest_session: the job that writes the rolling summary of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Literal, cast, get_args

from pydantic import field_validator

from nexus_tasks.cognition import digest
from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.kind import Arguments, Outbox
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.worker.run import Run, Wait
from nexus_tasks.storage import digest_requests, namespaces, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.outboxes import read
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome, Urgency

Reason = Literal["rollover", "dream_digest", "session_end", "manual_digest", "manual_rebuild"]

# A digest for these reasons waits until its session is derived. Then the digest reads facts, which are shorter than
# messages.
PATIENT = frozenset(("rollover", "session_end"))
DERIVATION = "derivation"  # the reason for which such a digest waits
PATIENCE, LOOK_AGAIN = 300.0, 10.0  # seconds: the longest wait for derivations, and the time between two checks


class DigestSession(Arguments):
    """The session to digest, and why. Any reason but ``rollover`` forces a digest even below the threshold.

    ``reason=None`` means ``rollover``. ``urgency=None`` means ``dream`` for the digests of a dream, and ``live`` for
    all other digests.
    """

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name
    reason: Reason = "rollover"
    urgency: Urgency | None = None

    @field_validator("reason", mode="before")
    @classmethod
    def _default_reason(cls, value: Any) -> Any:
        return "rollover" if value is None else value

    def flags(self) -> Flags:
        """The flags of this request. The merged request is forced when one of the requests for a session is forced."""
        urgency = self.urgency or ("dream" if self.reason == "dream_digest" else "live")
        return Flags(force=self.reason != "rollover", reasons=(self.reason,), urgency=urgency)


def _wanted(_deployment: Deployment, tx: Transaction, after: int, limit: int) -> list[tuple[int, DigestSession | None]]:
    # The last derivation of a session asks for the session's digest. So reconcile asks for it only after 300 s.
    rows = digest_requests.wanted(tx, after, limit, timedelta(seconds=PATIENCE))
    return [(cursor, _asked(*row) if ready else None) for cursor, *row, ready in rows]


def _asked(namespace: str, session_key: str, reason: str) -> DigestSession | None:
    known = cast(Reason, reason) if reason in get_args(Reason) else "session_end"  # a newer release may know others
    return read(DigestSession, namespace=namespace, session_key=session_key, reason=known)


def _mark(tx: Transaction, namespace_id: int, args: Any, *, dead: bool) -> None:
    digest_requests.mark(tx, namespace_id, args["session_key"], dead=dead)


def _want(tx: Transaction, asked: Sequence[DigestSession]) -> None:
    """Write rows for digests that a caller asks for. A rollover and a dream have written their rows already."""
    for one in asked:
        if one.reason not in ("rollover", "dream_digest"):
            session = sessions.find(tx, namespaces.get(tx, one.namespace).id, one.session_key)
            if session:
                digest_requests.add(tx, session, one.reason)


@job(
    arguments=DigestSession,
    queue="digest",
    outbox=Outbox(page=_wanted, mark=_mark, newest=digest_requests.newest_wanted, want=_want),
    probe=probe_model("digest"),
    awaits=DERIVATION,
    live_ends_wait="batch",
)
@in_namespace
def digest_session(work: NamespaceRun, arguments: DigestSession) -> JobOutcome:
    """Digest the new messages of a session."""
    run, namespace = work.run, work.namespace
    reasons = frozenset(run.flags.reasons)
    waited = (run.primary.started_at or 0.0) - run.primary.enqueued_at
    if reasons <= PATIENT and not run.eager and waited < PATIENCE:
        with work.database.reading() as tx:
            waiting = sessions.count_underived(tx, namespace.id, arguments.session_key)
        if waiting:
            raise Wait(DERIVATION, LOOK_AGAIN, f"{waiting} {'message' if waiting == 1 else 'messages'} to derive")
    outcome, more = digest.digest(
        work.resources,
        work.context(),
        arguments.session_key,
        force=run.flags.force,
        rebuild="manual_rebuild" in reasons,
        patient=run.flags.urgency == "dream",
    )
    if more:
        follow_ups.ask(work.deployment, [_the_rest(run, arguments)])
    follow_ups.hurry_dream(work.deployment, namespace)
    return outcome


def _the_rest(run: Run, arguments: DigestSession) -> Request:
    """The request for one more digest, of messages that came after the model was asked. It is never a rebuild."""
    reasons = tuple("manual_digest" if reason == "manual_rebuild" else reason for reason in run.flags.reasons)
    asked = digest_session.request_for(arguments)
    return replace(asked, flags=replace(run.flags, reasons=reasons))


def request(
    namespace: str,
    session_key: str,
    reason: Reason,
    *,
    urgency: Urgency | None = None,
    after_derivation: bool = False,
) -> Request:
    """The request for a digest. With ``after_derivation`` it waits until the session's messages are derived."""
    return digest_session.request_for(
        DigestSession(namespace=namespace, session_key=session_key, reason=reason, urgency=urgency),
        delay=LOOK_AGAIN if after_derivation else 0.0,
        wait_reason=DERIVATION,
    )
