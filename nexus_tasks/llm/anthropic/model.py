"""Claude as a language model, through Anthropic's SDK. A failed call is not repeated here, but by the job's retry."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from nexus_tasks.errors import Misconfigured, Transient
from nexus_tasks.llm.anthropic.batches import AnthropicBatchProvider
from nexus_tasks.llm.anthropic.client import ClaudeClient, ResultT
from nexus_tasks.llm.anthropic.messages import USUAL, completion, is_message, request_params
from nexus_tasks.llm.anthropic.streaming import read_pieces
from nexus_tasks.llm.base import PURPOSES, AnswerT, Completion, ModelRequest, Purpose
from nexus_tasks.llm.dialects import Dialect, Dialects
from nexus_tasks.llm.purposes import choice, claude_name
from nexus_tasks.llm.server_errors import telling_pages_apart

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import Message

    from nexus_tasks.settings import Settings

# A reader waits for a count of tokens, and may wait for several. After this time it gets an estimate.
COUNT_SECONDS = 10.0  # chosen by hand, not measured


class AnthropicModel:
    """The :class:`~nexus_tasks.llm.base.LanguageModel` that asks Claude.

    Threads and forked processes may share the object. Creating the object is fast, because only the first call imports
    the SDK and builds the client.
    """

    name = "anthropic"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = ClaudeClient(settings)
        self._dialects = Dialects(settings, settings.anthropic_structured_output)

    def batches_for(self, purpose: Purpose) -> AnthropicBatchProvider:  # noqa: ARG002 - the same for all purposes
        """The Message Batches API. This method imports the SDK, so that no later transaction waits 1 s for it."""
        import anthropic  # noqa: F401

        return AnthropicBatchProvider(self._client, self._settings, self._dialects)

    def provider_for(self, purpose: Purpose) -> str:  # noqa: ARG002 - one provider for all purposes
        """Always ``"anthropic"``."""
        return self.name

    def model_for(self, purpose: Purpose) -> str:
        """The configured model for ``purpose`` (``model_derive``, ``model_reflect``, …)."""
        return claude_name(self._settings, purpose)

    def complete(self, request: ModelRequest[AnswerT]) -> Completion[AnswerT]:
        """Call Claude once. When the answer is unusable, the completion has a fault and no answer.

        An answer is unusable when it is cut off, is a refusal, or does not fit its schema.

        Raises:
            Transient: the network failed, Claude did not answer in time, or the status is 408, 409 or 5xx.
            Throttled: the status is 429. The error has the seconds to wait.
            OverBudget: the account has no credit or has reached a spend limit.
            Misconfigured: there are no credentials, Claude answered 401 or 403, or the model is unknown.
            Refused: a firewall before Claude answered 403.
            TooLarge: the status is 413, or the prompt is longer than the model's context.
            Permanent: Claude rejected the request for another reason.
        """
        return self._complete(request, lambda client, params: client.messages.create(**params))

    def stream(self, request: ModelRequest[AnswerT], on_text: Callable[[str], None]) -> Completion[AnswerT]:
        """Call Claude once, and give each piece of the reply to ``on_text`` as it arrives.

        Raises:
            JobError: the errors of :meth:`complete`. A part of the reply may have arrived before.
        """

        def streamed(client: Anthropic, params: dict[str, Any]) -> Message:
            with client.messages.stream(**params) as reply:
                return read_pieces(reply, on_text)

        return self._complete(request, streamed)

    def _complete(
        self, request: ModelRequest[AnswerT], send: Callable[[Anthropic, dict[str, Any]], object]
    ) -> Completion[AnswerT]:
        from anthropic import APIStatusError

        model = self.model_for(request.purpose)
        began = time.monotonic()

        def ask(client: Anthropic) -> tuple[str, object, Dialect]:
            server = str(client.base_url)
            message, dialect = self._dialects.negotiate(
                server,
                model,
                USUAL,
                lambda dialect: send(client, request_params(request, self._settings, dialect)),
                APIStatusError,
            )
            return server, message, dialect

        # A firewall may pass a GET, such as a probe, and refuse every POST.
        with telling_pages_apart(partial(self.count_tokens, "probe")):
            server, message, dialect = self.call(ask)
        seconds = time.monotonic() - began
        if not is_message(message):
            raise Transient("The Claude API (or a gateway before it) answered with something that is no message.")
        done = completion(message, request, model, seconds)
        if done.misshapen or done.answer is not None:
            self._dialects.judge(server, model, dialect, misshapen=done.misshapen)
        return done

    def count_tokens(self, text: str) -> int:
        """Ask Claude for the number of tokens of ``text``, sent as one user message to the model of ``derive``.

        The call costs nothing. It waits at most 10 s for each part of the answer.

        Raises:
            JobError: the errors of :meth:`complete`.
        """
        model = self.model_for("derive")
        counted = self.call(
            lambda client: client.messages.count_tokens(
                model=model, messages=[{"role": "user", "content": text}], timeout=COUNT_SECONDS
            )
        )
        tokens = getattr(counted, "input_tokens", None)
        if not isinstance(tokens, int):
            raise Transient("The Claude API (or a gateway before it) answered with something that is no count.")
        return tokens

    def preload(self) -> None:
        """Load the SDK, which takes over 1 s."""
        import anthropic

        with anthropic.Anthropic(api_key="unused") as client:
            _ = client.messages  # the library loads much of itself only when a client is made and used

    def probe(self, purposes: Collection[Purpose] = PURPOSES) -> None:
        """Check the models of some purposes at no cost. A gateway that has no endpoint for models passes the check.

        Raises:
            Misconfigured: a model is retired.
            JobError: the errors of :meth:`complete`.
        """
        names = {
            self.model_for(purpose)
            for purpose in purposes
            if choice(self._settings, purpose).provider in ("anthropic", "auto")
        }
        for name in sorted(names):
            if self.call(partial(_lifecycle, name)) == "retired":
                raise Misconfigured(f"The model {name} is retired.")

    def call(self, ask: Callable[[Anthropic], ResultT]) -> ResultT:
        """Call ``ask`` with the process's client. Errors of the SDK become job errors."""
        return self._client.call(ask)


def _lifecycle(name: str, client: Anthropic) -> str:
    import anthropic

    try:
        return str(getattr(client.models.retrieve(name), "lifecycle", ""))
    except anthropic.NotFoundError as error:
        if error.type == "not_found_error":
            raise
        return ""
