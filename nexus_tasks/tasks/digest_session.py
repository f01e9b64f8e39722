"""digest_session: the rolling summary of a session."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from nexus_tasks.cognition import digest
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run, Wait
from nexus_tasks.storage import sessions
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome

Reason = Literal["rollover", "dream_digest", "session_end", "manual_digest", "manual_rebuild"]
Urgency = Literal["live", "dream"]

# Digests that nobody asked for by hand wait until the session is derived: facts are shorter than what was said.
PATIENT = frozenset(("rollover", "session_end"))
PATIENCE, LOOK_AGAIN = 300.0, 10.0  # seconds


class DigestSession(Arguments):
    """Any reason but ``rollover`` forces a digest below the threshold. ``urgency=None``: tonight will do for a dream's
    digests, somebody waits for the others.
    """

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name
    reason: Reason = "rollover"
    urgency: Urgency | None = None

    def flags(self) -> Flags:
        """Requests for one session merge: a forced one is never swallowed by a rollover that came first."""
        urgency = self.urgency or ("dream" if self.reason == "dream_digest" else "live")
        return Flags(force=self.reason != "rollover", reasons=(self.reason,), urgency=urgency)


@job(arguments=DigestSession, queue="digest")
def digest_session(run: Run, arguments: DigestSession) -> JobOutcome:
    """Digest what is new in a session."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    reasons = frozenset(run.flags.reasons)
    waited = (run.lead.started_at or 0.0) - run.lead.enqueued_at
    if reasons <= PATIENT and not run.eager and waited < PATIENCE:
        with here.database.reading() as tx:
            waiting = sessions.count_underived(tx, namespace.id, arguments.session_key)
        if waiting:
            raise Wait("derivation", LOOK_AGAIN, f"{waiting} messages to derive")
    outcome, more = digest.digest(
        here.resources,
        job_context(run, namespace),
        arguments.session_key,
        force=run.flags.force,
        rebuild="manual_rebuild" in reasons,
        patient=run.flags.urgency == "dream",
    )
    if more:
        follow_ups.ask([_the_rest(run, arguments)])
    follow_ups.dream_goes_on(namespace)
    return outcome


def _the_rest(run: Run, arguments: DigestSession) -> Request:
    """The same once more, for what came after the model had been asked; a rebuild is done, and goes on from its end."""
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
    """The request for a digest; ``after_derivation`` lets it wait for the session's messages to be derived."""
    return digest_session.request_for(
        DigestSession(namespace=namespace, session_key=session_key, reason=reason, urgency=urgency),
        delay=LOOK_AGAIN if after_derivation else 0.0,
        wait_reason="derivation",
    )
