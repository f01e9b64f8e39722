"""The context block: text for an agent's prompt, with at most a given number of tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nexus_tasks.types.document import Document

ContextFormat = Literal["text", "anthropic", "openai", "json"]


@dataclass(frozen=True, kw_only=True)
class ContextSection(Document):
    """One part of a context block."""

    name: str
    tokens: int  # estimated: characters / 4, rounded up
    ids: tuple[int, ...]  # ids of the memories that the section was made from


@dataclass(frozen=True, kw_only=True)
class CitedMemory(Document):
    """The memory that a citation stands for."""

    id: int
    external_id: str | None  # the producer's own id of a message; None for other memories


@dataclass(frozen=True, kw_only=True)
class ContextBlock(Document):
    """The context block that :meth:`Nexus.context` returns. ``str(block)`` is its text.

    ``tokens`` is at most ``max_tokens``, with one exception. Without the argument ``max_tokens``, a block for a session
    with ``observe`` may be longer while the job that shortens old messages to notes has not caught up. In this case
    ``notes`` says so.
    """

    namespace: str
    text: str
    tokens: int
    max_tokens: int
    sections: tuple[ContextSection, ...]
    citations: Mapping[str, CitedMemory]  # the key of the citation [m17] is m17
    # The messages to put before the conversation. Only format="anthropic" and format="openai" set them.
    messages: tuple[Mapping[str, Any], ...] = ()
    # The way ``tokens`` was counted: ``estimate`` (characters / 4, rounded up) or ``anthropic`` (Claude counted).
    counted_by: str = "estimate"
    notes: tuple[str, ...] = ()  # remarks for the reader, for example that a part is left out

    def __str__(self) -> str:
        return self.text

    def _left_out(self) -> Collection[str]:
        return [name for name in ("messages", "notes") if not getattr(self, name)]
