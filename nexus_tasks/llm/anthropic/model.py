"""Claude, through the official SDK. No retries of its own: the queue retries."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from nexus_tasks.errors import Misconfigured, Transient
from nexus_tasks.llm.anthropic.batches import AnthropicBatches
from nexus_tasks.llm.anthropic.client import ClientHolder
from nexus_tasks.llm.anthropic.errors import job_error
from nexus_tasks.llm.anthropic.messages import completion, model_name, request_params
from nexus_tasks.llm.base import PURPOSES, AnswerT, Completion, Purpose, Request

if TYPE_CHECKING:
    from anthropic import Anthropic

    from nexus_tasks.settings import Settings

ResultT = TypeVar("ResultT")


class AnthropicModel:
    """The :class:`~nexus_tasks.llm.base.LanguageModel` that asks Claude. Safe to share between threads and over forks.

    Building one costs nothing; the SDK is imported and the client built at the first call.
    """

    name = "anthropic"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._holder = ClientHolder(settings)

    @property
    def batches(self) -> AnthropicBatches:
        """The Message Batches API. Imports the SDK, lest a transaction that renders a request waits for that."""
        import anthropic  # noqa: F401

        return AnthropicBatches(self, self._settings)

    def model_for(self, purpose: Purpose) -> str:
        """The configured model for ``purpose`` (``model_derive``, ``model_reflect``, …)."""
        return model_name(self._settings, purpose)

    def complete(self, request: Request[AnswerT]) -> Completion[AnswerT]:
        """Ask once. An answer that is cut off, refused or does not fit comes back as a fault, with its usage.

        Raises:
            Transient: network, timeout, 408, 409, 5xx.
            Throttled: 429, with the seconds to wait.
            OverBudget: no credit, or a spend limit of the account.
            Misconfigured: no credentials, 401, 403, an unknown model.
            TooLarge: 413, or a prompt longer than the model takes.
            Permanent: any other rejection of the request.
        """
        from anthropic.types import Message
        from anthropic.types import Usage as Billed

        params = request_params(request, self._settings)
        began = time.monotonic()
        message = self.call(lambda client: client.messages.create(**params))
        seconds = time.monotonic() - began
        # The SDK does not validate: a gateway's error page with status 200 comes through as it is.
        if not isinstance(message, Message) or not isinstance(message.usage, Billed) or message.content is None:
            raise Transient("The Claude API (or a gateway before it) answered with something that is no message.")
        return completion(message, request, params["model"], seconds)

    def count_tokens(self, text: str) -> int:
        """Claude's own count of ``text`` as one message of a user, for the model that derives. Free, over the network.

        Raises:
            JobError: as :meth:`complete`.
        """
        model = self.model_for("derive")
        counted = self.call(
            lambda client: client.messages.count_tokens(model=model, messages=[{"role": "user", "content": text}])
        )
        tokens = getattr(counted, "input_tokens", None)
        if not isinstance(tokens, int):
            raise Transient("The Claude API (or a gateway before it) answered with something that is no count.")
        return tokens

    def probe(self) -> None:
        """Look up each configured model, which is free; raise what :meth:`complete` would raise.

        A gateway that has no such endpoint cannot be asked: that is no fault. A retired model is ``Misconfigured``.
        """
        names = {model_name(self._settings, purpose) for purpose in PURPOSES}
        for name in sorted(names):
            if self.call(partial(_lifecycle, name)) == "retired":
                raise Misconfigured(f"The model {name} is retired.")

    def call(self, ask: Callable[[Anthropic], ResultT]) -> ResultT:
        """What ``ask`` returns for the process's client, with the SDK's errors turned into job errors."""
        client = self._holder.get()
        import anthropic

        try:
            return ask(client)
        except anthropic.AnthropicError as error:
            if isinstance(error, anthropic.AuthenticationError):
                self._holder.forget(client)
            raise job_error(error) from None


def _lifecycle(name: str, client: Anthropic) -> str:
    import anthropic

    try:
        return str(getattr(client.models.retrieve(name), "lifecycle", ""))
    except anthropic.NotFoundError as error:
        if error.type == "not_found_error":
            raise
        return ""
