"""digest_session: the rolling summary of a session, one short and one long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.mind import Errand, Mind, ask
from nexus_tasks.llm.answers import Digest, DigestMaterial, Line
from nexus_tasks.llm.base import Request
from nexus_tasks.settings import Settings
from nexus_tasks.storage import derivations, digests, embeddings, messages, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Session
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import JobOutcome, Status, clean_text


@dataclass(frozen=True, kw_only=True)
class Window:
    """What the next digest of a session covers."""

    session: Session
    after: int
    generation: int
    requests: int  # digest requests up to here are satisfied by it
    previous: str
    lines: tuple[Line, ...]
    sources: tuple[int, ...]


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
    derived_from_nothing_yet = derivations.underived_messages(tx, session.id)
    raw = messages.window(tx, session.id, after, session.last_seq)
    lines = [
        (
            fact.seq,
            Line(
                id=fact.memory.id,
                author=fact.subject,
                role="fact",
                content=fact.memory.content,
                occurred_at=fact.memory.occurred_at,
            ),
        )
        for fact in found
    ]
    # Messages that are not derived yet, or gave no fact at all in a window without any, go in as they are.
    verbatim = [m for m in raw if m.id in derived_from_nothing_yet] if found else raw
    lines += [
        (
            m.seq or 0,
            Line(
                id=m.id, author=m.author or "user", role=m.role or "user", content=m.content, occurred_at=m.occurred_at
            ),
        )
        for m in verbatim
    ]
    lines.sort(key=lambda pair: pair[0])
    old = [memory.id for memory in previous.values()]
    return Window(
        session=session,
        after=after,
        generation=session.digest_generation + rebuild,
        requests=requests,
        previous=previous["long"].content if "long" in previous else "",
        lines=tuple(line for _, line in lines),
        sources=(*(line.id for _, line in lines), *old),
    )


def _tell(mind: Mind, errand: Errand, window: Window) -> dict[str, str]:
    """One call; a window beyond the chunk size is told chunk by chunk, each on top of the digest so far."""
    previous, told = window.previous, Digest(short="", long="")
    for chunk in _chunks(window.lines, mind.settings.digest_chunk_tokens):
        told = ask(mind, errand, _request(mind.settings, window.session.session_key, previous, chunk))
        previous = told.long
    limits = {"short": mind.settings.digest_short_tokens, "long": mind.settings.digest_long_tokens}
    return {kind: shorten(clean_text(getattr(told, kind)).strip(), 4 * most) for kind, most in limits.items()}


def _chunks(lines: Sequence[Line], most: int) -> list[tuple[Line, ...]]:
    """``lines`` in runs of at most ``most`` tokens each; a longer line stands alone."""
    chunks: list[list[Line]] = [[]]
    tokens = 0
    for line in lines:
        cost = estimate_tokens(line.content) + 20  # its id, time and author
        if chunks[-1] and tokens + cost > most:
            chunks.append([])
            tokens = 0
        chunks[-1].append(line)
        tokens += cost
    return [tuple(chunk) for chunk in chunks]


def _request(settings: Settings, session_key: str, previous: str, lines: tuple[Line, ...]) -> Request[Digest]:
    before = f"<previous>\n{prompts.inert(previous) or 'none'}\n</previous>\n"
    return Request(
        purpose="digest",
        instructions=prompts.instructions("digest"),
        transcript=before + prompts.transcript(lines),
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
    vectors = mind.embedder.embed([texts[kind] for kind in digests.KINDS])
    with mind.database.transaction() as tx:
        session = sessions.get(tx, errand.namespace_id, window.session.session_key, lock=True)
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
        embeddings.store(tx, errand.namespace_id, mind.embedder.name, ids, vectors)
        sessions.satisfy(tx, session.id, window.requests)
        details = {"digests": ids, "end_seq": window.session.last_seq, "generation": window.generation}
        return errand.commit(tx, JobOutcome(status="completed" if ids else "unchanged", details=details))
