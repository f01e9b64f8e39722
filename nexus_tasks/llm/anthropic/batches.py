"""The Message Batches API: the requests of live calls, answered within a day at half the price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from nexus_tasks.errors import Permanent
from nexus_tasks.llm.anthropic.messages import completion, request_params, usage_of
from nexus_tasks.llm.base import AnswerT, BatchResult, Completion, Request, Usage

if TYPE_CHECKING:
    from anthropic import Anthropic

    from nexus_tasks.llm.anthropic.model import AnthropicModel
    from nexus_tasks.settings import Settings


@dataclass(frozen=True)
class AnthropicBatches:
    """See :class:`nexus_tasks.llm.base.Batches`. Every method raises what :meth:`AnthropicModel.complete` raises."""

    model: AnthropicModel
    settings: Settings

    def params(self, request: Request[Any]) -> dict[str, Any]:
        """The item of a batch that asks ``request``."""
        return request_params(request, self.settings)

    def submit(self, items: Mapping[str, Mapping[str, Any]]) -> str:
        """Submit items by custom id; returns the batch's id."""
        requests: Any = [{"custom_id": custom_id, "params": params} for custom_id, params in items.items()]
        return self.model.call(lambda client: client.messages.batches.create(requests=requests)).id

    def since(self, moment: datetime, items: int) -> list[str]:
        """Batches of so many ``items`` that were submitted at ``moment`` or later, newest first."""
        found = []
        for batch in self.model.call(lambda client: client.messages.batches.list(limit=100)):
            if batch.created_at < moment:
                break
            counts = batch.request_counts
            total = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
            if total == items:
                found.append(batch.id)
        return found

    def ended(self, batch_id: str) -> bool:
        """Whether the results of a batch are there.

        Raises:
            Permanent: there is no such batch (any more).
        """
        status = self.model.call(partial(_status, batch_id))
        if status is None:
            raise Permanent(f"The Claude API knows no batch {batch_id}.")
        return status == "ended"

    def results(self, batch_id: str) -> Iterator[BatchResult]:
        """What became of each item, in any order."""
        for line in self.model.call(lambda client: client.messages.batches.results(batch_id)):
            message = line.result.message if line.result.type == "succeeded" else None
            yield BatchResult(
                custom_id=line.custom_id,
                message=message.model_dump(mode="json") if message else None,
                usage=usage_of(message) if message else Usage(),
            )

    def cancel(self, batch_id: str) -> None:
        """Stop a batch; what was answered already stays paid."""
        self.model.call(lambda client: client.messages.batches.cancel(batch_id))

    def read(self, message: Mapping[str, Any], request: Request[AnswerT], model: str) -> Completion[AnswerT]:
        """A kept message, read as the answer to ``request``."""
        from anthropic.types import Message

        return completion(Message.model_validate(message), request, model, 0.0)


def _status(batch_id: str, client: Anthropic) -> str | None:
    import anthropic

    try:
        return client.messages.batches.retrieve(batch_id).processing_status
    except anthropic.NotFoundError:
        return None
