"""Requests as cognition makes them, small: a conversation of two, asked about for each purpose."""

from __future__ import annotations

from datetime import UTC, datetime

from nexus_tasks.llm.answers import DeriveMaterial, Digest, DigestMaterial, Observations, PromptLine
from nexus_tasks.llm.base import ModelRequest

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LINES = (
    PromptLine(id=122, author="bob", role="user", content="How was it?", occurred_at=NOON, context_only=True),
    PromptLine(id=123, author="ann", role="user", content="I moved to Lisbon.", occurred_at=NOON),
    PromptLine(id=124, author="bob", role="user", content="Nice!", occurred_at=NOON),
)


def render(line: PromptLine) -> str:
    """A line of a transcript, in the form that the default answers read."""
    mark = "(context) " if line.context_only else ""
    return f"{mark}[{line.id}] {line.occurred_at:%Y-%m-%dT%H:%M:%SZ} {line.author} ({line.role}): {line.content}"


TRANSCRIPT = "\n".join(map(render, LINES))

DIGEST = ModelRequest(
    purpose="digest",
    instructions="Summarise.",
    transcript=TRANSCRIPT,
    question="At most 100 and 300 tokens.",
    answer=Digest,
    material=DigestMaterial(session_key="s", previous="", lines=LINES, short_tokens=100, long_tokens=300),
)


def derive(observer: str = "assistant", *, padding: int = 0, shared: bool = True) -> ModelRequest[Observations]:
    """A derivation about ann; its transcript is ``padding`` characters longer than need be."""
    return ModelRequest(
        purpose="derive",
        instructions="You read conversations and note what they teach about people.",
        transcript=TRANSCRIPT + "\n" + "~" * padding,
        question=f'<names>{{"observer": "{observer}", "subjects": ["ann"]}}</names>',
        answer=Observations,
        material=DeriveMaterial(lines=LINES, observer=observer, subjects=("ann",)),
        shared=shared,
    )
