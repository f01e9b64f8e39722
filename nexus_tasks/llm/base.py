"""The interface of a language model. A model takes a request, and returns a validated answer and the tokens used.

``choose.py`` picks the model that the settings name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel

from nexus_tasks.errors import Permanent
from nexus_tasks.llm.answers import Material
from nexus_tasks.text import estimate_tokens

Purpose = Literal["derive", "reflect", "digest", "observe", "condense", "topics", "facts", "answer"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
AnswerT = TypeVar("AnswerT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class ModelRequest(Generic[AnswerT]):
    """One question to a model. A provider may cache the prompt up to the end of the transcript.

    Attributes:
        instructions: the first part of the prompt, which is the same for every call of a purpose.
        transcript: the second part of the prompt, which is the same for every observer of the same messages.
        question: the last part of the prompt, which differs from call to call.
        answer: the type that the answer must fit.
        material: the data from which the prompt was rendered. The offline model reads the data in place of the prompt.
        shared: whether calls for other observers send this transcript too, within minutes. Only then is the transcript
            cached, because input that is written to a cache costs 25 % more than other input.
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
    """Tokens of one call.

    As in Anthropic's Messages API, ``input_tokens`` does not include the tokens that were read from a cache or written
    to a cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0


def counted(tokens: object) -> int:
    """A number of tokens that a server reports: at least 0, and at most the largest integer of Postgres.

    What is no whole number counts as 0.
    """
    return min(max(tokens, 0), 2**31 - 1) if isinstance(tokens, int) and not isinstance(tokens, bool) else 0


def estimated(request: ModelRequest[Any], reply: str) -> Usage:
    """The tokens of a call, by the length of its texts. A budget needs them when the server counts none."""
    prompt = request.instructions + request.transcript + request.question
    return Usage(input_tokens=estimate_tokens(prompt), output_tokens=estimate_tokens(reply))


@dataclass(frozen=True, kw_only=True)
class Completion(Generic[AnswerT]):
    """The result of a model call. When the reply is unusable, ``answer`` is ``None`` and ``fault`` is the reason.

    A fault is a value and not an exception, because an unusable reply also costs money, and the ledger records its
    usage. ``misshapen`` says that a server which enforces the answer's schema cannot have sent the reply.
    """

    model: str
    usage: Usage
    seconds: float
    answer: AnswerT | None = None
    fault: Literal["", "invalid", "truncated", "refused"] = ""
    detail: str = ""
    misshapen: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BatchItemResult:
    """The result of one batch item: the provider's message, and the tokens used.

    ``message`` is ``None`` when the item failed. ``custom_id`` is empty when the provider's line names no item.
    """

    custom_id: str
    message: Mapping[str, Any] | None
    usage: Usage


class NoBatches(Permanent):
    """The provider of the model, or a gateway before it, has no message batches."""

    default_remedy = "Nothing to do: the requests go live, at the full price."


class BatchProvider(Protocol):
    """A provider's message batches. The provider answers the requests of a batch later, at a lower price.

    Every method raises the errors of :meth:`LanguageModel.complete`.
    """

    def item_params(self, request: ModelRequest[Any]) -> dict[str, Any]:
        """The batch item for ``request``, as JSON."""
        ...

    def submit(self, items: Mapping[str, Mapping[str, Any]]) -> str:
        """Submit a batch and return its id. The keys of ``items`` are the custom ids of the items.

        Raises:
            Transient: the provider may or may not have accepted the batch. After any other error it has not.
            NoBatches: the provider has no message batches.
        """
        ...

    def submitted_since(self, moment: datetime, items: int) -> list[str]:
        """Ids of the batches that have exactly ``items`` items and were submitted at ``moment`` or later.

        The newest batch comes first.
        """
        ...

    def has_ended(self, batch_id: str) -> bool | None:
        """Whether the results of a batch can be fetched; ``None`` when the provider does not know the batch."""
        ...

    def results(self, batch_id: str) -> Iterator[BatchItemResult]:
        """The result of each item of an ended batch, in any order."""
        ...

    def cancel(self, batch_id: str) -> None:
        """Cancel a batch."""
        ...

    def completion_of(
        self, message: Mapping[str, Any], request: ModelRequest[AnswerT], model: str
    ) -> Completion[AnswerT]:
        """Read a stored message as the answer to ``request``."""
        ...


class LanguageModel(Protocol):
    """A provider of language models, identified by ``name``: ``anthropic``, ``openai`` or ``offline``.

    A model that several providers answer for (:class:`~nexus_tasks.llm.per_purpose.ModelPerPurpose`) has all names.
    """

    name: str

    def batches_for(self, purpose: Purpose) -> BatchProvider | None:
        """The message batches that ``purpose`` may use; ``None`` when its provider has no message batches."""
        ...

    def provider_for(self, purpose: Purpose) -> str:
        """The name of the provider that answers ``purpose``."""
        ...

    def model_for(self, purpose: Purpose) -> str:
        """The model name that :meth:`complete` will use for ``purpose``."""
        ...

    def complete(self, request: ModelRequest[AnswerT]) -> Completion[AnswerT]:
        """Call the model once, without retries.

        Raises:
            Transient, Throttled, OverBudget, Misconfigured, TooLarge, Permanent: the call brought no reply.
        """
        ...

    def stream(self, request: ModelRequest[AnswerT], on_text: Callable[[str], None]) -> Completion[AnswerT]:
        """Call the model as :meth:`complete` does, and give each piece of its reply to ``on_text`` as it arrives."""
        ...

    def preload(self) -> None:
        """Load the provider's library, which may take over 1 s. No thread runs and no connection is open afterwards."""
        ...

    def probe(self, purposes: Collection[Purpose] = PURPOSES) -> None:
        """Check the credentials and model names of some purposes at no cost.

        Raises:
            JobError: the errors of :meth:`complete`.
        """
        ...
