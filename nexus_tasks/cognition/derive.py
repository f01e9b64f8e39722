"""The job derive_memory: find facts in a batch of messages of one session, for one observer.

The prompt is ``prompts/derive.md``. (``prompts/facts.md`` is the prompt of another job, see ``extraction/facts.py``.)
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.exc import NoResultFound

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.digest.rollover import want_rollover
from nexus_tasks.cognition.echo import is_echo, retelling, told_by, without_echo
from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.cognition.job_context import GAVE_UP, JobContext
from nexus_tasks.cognition.model_call import ask
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.cognition.standing import standing_of, work_of
from nexus_tasks.cognition.subjects import Subjects
from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.errors import Erased, InvalidAnswer, Permanent
from nexus_tasks.event_time import Span, answered_time, event_time, zone
from nexus_tasks.llm.answers import DeriveMaterial, Observation, Observations, PromptLine
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.settings import Settings
from nexus_tasks.storage import derivations, embeddings, facts, memories, messages, perspectives, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.shown import REACH
from nexus_tasks.text import shorten
from nexus_tasks.types import JobOutcome, clean_text, standing_rank

# An observation (a fact in the model's answer) with a lower confidence is dropped. Chosen by hand, not measured.
MIN_CONFIDENCE = 0.70
# How the names of stored batches begin: of parts of a batch that was halved, and of batches that were halved in vain.
PART, UNANSWERED = "part-", "unanswered-"
# A model's answer is untrusted, so these bounds limit its length. They are chosen by hand, not measured.
LONGEST_FACT = 500  # characters of a fact
LONGEST_LABEL, MOST_LABELS = 40, 5  # characters of a label, and labels of a fact
MOST_PER_MESSAGE = 100  # facts from one message
_SET_BACK = 1.0  # seconds; of messages so far in the future, the clock of Postgres was set back since they were stored
# A longer message is shortened in the prompt (see ``prompts.fitting``), and so it counts as at most this many tokens.
MOST_TOKENS = prompts.LONGEST_MESSAGE // 4


@dataclass(frozen=True, kw_only=True)
class DerivationPlan:
    """The batch that a run should derive, or the ``outcome`` of a run that has nothing to derive."""

    outcome: JobOutcome | None = None
    memory_ids: tuple[int, ...] = ()
    again: bool = False  # whether an earlier run stored this batch and then ended without storing facts
    unanswered: bool = False  # whether the model has answered nothing about the whole batch
    part: bool = False  # whether the batch is a part of a larger batch, which got no usable answer
    failures: int = 0  # how many calls about the larger batch and its parts have failed in a row
    wait: float = 0.0  # seconds until the session is ripe
    wanted_tokens: int = 0  # tokens of the session's messages that are not derived for this observer yet
    # The id of the oldest message that did not fit into the batch. The caller makes another run due for this message.
    next_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class DueDigest:
    """A session whose digest is due, and the reason for the digest."""

    session_key: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FollowUps:
    """The work that is due after a derivation: the subjects to reflect on, and the session's digest."""

    reflect: tuple[str, ...] = ()
    digest: DueDigest | None = None


def plan_derivation(
    tx: Transaction,
    settings: Settings,
    namespace_id: int,
    memory_id: int,
    observer: str,
    *,
    alone: bool = False,
    crashed: bool = False,
) -> DerivationPlan:
    """Choose the batch of a derivation: the message ``memory_id``, and other messages of its session without facts yet.

    Args:
        alone: leave out the other messages, unless the model has answered nothing about the whole batch. The caller
            sets ``alone`` when the job has failed twice.
        crashed: leave out the other messages in any case. The caller sets ``crashed`` when the job has crashed twice.
    """
    primary = derivations.find_target(tx, memory_id, observer)
    if primary is None or primary.namespace_id != namespace_id:
        return DerivationPlan(outcome=JobOutcome(status="gone"))
    if primary.level != "raw" or primary.session_id is None:
        return DerivationPlan(
            outcome=JobOutcome(status="skipped", details={"why": f"memory {memory_id} is {primary.level}, no message"})
        )
    if primary.state is None:
        derivations.want(tx, namespace_id, primary.session_id, memory_id, observer)
    if primary.state == "done":
        return DerivationPlan(outcome=JobOutcome(status="already_derived"))
    if primary.state == "dead":
        return DerivationPlan(outcome=GAVE_UP)
    batch = primary.batch or ""
    if crashed or (alone and not batch.startswith(UNANSWERED)):
        return DerivationPlan(memory_ids=(memory_id,), part=batch.startswith(PART))
    if batch:
        members = derivations.wanted_messages(tx, primary.session_id, observer, batch=batch)
        return DerivationPlan(
            memory_ids=tuple(m.memory_id for m in members),
            again=True,
            unanswered=batch.startswith(UNANSWERED),
            part=batch.startswith(PART),
            failures=int(batch.split("-")[1]) if batch.startswith(PART) else 0,
        )
    wanted = derivations.wanted_messages(tx, primary.session_id, observer, near=primary.seq)
    chosen = _choose_batch(wanted, memory_id, primary.seq or 0, primary.tokens, settings.derive_batch_tokens)
    return DerivationPlan(
        memory_ids=chosen,
        next_id=next((one.memory_id for one in wanted if one.memory_id not in chosen), None),
        wait=0.0 if primary.ended else _seconds_until_ripe(wanted, settings),
        wanted_tokens=sum(one.tokens for one in wanted),
    )


