"""The job digest_session: write one digest of a session's new facts and messages, and commit the digest."""

from __future__ import annotations

from nexus_tasks.cognition.digest.rollover import want_rollover
from nexus_tasks.cognition.digest.summarize import Summary, summarize
from nexus_tasks.cognition.digest.window import PURPOSE, Window, next_window, save_window
from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.errors import Erased, InvalidAnswer, Permanent
from nexus_tasks.settings import Settings
from nexus_tasks.storage import (
    batches,
    digest_requests,
    digests,
    embeddings,
    memories,
    open_questions,
    sessions,
    webhooks,
)
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import SessionRow
from nexus_tasks.types import JobOutcome


def digest(
    resources: Resources,
    job: JobContext,
    session_key: str,
    *,
    force: bool,
    rebuild: bool,
    patient: bool = False,
) -> tuple[JobOutcome, bool]:
    """Write a digest of the facts and messages since a session's last digest.

    Args:
        force: write the digest even when the new messages are fewer than ``digest_min_messages`` and have fewer tokens
            than ``digest_short_tokens``.
        rebuild: ignore the last digest and begin at the session's first message.
        patient: whether no caller waits for the digest. A patient run may make the digest of a window (facts and
            messages) that an earlier run saved (see :func:`next_window`). The next run then covers the later messages.

    Returns:
        The outcome, and whether another run is due, because messages follow the window.

    Raises:
        InvalidAnswer, Permanent: the model gave no usable answer. When the window has messages whose derivation gave
            up, the function first asks once more without these messages.
        Erased: the model was shown a memory that has been erased. The job runs again.
    """
    with resources.database.transaction() as tx:
        session = sessions.find(tx, job.namespace_id, session_key, lock=True)
        if session is None:
            return job.commit(tx, JobOutcome(status="gone")), False
        # The reasons are also read from Postgres, because Redis may have lost the flags of the request.
        asked = digest_requests.pending(tx, session.id)
        force = force or any(reason != "rollover" for reason in asked.reasons)
        # The request for a new digest after an erasure may be dead. A digest of the later messages alone would miss the
        # beginning of the session for good.
        rebuild = rebuild or "manual_rebuild" in asked.reasons or digests.is_lost(tx, session)
        stop = _reason_to_stop(tx, resources.settings, session, force=force, rebuild=rebuild)
        if stop:
            digest_requests.satisfy(tx, session.id, asked.through)
            return job.commit(tx, stop), False
        covered = next_window(tx, session, asked.through, rebuild=rebuild, patient=patient)
        if patient and covered.lines and not covered.asked:
            job.still_mine()
            save_window(tx, covered)
    job.rests_on.update(covered.sources)
    previous = Summary(short=covered.previous.get("short", ""), long=covered.previous.get("long", ""))
    try:
        summary = summarize(resources, job, session_key, covered.lines, previous)
    except (InvalidAnswer, Permanent):
        covered = covered.without_given_up()
        if not covered.given_up or not covered.lines:
            raise
        summary = summarize(resources, job, session_key, covered.lines, previous)
    outcome = _store(resources, job, covered, summary)
    more = covered.session.last_seq > covered.end
    return outcome, more and (covered.asked or outcome.status == "completed")


def _reason_to_stop(
    tx: Transaction, settings: Settings, session: SessionRow, *, force: bool, rebuild: bool
) -> JobOutcome | None:
    if session.last_seq == 0:
        return JobOutcome(status="empty")
    if rebuild:
        return None
    if force:
        return JobOutcome(status="unchanged") if session.last_seq <= session.digest_end_seq else None
    if session.digest_end_seq == 0:
        return None
    new, tokens = sessions.count_undigested(tx, session)
    enough, enough_tokens = settings.digest_min_messages, settings.digest_short_tokens
    if new >= enough or tokens >= enough_tokens:
        return None
    why = f"{new:,} of {enough:,} messages, {tokens:,} of {enough_tokens:,} tokens"
    return JobOutcome(status="skipped", details={"why": why})


def _store(resources: Resources, job: JobContext, covered: Window, summary: Summary) -> JobOutcome:
    texts = {"short": summary.short, "long": summary.long}
    vectors = vectors_of(resources.embedder, list(texts.values()))
    with resources.database.transaction() as tx:
        session = sessions.find(tx, job.namespace_id, covered.session.session_key, lock=True)
        if session is None:
            return job.commit(tx, JobOutcome(status="gone"))
        if not memories.lock_existing(tx, job.rests_on):  # the evidence will name them
            raise Erased
        open_questions.close(tx, job.namespace_id, PURPOSE, session.id)
        # While a request waits for a batch, the session may grow. A live run then asks another question.
        batches.withdraw(tx, [job.job_id])
        if not texts["long"]:
            digest_requests.satisfy(tx, session.id, covered.requests)
            return job.commit(tx, JobOutcome(status="empty"))
        ids = digests.store(
            tx,
            session,
            digests.NewDigest(
                texts=texts,
                end_seq=covered.end,
                generation=covered.generation,
                sources=covered.sources,
                made_by=resources.model.model_for("digest"),
            ),
        )
        wordings = {memory_id: texts[kind] for kind, memory_id in zip(digests.KINDS, ids, strict=False)}
        embeddings.store(tx, job.namespace_id, resources.embedder.name, wordings, vectors)
        if covered.cut_off:
            digest_requests.keep_for_the_rest(tx, session, covered.requests)
        else:
            digest_requests.satisfy(tx, session.id, covered.requests)
        want_rollover(tx, resources.settings, session.id)  # new messages may have come during the model call
        details = {"digests": ids, "end_seq": covered.end, "generation": covered.generation}
        if ids:
            told = {"session_key": session.session_key, **details}
            webhooks.tell(tx, job.namespace_id, "session.digested", told)
        return job.commit(tx, JobOutcome(status="completed" if ids else "unchanged", details=details))
