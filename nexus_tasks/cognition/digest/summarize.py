"""Summarize the facts and messages of a digest by one model call.

A long text is divided into chunks, with one call per chunk. Further calls merge the summaries of the chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.model_call import ask
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.llm.answers import Digest, DigestMaterial, PromptLine
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import clean_text

# Both numbers are chosen by hand, not measured.
LINE_TOKENS = 20  # tokens that are reserved for the id, time and author of a line
# A chunk has room for this many summaries of chunks. So each round of merging makes fewer chunks than the round before.
PARTS = 4


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The short and the long text of a digest. A text that the model did not write is empty."""

    short: str
    long: str


def summarize(
    resources: Resources, job: JobContext, session_key: str, lines: Sequence[PromptLine], previous: Summary
) -> Summary:
    """Write a digest that continues the ``previous`` digest with ``lines``.

    When the model writes no long text, the previous long text stays. When the model writes no short text, the beginning
    of the model's long text becomes the short text. When the model writes no text at all, the two previous texts stay.
    """
    settings = resources.settings
    chunks = _chunks(lines, settings.digest_chunk_tokens)
    most = min(settings.digest_long_tokens, settings.digest_chunk_tokens // PARTS - LINE_TOKENS)
    while len(chunks) > 1:
        parts = [_part(chunk, _ask_for_summary(resources, job, session_key, chunk, "", most)) for chunk in chunks]
        chunks = _chunks([part for part in parts if part.content], settings.digest_chunk_tokens)
    summary = previous
    if chunks:
        summary = _ask_for_summary(resources, job, session_key, chunks[0], previous.long, settings.digest_long_tokens)
    short = summary.short or summary.long or previous.short
    return Summary(
        short=shorten(short, 4 * settings.digest_short_tokens),
        long=shorten(summary.long or previous.long or short, 4 * settings.digest_long_tokens),
    )


def _part(chunk: Sequence[PromptLine], summary: Summary) -> PromptLine:
    """The summary of a chunk as a line of a prompt. A later model call merges the summaries of all chunks."""
    content = summary.long or summary.short
    return PromptLine(
        id=chunk[-1].id, author="digest", role="digest", content=content, occurred_at=chunk[-1].occurred_at
    )


def _ask_for_summary(
    resources: Resources, job: JobContext, session_key: str, lines: tuple[PromptLine, ...], previous: str, most: int
) -> Summary:
    """Ask the model for one digest. Cut its short and its long text to ``most`` tokens each."""
    answer = ask(
        resources, job, build_request(resources.settings.digest_short_tokens, session_key, previous, lines, most)
    )
    short, long = (shorten(clean_text(text).strip(), 4 * most) for text in (answer.short, answer.long))
    return Summary(short=short, long=long)


def _chunks(lines: Sequence[PromptLine], most: int) -> list[tuple[PromptLine, ...]]:
    """``lines`` in chunks of at most ``most`` tokens each. A line that is longer than a chunk is split."""
    chunks: list[list[PromptLine]] = [[]]
    room = most
    for line in _pieces(lines, most - LINE_TOKENS):
        cost = estimate_tokens(line.content) + LINE_TOKENS
        if cost > room:
            chunks.append([])
            room = most
        chunks[-1].append(line)
        room -= cost
    return [tuple(chunk) for chunk in chunks if chunk]


def _pieces(lines: Sequence[PromptLine], most: int) -> Iterator[PromptLine]:
    for line in lines:
        for start in range(0, max(len(line.content), 1), 4 * most):
            yield replace(line, content=line.content[start : start + 4 * most])


def build_request(
    short_tokens: int, session_key: str, previous: str, lines: tuple[PromptLine, ...], long_tokens: int
) -> ModelRequest[Digest]:
    """The model request for the digest of ``lines``, which continues the digest ``previous``."""
    before = f"<previous>\n{prompts.inert(previous) or 'none'}\n</previous>\n"
    return ModelRequest(
        purpose="digest",
        instructions=prompts.instructions("digest"),
        transcript=before + prompts.transcript(lines, cited=False),
        question=(
            f"{prompts.names(session=session_key)}\n"
            f"Write the digest of this session: short within {short_tokens} tokens, long within {long_tokens} tokens."
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