def store_part(tx: Transaction, memory_ids: Sequence[int], observer: str, *, failures: int) -> None:
    """Store that these messages are a part of a batch without a usable answer. Later runs ask about the part alone.

    Args:
        failures: how many calls about the batch and its parts have failed in a row.
    """
    derivations.store_batch(tx, memory_ids, observer, f"{PART}{failures}-{uuid.uuid4().hex}")


def store_unanswered(tx: Transaction, memory_ids: Sequence[int], observer: str) -> None:
    """Store a batch about which the model has answered nothing. The next run begins with the whole batch again."""
    derivations.store_batch(tx, memory_ids, observer, f"{UNANSWERED}{uuid.uuid4().hex}")


def _choose_batch(
    wanted: Sequence[derivations.WantedMessage], primary_id: int, seq: int, tokens: int, most: int
) -> tuple[int, ...]:
    """Ids of the message ``primary_id``, which the job was asked for, and of the oldest other messages near it.

    Together the messages have at most ``most`` tokens, unless the message ``primary_id`` alone has more. A message
    counts as at most ``MOST_TOKENS``. No two messages are farther apart in their session than ``REACH``, because an
    erasure looks no farther for facts that were worded by the erased message.

    Args:
        seq: the place of the message ``primary_id`` in its session.
        tokens: the tokens of the message ``primary_id``.
    """
    ids, first, last = [primary_id], seq, seq
    tokens = min(tokens, MOST_TOKENS)
    for one in wanted:
        if one.memory_id != primary_id and max(last, one.seq) - min(first, one.seq) <= REACH:
            if tokens + min(one.tokens, MOST_TOKENS) > most:
                break
            first, last = min(first, one.seq), max(last, one.seq)
            ids.append(one.memory_id)
            tokens += min(one.tokens, MOST_TOKENS)
    return tuple(sorted(ids))


def _seconds_until_ripe(wanted: Sequence[derivations.WantedMessage], settings: Settings) -> float:
    """Seconds until an open session is ripe, which means that its ``wanted`` messages may be derived.

    The session is ripe when the messages have ``derive_min_tokens`` tokens together, or when the oldest message has
    waited for ``derive_max_wait`` seconds. It is ripe, too, when all messages are of the future: the clock of Postgres
    was set back, and nobody knows how long they have waited.
    """
    if not wanted or sum(one.tokens for one in wanted) >= settings.derive_min_tokens:
        return 0.0
    oldest = max(one.age for one in wanted)
    is_of_the_future = oldest < -_SET_BACK
    return 0.0 if is_of_the_future else max(settings.derive_max_wait - oldest, 0.0)


