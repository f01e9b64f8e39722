"""digest_session: the rolling summary of a session, one short and one long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.cognition.mind import Errand, Mind, ask
from nexus_tasks.errors import InvalidAnswer, Permanent
from nexus_tasks.llm.answers import Digest, DigestMaterial, Line
from nexus_tasks.llm.base import Request
from nexus_tasks.settings import Settings
from nexus_tasks.storage import derivations, digests, embeddings, messages, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, Session
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import JobOutcome, Status, clean_text

LINE_TOKENS = 20  # what a line's id, time and author add to it


@dataclass(frozen=True, kw_only=True)
class Window:
    """What the next digest of a session covers."""

    session: Session
    after: int
    generation: int
    requests: int  # digest requests up to here are satisfied by it
    previous: dict[str, str]  # the digests so far, by kind
    lines: tuple[Line, ...]
    given_up: frozenset[int]  # of the lines, the messages that no facts could be had from
    sources: tuple[int, ...]

    def without_given_up(self) -> Window:
        """The window without the messages that may make the model stumble here as well."""
        return replace(
            self,
            lines=tuple(line for line in self.lines if line.id not in self.given_up),
            sources=tuple(source for source in self.sources if source not in self.given_up),
        )


def digest(mind: Mind, errand: Errand, session_key: str, *, force: bool, rebuild: bool) -> JobOutcome:
    """Digest what is new in a session. ``force`` digests below the threshold too; ``rebuild`` starts from scratch."""
    with mind.database.transaction() as tx:
        session = sessions.find(tx, errand.namespace_id, session_key)
        if session is None:
            return errand.commit(tx, JobOutcome(status="gone"))
        requests = sessions.requests_through(tx, session.id)
        # What was asked for stands in Postgres too: Redis may have lost the flags with which it was asked.
        asked = sessions.requested(tx, session.id)
        force = force or any(reason != "rollover" for reason in asked)
        rebuild = rebuild or "manual_rebuild" in asked
        status = _nothing_to_do(tx, mind.settings, session, force=force, rebuild=rebuild)
        if status:
            sessions.satisfy(tx, session.id, requests)
            return errand.commit(tx, JobOutcome(status=status))
        window = _window(tx, session, requests, rebuild=rebuild)
    try:
        texts = _tell(mind, errand, window)
    except (InvalidAnswer, Permanent):
        window = window.without_given_up()
        if not window.given_up or not window.lines:
            raise
        texts = _tell(mind, errand, window)
    return _store(mind, errand, window, texts)


def _nothing_to_do(
    tx: Transaction, settings: Settings, session: Session, *, force: bool, rebuild: bool
) -> Status | None:
    if session.last_seq == 0:
        return "empty"
    if rebuild:
        return None
    if force:
        return "unchanged" if session.last_seq <= session.digest_end_seq else None
    if session.digest_end_seq == 0:
        return None
    new, tokens = sessions.undigested(tx, session)
    return None if new >= settings.digest_min_messages or tokens >= settings.digest_short_tokens else "skipped"


def _window(tx: Transaction, session: Session, requests: int, *, rebuild: bool) -> Window:
    after = 0 if rebuild else session.digest_end_seq
    previous = {} if rebuild else digests.latest(tx, session.id)
    found = digests.window_facts(tx, session.id, after, session.last_seq)
    raw = messages.window(tx, session.id, after, session.last_seq)
    raw_ids = [message.id for message in raw]
    # Messages that are not derived yet, or gave no fact at all in a window without any, go in as they are.
    derived = derivations.derived(tx, raw_ids) if found else set()
    lines = [
        *((fact.seq, _fact_line(fact)) for fact in _each_once(found)),
        *((message.seq or 0, _raw_line(message)) for message in raw if message.id not in derived),
    ]
    lines.sort(key=lambda pair: pair[0])
    rests_on = [*(fact.memory.id for fact in found), *(i for i in raw_ids if i not in derived)]
    return Window(
        session=session,
        after=after,
        generation=session.digest_generation + rebuild,
        requests=requests,
        previous={kind: memory.content for kind, memory in previous.items()},
        lines=tuple(line for _, line in lines),
        given_up=frozenset(derivations.given_up(tx, raw_ids)),
        sources=(*rests_on, *(memory.id for memory in previous.values())),
    )


def _each_once(found: Sequence[digests.WindowFact]) -> list[digests.WindowFact]:
    """The facts without those that another observer holds too."""
    first: dict[tuple[str, str | None], digests.WindowFact] = {}
    for fact in found:
        first.setdefault((fact.subject, fact.memory.content_key), fact)
    return list(first.values())


def _fact_line(fact: digests.WindowFact) -> Line:
    memory = fact.memory
    return Line(id=memory.id, author=fact.subject, role="fact", content=memory.content, occurred_at=memory.occurred_at)


def _raw_line(message: Memory) -> Line:
    return Line(
        id=message.id,
        author=message.author or "user",
        role=message.role or "user",
        content=message.content,
        occurred_at=message.occurred_at,
    )


def _tell(mind: Mind, errand: Errand, window: Window) -> dict[str, str]:
    """One call; a window beyond the chunk size is told chunk by chunk, each on top of the digest so far.

    A model that tells nothing takes nothing away: the digest stays as it was.
    """
    long, short = window.previous.get("long", ""), window.previous.get("short", "")
    for chunk in _chunks(window.lines, mind.settings.digest_chunk_tokens):
        told = ask(mind, errand, _request(mind.settings, window.session.session_key, long, chunk))
        told_long, told_short = clean_text(told.long).strip(), clean_text(told.short).strip()
        long, short = told_long or long, told_short or told_long or short
    return {
        "short": shorten(short, 4 * mind.settings.digest_short_tokens),
        "long": shorten(long or short, 4 * mind.settings.digest_long_tokens),
    }


def _chunks(lines: Sequence[Line], most: int) -> list[tuple[Line, ...]]:
    """``lines`` in runs of at most ``most`` tokens each; a longer line goes on in the next run."""
    chunks: list[list[Line]] = [[]]
    room = most
    for line in _pieces(lines, most - LINE_TOKENS):
        cost = estimate_tokens(line.content) + LINE_TOKENS
        if cost > room:
            chunks.append([])
            room = most
        chunks[-1].append(line)
        room -= cost
    return [tuple(chunk) for chunk in chunks if chunk]


def _pieces(lines: Sequence[Line], most: int) -> Iterator[Line]:
    for line in lines:
        for start in range(0, max(len(line.content), 1), 4 * most):
            yield replace(line, content=line.content[start : start + 4 * most])


def _request(settings: Settings, session_key: str, previous: str, lines: tuple[Line, ...]) -> Request[Digest]:
    before = f"<previous>\n{prompts.inert(previous) or 'none'}\n</previous>\n"
    return Request(
        purpose="digest",
        instructions=prompts.instructions("digest"),
        transcript=before + prompts.transcript(lines, cited=False),
        question=(
            f"Write the digest of session {session_key}: short within {settings.digest_short_tokens} tokens, "
            f"long within {settings.digest_long_tokens} tokens."
        ),
        answer=Digest,
        material=DigestMaterial(
            session_key=session_key,
            previous=previous,
            lines=lines,
            short_tokens=settings.digest_short_tokens,
            long_tokens=settings.digest_long_tokens,
        ),
        shared=False,
    )


def _store(mind: Mind, errand: Errand, window: Window, texts: dict[str, str]) -> JobOutcome:
    vectors = vectors_of(mind.embedder, list(texts.values()))
    with mind.database.transaction() as tx:
        session = sessions.find(tx, errand.namespace_id, window.session.session_key, lock=True)
        if session is None:
            return errand.commit(tx, JobOutcome(status="gone"))
        if not texts["long"]:
            sessions.satisfy(tx, session.id, window.requests)
            return errand.commit(tx, JobOutcome(status="empty"))
        ids = digests.store(
            tx,
            session,
            digests.NewDigest(
                texts=texts,
                end_seq=window.session.last_seq,
                generation=window.generation,
                sources=window.sources,
                made_by=mind.model.model_for("digest"),
            ),
        )
        wordings = {memory_id: texts[kind] for kind, memory_id in zip(digests.KINDS, ids, strict=False)}
        embeddings.store(tx, errand.namespace_id, mind.embedder.name, wordings, vectors)
        sessions.satisfy(tx, session.id, window.requests)
        details = {"digests": ids, "end_seq": window.session.last_seq, "generation": window.generation}
        return errand.commit(tx, JobOutcome(status="completed" if ids else "unchanged", details=details))
