"""Telling a window: one model call; for a long one, a call per chunk and then one that merges what those told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.resources import JobContext, Resources, ask
from nexus_tasks.llm.answers import Digest, DigestMaterial, Line
from nexus_tasks.llm.base import Request
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import clean_text

LINE_TOKENS = 20  # what a line's id, time and author add to it
PARTS = 4  # digests of chunks that fit together into one more chunk: merging always shrinks


@dataclass(frozen=True, kw_only=True)
class Told:
    """A digest at both lengths; empty where the model told nothing."""

    short: str
    long: str


def tell(resources: Resources, job: JobContext, session_key: str, lines: Sequence[Line], previous: Told) -> Told:
    """The digest of ``lines`` on top of the ``previous`` one.

    A model that tells nothing takes nothing away: the digest stays as it was.
    """
    settings = resources.settings
    chunks = _chunks(lines, settings.digest_chunk_tokens)
    most = min(settings.digest_long_tokens, settings.digest_chunk_tokens // PARTS - LINE_TOKENS)
    while len(chunks) > 1:
        parts = [_part(chunk, _ask(resources, job, session_key, chunk, "", most)) for chunk in chunks]
        chunks = _chunks([part for part in parts if part.content], settings.digest_chunk_tokens)
    told = previous
    if chunks:
        told = _ask(resources, job, session_key, chunks[0], previous.long, settings.digest_long_tokens)
    short = told.short or told.long or previous.short
    return Told(
        short=shorten(short, 4 * settings.digest_short_tokens),
        long=shorten(told.long or previous.long or short, 4 * settings.digest_long_tokens),
    )


def _part(chunk: Sequence[Line], told: Told) -> Line:
    """What was told of a chunk, as a line of what is to be merged."""
    content = told.long or told.short
    return Line(id=chunk[-1].id, author="digest", role="digest", content=content, occurred_at=chunk[-1].occurred_at)


def _ask(
    resources: Resources, job: JobContext, session_key: str, lines: tuple[Line, ...], previous: str, most: int
) -> Told:
    """Ask for one digest; neither length is more than ``most`` tokens."""
    told = ask(resources, job, _request(resources.settings.digest_short_tokens, session_key, previous, lines, most))
    short, long = (shorten(clean_text(text).strip(), 4 * most) for text in (told.short, told.long))
    return Told(short=short, long=long)


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


def _request(
    short_tokens: int, session_key: str, previous: str, lines: tuple[Line, ...], long_tokens: int
) -> Request[Digest]:
    before = f"<previous>\n{prompts.inert(previous) or 'none'}\n</previous>\n"
    return Request(
        purpose="digest",
        instructions=prompts.instructions("digest"),
        transcript=before + prompts.transcript(lines, cited=False),
        question=(
            f"Write the digest of session {session_key}: short within {short_tokens} tokens, "
            f"long within {long_tokens} tokens."
        ),
        answer=Digest,
        material=DigestMaterial(
            session_key=session_key,
            previous=previous,
            lines=lines,
            short_tokens=short_tokens,
            long_tokens=long_tokens,
        ),
        shared=False,
    )