def derive(
    resources: Resources,
    job: JobContext,
    observer: str,
    memory_ids: Sequence[int],
    *,
    context: bool = True,
    call: str | None = None,
) -> tuple[JobOutcome, FollowUps]:
    """Derive one batch: ask the model for facts, and commit the facts in one transaction.

    Args:
        context: also show the model at most ``derive_context_messages`` messages from before the batch.
        call: a new id for the batch. The batch is stored under this id before the model is asked, so that a rerun asks
            about the same messages. With ``None`` the batch is not stored, because its messages have been stored
            before, alone or as a part of a larger batch.

    Returns:
        The outcome, and the work that the derivation makes due.

    Raises:
        InvalidAnswer, Permanent: the model gave no usable answer about the batch. The caller may try each half of the
            batch separately.
    """
    with resources.database.transaction() as tx:
        if call:
            derivations.store_batch(tx, memory_ids, observer, call)
        most = resources.settings.derive_context_messages if context else 0
        batch = messages.derivation_batch(tx, memory_ids, observer, context=most)
        if batch is None:
            return job.commit(tx, JobOutcome(status="gone")), FollowUps()
        shown = (*batch.earlier, *batch.messages)
        told = told_by(tx, job.namespace_id, ((one.role, one.content) for one in shown))
    request = build_request(observer, batch, told)
    observations = _ask_for_observations(resources, job, request) if _has_content(request.material) else []
    drafts, rejected = _drafts(observations, request.material, batch, resources.model.model_for("derive"))
    texts = [*(draft.content for draft in drafts), *(one.content for one in batch.messages)]
    vectors = vectors_of(resources.embedder, texts)
    with resources.database.transaction() as tx:
        perspectives.take_turn(tx, job.namespace_id, observer, [draft.subject for draft in drafts])
        # The locks are taken in the order in which an erasure takes them: session, messages, perspectives, facts.
        sessions.lock_existing(tx, batch.session_id)
        if not memories.lock_existing(tx, job.rests_on):
            raise Erased
        wanted = derivations.mark_done(tx, memory_ids, observer)
        kept = [draft for draft in drafts if wanted.issuperset(draft.sources)]
        kept = _without_echoes(tx, job.namespace_id, observer, kept, batch, rejected)
        locked = perspectives.lock(tx, job.namespace_id, observer, [draft.subject for draft in kept])
        stored = facts.store(tx, locked, kept)
        said = [one for one in batch.messages if one.id in wanted]
        worded = [fact for fact in stored if fact.change is not facts.FactChange.REINFORCED]
        _embed(tx, resources, job, [*said, *worded], vectors)
        new = sum(fact.change is facts.FactChange.NEW for fact in stored)
        outcome = JobOutcome(
            status="completed" if wanted else "already_derived",
            details={
                "facts": new,
                "reinforced": len(stored) - new,
                "batch": len(wanted),
                "model": resources.model.model_for("derive"),
                **({"rejected": dict(sorted(rejected.items()))} if rejected else {}),
            },
        )
        want_rollover(tx, resources.settings, batch.session_id)
        job.commit(tx, outcome)
    # These counts are read after the commit, because two batches of a session may end at the same time. The run that
    # commits last then sees that no message is left, and asks for the digest.
    with resources.database.reading() as tx:
        unreflected = perspectives.count_unreflected(tx, [row.id for row in locked.values()])
        digest = _due_digest(tx, batch.session_id)
    reflect = tuple(
        subject
        for subject, row in locked.items()
        if unreflected.get(row.id, 0) >= resources.settings.reflect_min_new and not row.dead and row.held is None
    )
    return outcome, FollowUps(reflect=reflect, digest=digest)


def _embed(
    tx: Transaction,
    resources: Resources,
    job: JobContext,
    worded: Sequence[messages.MessageText | facts.StoredFact],
    vectors: Mapping[str, Vectors],
) -> None:
    """Store the vectors of messages or facts. For a text without a vector, the job embed_memories stores one later."""
    wordings = {one.id: one.content for one in worded}
    embeddings.store(tx, job.namespace_id, resources.embedder.name, wordings, vectors)


def build_request(
    observer: str, batch: messages.DerivationBatch, told: Mapping[int, str]
) -> ModelRequest[Observations]:
    """The model request for a batch. ``told`` is what memory told the agent before (see ``echo.py``)."""
    lines = (
        *(_line(one, told, context_only=True) for one in batch.earlier),
        *(_line(one, told) for one in batch.messages),
    )
    return ModelRequest(
        purpose="derive",
        instructions=prompts.instructions("derive"),
        transcript=_transcript(lines),
        question=prompts.names(observer=observer, subjects=batch.participants),
        answer=Observations,
        material=DeriveMaterial(lines=lines, observer=observer, subjects=batch.participants),
        shared=batch.other_observers,
    )


def _ask_for_observations(
    resources: Resources, job: JobContext, request: ModelRequest[Observations]
) -> Sequence[Observation]:
    """Ask the model, and return the observations in its answer.

    When a batch of one message gets no usable answer, this function asks once more, without the earlier messages.
    """
    assert isinstance(request.material, DeriveMaterial)
    batch = tuple(line for line in request.material.lines if not line.context_only)
    try:
        return ask(resources, job, request).observations
    except (InvalidAnswer, Permanent):
        if len(batch) > 1 or len(batch) == len(request.material.lines):
            raise
    material = replace(request.material, lines=batch)
    return ask(resources, job, replace(request, transcript=_transcript(batch), material=material)).observations


def _transcript(lines: Sequence[PromptLine]) -> str:
    """The lines in a prompt. The material keeps the whole lines, because the offline model reads them at no cost."""
    return prompts.transcript(map(prompts.fitting, lines))


def _line(said: messages.MessageText, told: Mapping[int, str], *, context_only: bool = False) -> PromptLine:
    return PromptLine(
        id=said.id,
        author=said.author,
        role=said.role,
        content=without_echo(said.content, said.role, told),
        occurred_at=said.occurred_at,
        context_only=context_only,
        time_zone=said.time_zone,
    )


