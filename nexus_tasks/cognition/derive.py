"""derive_memory: facts about each subject, from a batch of messages of one session, as one observer holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.exc import NoResultFound

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.echo import is_echo, without_echo
from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.cognition.mind import GAVE_UP, Errand, Mind, ask
from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.errors import InvalidAnswer, Permanent
from nexus_tasks.llm.answers import DeriveMaterial, Line, Observation, Observations
from nexus_tasks.llm.base import Request
from nexus_tasks.settings import Settings
from nexus_tasks.storage import derivations, embeddings, facts, messages, perspectives, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, Session
from nexus_tasks.text import shorten
from nexus_tasks.types import JobOutcome, clean_text

MIN_CONFIDENCE = 0.70
LONGEST_FACT = 500  # characters
LONGEST_LABEL, MOST_LABELS = 40, 5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to derive: the batch that a run should gather, or why there is nothing to do (``outcome``)."""

    outcome: JobOutcome | None = None
    memory_ids: tuple[int, ...] = ()
    again: bool = False  # the members of a call that was cut off
    wait: float = 0.0  # seconds until the batch is ripe
    wanted_tokens: int = 0
    next_id: int | None = None  # the first message that did not fit: another run may begin with it at once


@dataclass(frozen=True, kw_only=True)
class DueDigest:
    """A session whose digest is due, and why."""

    session_key: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FollowUps:
    """What a derivation makes due: subjects to reflect on, and the session's digest."""

    reflect: tuple[str, ...] = ()
    digest: DueDigest | None = None


def plan(
    tx: Transaction, settings: Settings, namespace_id: int, memory_id: int, observer: str, *, alone: bool = False
) -> Plan:
    """Look at a message and its wanted siblings; ``alone`` leaves the siblings out (the job has crashed twice)."""
    memory = tx.get(Memory, memory_id)
    if memory is None or memory.namespace_id != namespace_id:
        return Plan(outcome=JobOutcome(status="gone"))
    if memory.level != "raw" or memory.session_id is None:
        return Plan(
            outcome=JobOutcome(status="skipped", details={"why": f"memory {memory.id} is {memory.level}, no message"})
        )
    state, batch = derivations.state(tx, namespace_id, memory, observer)
    if state == "done":
        return Plan(outcome=JobOutcome(status="already_derived"))
    if state == "dead":
        return Plan(outcome=GAVE_UP)
    if alone:
        return Plan(memory_ids=(memory_id,))
    if batch:
        members = derivations.wanted(tx, memory.session_id, observer, batch=batch)
        return Plan(memory_ids=tuple(m.memory_id for m in members), again=True)
    wanted = derivations.wanted(tx, memory.session_id, observer)
    session = tx.get_one(Session, memory.session_id)
    chosen = _batch(wanted, memory, settings.derive_batch_tokens)
    return Plan(
        memory_ids=chosen,
        next_id=next((one.memory_id for one in wanted if one.memory_id not in chosen), None),
        wait=_unripe(wanted, session, settings),
        wanted_tokens=sum(one.tokens for one in wanted),
    )


def _batch(wanted: Sequence[derivations.Wanted], lead: Memory, most: int) -> tuple[int, ...]:
    """The lead and the oldest wanted messages beside it, up to ``most`` tokens."""
    ids, tokens = [lead.id], lead.tokens
    for one in wanted:
        if one.memory_id != lead.id:
            if tokens + one.tokens > most:
                break
            ids.append(one.memory_id)
            tokens += one.tokens
    return tuple(sorted(ids))


def _unripe(wanted: Sequence[derivations.Wanted], session: Session, settings: Settings) -> float:
    """Seconds until the batch is ripe: big enough, old enough, or of a session that has ended."""
    if session.ended_at or not wanted or sum(one.tokens for one in wanted) >= settings.derive_min_tokens:
        return 0.0
    return max(settings.derive_max_wait - max(one.age for one in wanted), 0.0)


def derive(
    mind: Mind, errand: Errand, observer: str, memory_ids: Sequence[int], *, context: bool = True
) -> tuple[JobOutcome, FollowUps]:
    """Derive one batch: one model call, one transaction. ``context`` shows the model what was said before, too.

    Raises:
        InvalidAnswer, Permanent: the batch as a whole gave no answer; the caller may try halves.
    """
    with mind.database.transaction() as tx:
        batch = _load(tx, memory_ids)
        if not batch:
            return errand.commit(tx, JobOutcome(status="gone")), FollowUps()
        request = _request(tx, mind.settings, observer, batch, context=context)
    observations = _observations(mind, errand, request) if _anything(request.material) else []
    drafts = _drafts(observations, request.material, batch, mind.model.model_for("derive"))
    texts = [*(draft.content for draft in drafts), *(memory.content for memory in batch)]
    vectors = vectors_of(mind.embedder, texts)
    session_id = batch[0].session_id
    assert session_id is not None
    with mind.database.transaction() as tx:
        wanted = derivations.flip(tx, memory_ids, observer)
        _embed(tx, mind, errand, [m for m in batch if m.id in wanted], vectors)
        # From here on other batches about the same subjects wait: what does not need the perspectives comes before.
        kept = [draft for draft in drafts if wanted.issuperset(draft.sources)]
        held = perspectives.locked(tx, errand.namespace_id, observer, [draft.subject for draft in kept])
        stored = facts.keep(tx, held, kept)
        _embed(tx, mind, errand, [fact for fact in stored if fact.kept is not facts.Kept.REINFORCED], vectors)
        new = sum(fact.kept is facts.Kept.NEW for fact in stored)
        outcome = JobOutcome(
            status="completed" if wanted else "already_derived",
            details={
                "facts": new,
                "reinforced": len(stored) - new,
                "batch": len(wanted),
                "model": mind.model.model_for("derive"),
            },
        )
        errand.commit(tx, outcome)
    # After the commit: of two batches that end together, the last one to commit sees that nothing is wanted any more.
    with mind.database.reading() as tx:
        unreflected = perspectives.unreflected(tx, [row.id for row in held.values()])
        digest = _due_digest(tx, mind.settings, session_id)
    reflect = tuple(
        subject
        for subject, row in held.items()
        if unreflected.get(row.id, 0) >= mind.settings.reflect_min_new and not row.dead and row.held is None
    )
    return outcome, FollowUps(reflect=reflect, digest=digest)


