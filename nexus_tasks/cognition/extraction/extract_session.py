"""The job extract_session: extract topics and facts from a session's new messages. Each batch has its own commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.cognition.extraction import facts, tool_calls, topics
from nexus_tasks.cognition.extraction.batch import ExtractionBatch, next_batch
from nexus_tasks.cognition.job_context import GAVE_UP, JobContext
from nexus_tasks.cognition.model_call import ask
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.errors import Erased, InvalidAnswer, JobError, Permanent
from nexus_tasks.settings import Settings
from nexus_tasks.storage import embeddings, extractions, ledger, memories, messages, perspectives, sessions
from nexus_tasks.storage import facts as stored_facts
from nexus_tasks.storage import topics as stored_topics
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.types import JobOutcome

# Both bounds are chosen by hand, not measured.
MOST_BATCHES = 20  # the most batches of one run; another run continues with the rest
RECENT = 200  # the most last messages that are searched for unanswered tool calls; they have at most 16 MB of text

Tally = Counter[str]


def extract(
    resources: Resources, job: JobContext, session_key: str, observers: Sequence[str]
) -> tuple[JobOutcome, bool]:
    """Extract topics and facts from a session.

    When one extractor gets no usable answer, its cursor does not move, and the other extractor continues.

    Args:
        observers: the observers for whom the facts are stored.

    Returns:
        The outcome, and whether another run is due because batches are left.

    Raises:
        InvalidAnswer, Permanent: an extractor got no usable answer.
        Erased: the model was shown a message that has been erased. The run is tried again.
    """
    done, failed = Tally(), dict[extractions.Extractor, JobError]()
    while True:
        with resources.database.transaction() as tx:
            batch = _next_batch(tx, resources.settings, job, session_key, failed)
            if failed and not isinstance(batch, ExtractionBatch):
                break
            if isinstance(batch, JobOutcome):
                details = {**_counts(done), **batch.details}
                if done["batches"] and batch.status == "skipped":
                    details.pop("why", None)  # it tells why no further batch follows, not what this run has done
                    return job.commit(tx, JobOutcome(status="completed", details=details)), False
                return job.commit(tx, JobOutcome(status=batch.status, details=details)), False
            if done["batches"] >= MOST_BATCHES:
                return job.commit(tx, JobOutcome(status="completed", details=_counts(done))), True
        try:
            work = _topics if batch.extractor == "topics" else _facts
            done += work(resources, job, session_key, batch, observers)
            done["batches"] += 1
        except (InvalidAnswer, Permanent) as error:
            failed[batch.extractor] = error
    raise next(iter(failed.values()))


def _counts(done: Tally) -> dict[str, int]:
    return {name: done[name] for name in ("topics", "facts", "rejected")}


def _next_batch(
    tx: Transaction,
    settings: Settings,
    job: JobContext,
    session_key: str,
    without: Collection[extractions.Extractor],
) -> ExtractionBatch | JobOutcome:
    # The session stays locked until the caller's transaction ends. During the lock, no message of the session can be
    # stored. So no new message is missed when the state "idle" is stored.
    session = sessions.find(tx, job.namespace_id, session_key, lock=True)
    if session is None:
        return JobOutcome(status="gone", details={"why": "the session does not exist any more"})
    row = extractions.find(tx, session.id, lock=True)
    if row is None:
        extractions.want(tx, session)
        row = extractions.find(tx, session.id, lock=True)
        assert row is not None
    if row.state == "dead":
        return GAVE_UP
    # After the session's end, nothing answers an open tool call any more.
    if session.ended_at is None and tool_calls.has_unanswered_calls(
        messages.bounded(tx, session.id, 0, RECENT, newest=True)[0]
    ):
        extractions.settle(tx, row, "held")
        return JobOutcome(status="skipped", details={"why": "a tool has not answered yet"})
    reasons = list[str]()
    for extractor in ("topics", "facts"):
        if extractor not in without:
            found = next_batch(tx, session, row, extractor, settings.extract_batch_tokens)
            if isinstance(found, ExtractionBatch):
                return found
            reasons.append(found)
    if not without:
        extractions.settle(tx, row, "idle")
    reach = {"topics_through": row.topics_through_seq, "facts_through": row.facts_through_seq}
    return JobOutcome(status="skipped", details={"why": "; ".join(reasons), **reach})


def _topics(
    resources: Resources, job: JobContext, session_key: str, batch: ExtractionBatch, _observers: Sequence[str]
) -> Tally:
    if not batch.lines:
        with resources.database.transaction() as tx:
            _advance_cursor(tx, job, batch, 0)
        return Tally()
    with resources.database.transaction() as tx:
        tokens = resources.settings.extract_shown_tokens
        request, shown = topics.build_request(tx, job.namespace_id, session_key, batch, tokens)
    asked = job.asked
    try:
        answer = ask(resources, job, request)
        asked = list(job.asked)  # `_advance_cursor` clears the list, and its transaction may be rolled back
        drafts, rejected = topics.drafts(answer, batch, shown, resources.model.model_for("topics"))
        with resources.database.transaction() as tx:
            if not _advance_cursor(tx, job, batch, rejected):
                return Tally()
            changed = stored_topics.store(tx, job.namespace_id, drafts)
            # Look after the changes, because these lock the topics that they write.
            if drafts and not stored_topics.are_there(tx, shown.ids):
                raise Erased
    except JobError:  # the error and the saved answer may quote a topic that was deleted meanwhile
        with resources.database.transaction() as tx:
            if stored_topics.are_there(tx, shown.ids):
                raise
            ledger.delete_answers(tx, job.namespace_id, asked)
        raise Erased from None
    return Tally(topics=changed, rejected=rejected)


def _facts(
    resources: Resources, job: JobContext, session_key: str, batch: ExtractionBatch, observers: Sequence[str]
) -> Tally:
    drafts, rejected = list[stored_facts.FactDraft](), 0
    with resources.database.transaction() as tx:
        user = facts.user_of(tx, batch.session_id)
    if user and batch.lines:
        answer = ask(resources, job, facts.build_request(session_key, batch, user))
        drafts, rejected = facts.drafts(answer, batch, user, resources.model.model_for("facts"))
    vectors = vectors_of(resources.embedder, facts.contents(drafts))
    new = 0
    with resources.database.transaction() as tx:
        if not _advance_cursor(tx, job, batch, rejected):
            return Tally()
        for observer in sorted(set(observers)):
            locked = perspectives.lock(tx, job.namespace_id, observer, [draft.subject for draft in drafts])
            kept = stored_facts.store(tx, locked, drafts)
            worded = {one.id: one.content for one in kept if one.change is not stored_facts.FactChange.REINFORCED}
            embeddings.store(tx, job.namespace_id, resources.embedder.name, worded, vectors)
            new += sum(one.change is stored_facts.FactChange.NEW for one in kept)
    return Tally(facts=new, rejected=rejected)


def _advance_cursor(tx: Transaction, job: JobContext, batch: ExtractionBatch, rejected: int) -> bool:
    """Move the cursor past the batch. Return ``False`` when another run has moved the cursor.

    After ``True`` the caller stores the results of the batch in ``tx``, the transaction that moves the cursor.
    """
    job.still_mine()
    if not memories.lock_existing(tx, job.rests_on):
        raise Erased
    if job.asked:
        ledger.delete_answers(tx, job.namespace_id, job.asked)
        job.asked.clear()
    job.rests_on.clear()
    return extractions.advance(tx, batch.seen, batch.extractor, batch.through, rejected)