def _has_content(material: object) -> bool:
    assert isinstance(material, DeriveMaterial)
    return bool(material.subjects) and any(line.content for line in material.lines if not line.context_only)


def _drafts(
    observations: Sequence[Observation], material: object, batch: messages.DerivationBatch, made_by: str
) -> tuple[list[facts.FactDraft], Counter[str]]:
    """The observations to keep, as facts, and the number of rejected observations by cause.

    An observation is rejected for one of these causes:

    - ``empty`` or ``echo``: its content is empty, or begins like a line that search or context rendered.
    - ``subject``: its subject is not one of the batch's subjects.
    - ``confidence``: its confidence is below 0.70.
    - ``sources``: it has no source, or one of its sources is not a message of the batch.
    - ``too_many``: one of its sources has given 100 facts already.
    - ``standing``: it is about a person, and only an assistant or a tool says so (see ``standing.py``).
    """
    assert isinstance(material, DeriveMaterial)
    by_id = {one.id: one for one in batch.messages}
    subjects = Subjects(material.subjects, material.lines)
    drafts, rejected, given = list[facts.FactDraft](), Counter[str](), Counter[int]()
    for observation in observations:
        content = shorten(" ".join(clean_text(observation.content).split()), LONGEST_FACT)
        subject = subjects.find(observation.subject)
        sources = sorted(set(observation.sources))
        if cause := _cause_to_reject(observation, content, subject, sources, by_id, given):
            rejected[cause] += 1
            continue
        assert subject is not None
        said = [by_id[source] for source in sources]
        if subject in batch.people:
            subject = work_of(content, said) or subject
        standing = standing_of(subject, said, batch.people)
        if standing is None:
            rejected["standing"] += 1
            continue
        given.update(sources)
        first = min(said, key=lambda one: one.occurred_at)
        drafts.append(
            facts.FactDraft(
                subject=subject,
                content=content,
                category=observation.category,
                confidence=min(observation.confidence, 1.0),
                labels=_labels(observation.labels),
                sources=tuple(sources),
                valid_from=first.occurred_at,
                session_id=batch.session_id,
                made_by=made_by,
                standing=standing_rank(standing),
                event=_event(observation.occurred_at, content, first),
                time_zone=first.time_zone,
            )
        )
    return drafts, rejected


def _without_echoes(
    tx: Transaction,
    namespace_id: int,
    observer: str,
    drafts: list[facts.FactDraft],
    batch: messages.DerivationBatch,
    rejected: Counter[str],
) -> list[facts.FactDraft]:
    """The drafts without what an agent only says again: a fact about an agent in the words of a fact about a person."""
    if all(draft.subject in batch.people for draft in drafts):
        return drafts
    known = [draft.content for draft in drafts if draft.subject in batch.people]
    known += facts.wordings(tx, namespace_id, observer, sorted(batch.people))
    again = retelling(known, batch.participants)
    kept = [draft for draft in drafts if draft.subject in batch.people or not again(draft.content)]
    if len(kept) < len(drafts):
        rejected["echo"] += len(drafts) - len(kept)
    return kept


def _cause_to_reject(
    observation: Observation,
    content: str,
    subject: str | None,
    sources: Sequence[int],
    by_id: Mapping[int, messages.MessageText],
    given: Mapping[int, int],
) -> str:
    if not content:
        return "empty"
    if is_echo(content):
        return "echo"
    if subject is None:
        return "subject"
    if observation.confidence < MIN_CONFIDENCE:
        return "confidence"
    if not sources or not all(source in by_id for source in sources):
        return "sources"
    return "too_many" if any(given.get(source, 0) >= MOST_PER_MESSAGE for source in sources) else ""


def _event(answered: str | None, content: str, said: messages.MessageText) -> Span | None:
    """The time of which a fact speaks: as the model answered, or else as the fact's own words say."""
    where = zone(said.time_zone)
    return answered_time(answered, said.occurred_at, where) or event_time(content, said.occurred_at, where)


def _labels(given: Sequence[str]) -> tuple[str, ...]:
    cleaned = (" ".join(clean_text(label).split())[:LONGEST_LABEL] for label in given)
    return tuple(label for label in cleaned if label)[:MOST_LABELS]


def _due_digest(tx: Transaction, session_id: int) -> DueDigest | None:
    """The session's digest if it is due, else ``None``. It is not due while a message waits for its derivation."""
    try:
        found = sessions.backlog(tx, session_id)
    except NoResultFound:
        return None  # Another transaction has erased the session.
    if found.underived:
        return None
    return DueDigest(session_key=found.session_key, reason=found.digest_reason) if found.digest_reason else None
