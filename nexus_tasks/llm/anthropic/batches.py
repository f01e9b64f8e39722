"""Anthropic's Message Batches API, which answers requests within a day at half the price of live calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from nexus_tasks.errors import Transient
from nexus_tasks.llm.answer_json import clean
from nexus_tasks.llm.anthropic.client import ClaudeClient
from nexus_tasks.llm.anthropic.errors import job_error
from nexus_tasks.llm.anthropic.messages import USUAL, completion, is_message, request_params, text_of, usage_of
from nexus_tasks.llm.base import AnswerT, BatchItemResult, Completion, ModelRequest, NoBatches, Usage
from nexus_tasks.llm.dialects import Dialects
from nexus_tasks.llm.purposes import claude_name
from nexus_tasks.settings import Settings

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import Message

MOST_LISTED = 10_000  # batches that are looked at to find one of an earlier submission (chosen by hand, not measured)


@dataclass(frozen=True)
class AnthropicBatchProvider:
    """The message batches of Claude. Every method raises the errors of ``AnthropicModel.complete``."""

    client: ClaudeClient
    settings: Settings
    dialects: Dialects

    def item_params(self, request: ModelRequest[Any]) -> dict[str, Any]:
        """The batch item for ``request``."""
        model = claude_name(self.settings, request.purpose)
        server = self.client.call(lambda client: str(client.base_url))
        return request_params(request, self.settings, self.dialects.of(server, model, USUAL))

    def submit(self, items: Mapping[str, Mapping[str, Any]]) -> str:
        """Submit a batch and return its id. The keys of ``items`` are the custom ids of the items."""
        requests: Any = [{"custom_id": custom_id, "params": params} for custom_id, params in items.items()]
        batch = self.client.call(partial(_create, requests))
        if not isinstance(getattr(batch, "id", None), str):  # such as the page of a gateway, with status 200
            raise NoBatches("The Claude API (or a gateway before it) answered with something that is no batch.")
        return str(batch.id)

    def submitted_since(self, moment: datetime, items: int) -> list[str]:
        """Ids of the batches that have exactly ``items`` items and were submitted at ``moment`` or later.

        The newest batch comes first.
        """
        return self.client.call(partial(_submitted_since, moment, items))

    def has_ended(self, batch_id: str) -> bool | None:
        """Whether the results of a batch can be fetched; ``None`` when the API does not know it, or has deleted it."""
        status = self.client.call(partial(_status, batch_id))
        return None if status is None else status == "ended"

    def results(self, batch_id: str) -> Iterator[BatchItemResult]:
        """The result of each item, in any order.

        Raises:
            Transient: the connection was cut before the last result.
        """
        for line in _lines(self.client.call(partial(_results, batch_id))):
            custom_id = getattr(line, "custom_id", None)
            found = getattr(getattr(line, "result", None), "message", None)
            message = found if is_message(found) else None  # an item that failed has none
            yield BatchItemResult(
                custom_id=custom_id if isinstance(custom_id, str) else "",
                message=_as_json(message) if message else None,
                usage=usage_of(message) if message else Usage(),
            )

    def cancel(self, batch_id: str) -> None:
        """Cancel a batch. Items that Claude answered before the cancellation still cost money."""
        self.client.call(lambda client: client.messages.batches.cancel(batch_id))

    def completion_of(
        self, message: Mapping[str, Any], request: ModelRequest[AnswerT], model: str
    ) -> Completion[AnswerT]:
        """Read a stored message as the answer to ``request``."""
        from anthropic.types import Message

        # A message may have a stop reason that the SDK does not know, and would not pass its validation.
        return completion(Message.construct(**message), request, model, 0.0)


def _create(requests: Any, client: Anthropic) -> Any:
    import anthropic

    try:
        return client.messages.batches.create(requests=requests)
    except anthropic.APIStatusError as error:
        # The API has this endpoint, so an answer that it is missing comes from a gateway. A 404 may also be about a
        # model, which its message then names.
        if error.status_code in (405, 501) or (error.status_code == 404 and "model" not in str(error.api_message)):
            raise NoBatches(
                f"The Claude API (or a gateway before it) has no message batches: {error.status_code}."
            ) from None
        raise


def _as_json(message: Message) -> dict[str, Any]:
    """A message as Postgres stores it. Of one that is nested too deeply, the answer alone is stored."""
    try:
        whole: dict[str, Any] = clean(message.model_dump(mode="json", warnings=False))
    except (ValueError, RecursionError):
        stop = clean(message.stop_reason) if isinstance(message.stop_reason, str) else None
        text = {"type": "text", "text": clean(text_of(message))}
        return {"content": [text], "stop_reason": None if stop == "tool_use" else stop}
    return whole


def _submitted_since(moment: datetime, items: int, client: Anthropic) -> list[str]:
    found, seen = [], set[str]()
    try:
        for batch in client.messages.batches.list(limit=100):  # the SDK asks for each further page by itself
            if batch.created_at < moment:
                break
            if batch.id in seen or len(seen) == MOST_LISTED:  # a gateway gives the same page again and again
                raise Transient("The Claude API (or a gateway before it) gives a list of batches without an end.")
            seen.add(batch.id)
            counts = batch.request_counts
            total = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
            if total == items:
                found.append(batch.id)
    except (AttributeError, TypeError) as error:  # such as the page of a gateway, which the SDK does not check
        raise Transient("The Claude API (or a gateway before it) answered with no list of batches.") from error
    return found


def _results(batch_id: str, client: Anthropic) -> Iterable[Any]:
    try:
        return client.messages.batches.results(batch_id)
    except AttributeError as error:  # the SDK reads the batch first, and does not check it
        raise Transient("The Claude API (or a gateway before it) answered with something that is no batch.") from error


def _lines(stream: Iterable[Any]) -> Iterator[Any]:
    """The lines of a stream of results. An error of the connection, or a line that is cut, becomes a Transient."""
    import anthropic
    import httpx2  # the SDK's own HTTP library

    try:
        yield from stream
    except anthropic.AnthropicError as error:
        raise job_error(error) from None
    except (httpx2.HTTPError, httpx2.StreamError, ValueError) as error:
        raise Transient(f"The results of a message batch were cut off ({type(error).__name__}).") from None
    except (TypeError, AttributeError, LookupError, RuntimeError) as error:  # RuntimeError: nested too deeply, too
        raise Transient(f"The results of a message batch have a line that is none ({type(error).__name__}).") from None


def _status(batch_id: str, client: Anthropic) -> str | None:
    import anthropic

    try:
        found: object = client.messages.batches.retrieve(batch_id)
    except anthropic.NotFoundError as error:
        if error.type != "not_found_error":  # the page of a gateway: the API may know the batch
            raise
        return None
    status = getattr(found, "processing_status", None)
    if not isinstance(status, str):  # such as the page of a gateway, with status 200
        raise Transient("The Claude API (or a gateway before it) answered with something that is no batch.")
    return status
