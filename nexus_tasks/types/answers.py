"""The answer to a question, made from memories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nexus_tasks.types.context import CitedMemory
from nexus_tasks.types.document import Document


@dataclass(frozen=True, kw_only=True)
class AnswerSentence(Document):
    """One sentence of an answer. ``str(sentence)`` is its text with its citations."""

    text: str
    citations: tuple[int, ...]  # ids of the memories that say it, at least one

    def __str__(self) -> str:
        return f"{self.text} {''.join(f'[m{i}]' for i in self.citations)}"


@dataclass(frozen=True, kw_only=True)
class Answer(Document):
    """The answer that :meth:`Nexus.ask` returns. ``str(answer)`` is its text."""

    namespace: str
    question: str
    remembered: bool  # false: the memories do not tell
    text: str  # the sentences with their citations, or "Not remembered."
    sentences: tuple[AnswerSentence, ...]
    citations: Mapping[str, CitedMemory]  # the key of the citation [m17] is m17
    lookups: int  # how often the model looked again, 0 to 4
    dropped: int  # number of dropped sentences: they cited no memory that the model was shown, or were too many
    made_by: str  # the model's name
    notes: tuple[str, ...] = ()  # remarks for the reader, for example that the offline model answered

    def __str__(self) -> str:
        return self.text
