"""The context block: text for an agent's prompt, within a bound of tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nexus_tasks.types.document import Document


@dataclass(frozen=True, kw_only=True)
class ContextSection(Document):
    """One part of a context block."""

    name: str
    tokens: int  # estimated: characters / 4, rounded up
    ids: tuple[int, ...]  # of the memories that it rests on


@dataclass(frozen=True, kw_only=True)
class CitedMemory(Document):
    """The memory that a citation stands for."""

    id: int
    external_id: str | None  # the producer's own id of a message


@dataclass(frozen=True, kw_only=True)
class ContextBlock(Document):
    """What :meth:`Nexus.context` returns. ``str(block)`` is its text.

    ``tokens`` is at most ``max_tokens``, with one exception. A block that is read with ``observe`` and without
    ``max_tokens`` may be longer while the session's observation is behind; then ``notes`` says so.
    """

    namespace: str
    text: str
    tokens: int
    max_tokens: int
    sections: tuple[ContextSection, ...]
    citations: Mapping[str, CitedMemory]  # by the name in the text: m17 for [m17]
    # Of format="anthropic": the messages to put before the conversation, as Anthropic's API takes them.
    messages: tuple[Mapping[str, Any], ...] = ()
    counted_by: str = "estimate"  # estimate: characters / 4, rounded up; anthropic: Claude's count of the text
    notes: tuple[str, ...] = ()  # remarks for the reader, such as which part is left out

    def __str__(self) -> str:
        return self.text

    def _left_out(self) -> Collection[str]:
        return [name for name in ("messages", "notes") if not getattr(self, name)]