def _embed(
    tx: Transaction,
    mind: Mind,
    errand: Errand,
    worded: Sequence[Memory | facts.Stored],
    vectors: Mapping[str, Vectors],
) -> None:
    """Store the vectors of messages or facts."""
    wordings = {one.id: one.content for one in worded}
    embeddings.store(tx, errand.namespace_id, mind.embedder.name, wordings, vectors)


def _load(tx: Transaction, memory_ids: Sequence[int]) -> list[Memory]:
    return list(tx.scalars(select(Memory).where(Memory.id.in_(memory_ids)).order_by(Memory.seq)))


def _request(
    tx: Transaction, settings: Settings, observer: str, batch: Sequence[Memory], *, context: bool
) -> Request[Observations]:
    session_id, first, last = batch[0].session_id, batch[0].seq, batch[-1].seq
    assert session_id is not None
    assert first is not None
    assert last is not None
    earlier = _earlier(tx, session_id, first, settings.derive_context_messages) if context else []
    lines = (*(_line(m, context_only=True) for m in earlier), *map(_line, batch))
    subjects = tuple(messages.participants(tx, session_id, last))
    return Request(
        purpose="derive",
        instructions=prompts.instructions("derive"),
        transcript=prompts.transcript(lines),
        question=f"The observer is {observer}. The subjects: {', '.join(subjects)}.",
        answer=Observations,
        material=DeriveMaterial(lines=lines, observer=observer, subjects=subjects),
        shared=derivations.has_other_observers(tx, [memory.id for memory in batch], observer),
    )


def _earlier(tx: Transaction, session_id: int, first: int, most: int) -> list[Memory]:
    """The messages before the batch, without those that no answer could be had for: they would spoil this one too."""
    before = messages.window(tx, session_id, 0, first - 1, limit=most) if most else []
    given_up = derivations.given_up(tx, [memory.id for memory in before])
    return [memory for memory in before if memory.id not in given_up]


def _observations(mind: Mind, errand: Errand, request: Request[Observations]) -> Sequence[Observation]:
    """The answer; a message that gives none is asked about once more on its own: what came before may be at fault."""
    assert isinstance(request.material, DeriveMaterial)
    batch = tuple(line for line in request.material.lines if not line.context_only)
    try:
        return ask(mind, errand, request).observations
    except (InvalidAnswer, Permanent):
        if len(batch) > 1 or len(batch) == len(request.material.lines):
            raise
    material = replace(request.material, lines=batch)
    return ask(mind, errand, replace(request, transcript=prompts.transcript(batch), material=material)).observations


def _line(memory: Memory, *, context_only: bool = False) -> Line:
    return Line(
        id=memory.id,
        author=memory.author or memory.role or "user",
        role=memory.role or "user",
        content=without_echo(memory.content),
        occurred_at=memory.occurred_at,
        context_only=context_only,
    )


def _anything(material: object) -> bool:
    assert isinstance(material, DeriveMaterial)
    return bool(material.subjects) and any(line.content for line in material.lines if not line.context_only)


def _drafts(
    observations: Sequence[Observation], material: object, batch: Sequence[Memory], made_by: str
) -> list[facts.Draft]:
    """The observations that hold: confident, about a wanted subject, citing messages of the batch, not an echo."""
    assert isinstance(material, DeriveMaterial)
    by_id = {memory.id: memory for memory in batch}
    by_fold = {subject.casefold(): subject for subject in material.subjects}
    subjects = by_fold | {subject: subject for subject in material.subjects}
    drafts = []
    for observation in observations:
        content = shorten(" ".join(clean_text(observation.content).split()), LONGEST_FACT)
        named = observation.subject.strip()
        subject = subjects.get(named) or subjects.get(named.casefold())
        sources = sorted(set(observation.sources))
        if not content or is_echo(content) or subject is None or observation.confidence < MIN_CONFIDENCE:
            continue
        if not sources or not all(source in by_id for source in sources):
            continue
        drafts.append(
            facts.Draft(
                subject=subject,
                content=content,
                category=observation.category,
                confidence=min(observation.confidence, 1.0),
                labels=_labels(observation.labels),
                sources=tuple(sources),
                valid_from=min(by_id[source].occurred_at for source in sources),
                session_id=batch[0].session_id,
                made_by=made_by,
            )
        )
    return drafts


def _labels(given: Sequence[str]) -> tuple[str, ...]:
    cleaned = (" ".join(clean_text(label).split())[:LONGEST_LABEL] for label in given)
    return tuple(label for label in cleaned if label)[:MOST_LABELS]


def _due_digest(tx: Transaction, settings: Settings, session_id: int) -> DueDigest | None:
    """The session's digest when it is due now that this batch is derived."""
    try:
        found = sessions.standing(tx, session_id)
    except NoResultFound:
        return None  # erased meanwhile
    if found.underived:
        return None
    due = found.messages >= settings.digest_min_messages or found.tokens >= settings.digest_short_tokens
    reason = found.requested or ("rollover" if due else None)
    return DueDigest(session_key=found.session_key, reason=reason) if reason else None
