"""What a language model is here: one call in, one validated answer out, with what it cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel

from nexus_tasks.llm.answers import Material

Purpose = Literal["derive", "reflect", "digest", "observe", "condense", "topics", "facts"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
AnswerT = TypeVar("AnswerT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Request(Generic[AnswerT]):
    """One question to a model, its parts ordered from what is shared most to what varies.

    ``instructions`` are the same for every call of a purpose, ``transcript`` is the same for every observer of it, and
    ``question`` varies: a provider may cache the prefix that ends with the transcript. ``material`` is what the prompt
    was rendered from; the offline model reads it in place of the text. ``shared`` says whether other calls with this
    very transcript follow within minutes (several observers): caching what nobody reads again costs a quarter more.
    """

    purpose: Purpose
    instructions: str
    transcript: str
    question: str
    answer: type[AnswerT]
    material: Material
    shared: bool = True

    def hash(self, model: str) -> str:
        """Hex SHA-256 of everything that decides the answer: the model, the text and the answer's schema."""
        parts = [model, self.instructions, self.transcript, self.question, _schema(self.answer)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=32)
def _schema(answer: type[BaseModel]) -> dict[str, Any]:
    return answer.model_json_schema()


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of one call. ``input_tokens`` are the uncached ones, as the Messages API counts them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Completion(Generic[AnswerT]):
    """A call that returned. ``answer`` is ``None`` when what came back was worth nothing; ``fault`` says why.

    Faults are values, not exceptions, because a worthless answer was paid for all the same and belongs in the ledger.
    """

    model: str
    usage: Usage
    seconds: float
    answer: AnswerT | None = None
    fault: Literal["", "invalid", "truncated", "refused"] = ""
    detail: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What became of one item of a batch: the provider's message, or ``None`` when it failed, and what it cost."""

    custom_id: str
    message: Mapping[str, Any] | None
    usage: Usage


class Batches(Protocol):
    """A provider's way to answer many requests later, for less. Raises what :meth:`LanguageModel.complete` raises."""

    def params(self, request: Request[Any]) -> dict[str, Any]:
        """The item that asks ``request``, as JSON."""
        ...

    def submit(self, items: Mapping[str, Mapping[str, Any]]) -> str:
        """Submit items by custom id; returns the batch's id."""
        ...

    def since(self, moment: datetime, items: int) -> list[str]:
        """Ids of batches of so many ``items``, submitted at ``moment`` or later."""
        ...

    def ended(self, batch_id: str) -> bool:
        """Whether the results of a batch are there."""
        ...

    def results(self, batch_id: str) -> Iterator[BatchResult]:
        """What became of each item, in any order."""
        ...

    def cancel(self, batch_id: str) -> None:
        """Stop a batch."""
        ...

    def read(self, message: Mapping[str, Any], request: Request[AnswerT], model: str) -> Completion[AnswerT]:
        """A message that was kept, read as the answer to ``request``."""
        ...


class LanguageModel(Protocol):
    """A provider. ``name`` says who speaks (``offline`` marks everything it makes)."""

    name: str

    @property
    def batches(self) -> Batches | None:
        """Its batches, if it has any."""
        ...

    def model_for(self, purpose: Purpose) -> str:
        """The model name that :meth:`complete` will use for ``purpose``."""
        ...

    def complete(self, request: Request[AnswerT]) -> Completion[AnswerT]:
        """Ask once, without retries of its own.

        Raises:
            Transient, Throttled, OverBudget, Misconfigured, TooLarge, Permanent: the call did not return an answer.
        """
        ...

    def probe(self) -> None:
        """Check credentials and model names without spending money; raise what :meth:`complete` would raise."""
        ...
