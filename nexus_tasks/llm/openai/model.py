"""A language model behind OpenAI's API. A failed call is not repeated here, but by the job's retry."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from nexus_tasks.errors import Misconfigured
from nexus_tasks.llm.base import PURPOSES, AnswerT, Completion, ModelRequest, Purpose
from nexus_tasks.llm.dialects import Dialect, Dialects
from nexus_tasks.llm.openai.chat import Reply, completion, read_pieces, read_whole, request_params
from nexus_tasks.llm.openai.client import OpenAIClient, is_azure, own_address, require_sdk
from nexus_tasks.llm.openai.errors import REMEDY
from nexus_tasks.llm.purposes import choice
from nexus_tasks.llm.server_errors import telling_pages_apart

if TYPE_CHECKING:
    from openai import OpenAI

    from nexus_tasks.settings import Settings

Send = Callable[["OpenAI", dict[str, Any]], Reply]


class OpenAIModel:
    """The :class:`~nexus_tasks.llm.base.LanguageModel` that asks a server with OpenAI's Chat Completions API.

    Threads and forked processes may share the object. Creating the object is fast, because only the first call imports
    the SDK and builds the client.

    Raises:
        ConfigurationError: OpenAI's SDK is not installed.
    """

    name = "openai"

    def __init__(self, settings: Settings) -> None:
        require_sdk()
        self._settings = settings
        self._client = OpenAIClient(settings)
        self._dialects = Dialects(settings, settings.openai_structured_output)
        # OpenAI and Azure take only the new name of this field for their newer models. Other servers know the old one.
        own = own_address(settings) is not None
        self._usual = Dialect(caching=False, limit="max_tokens" if own else "max_completion_tokens")

    def batches_for(self, purpose: Purpose) -> None:
        """None: only OpenAI itself has batches, and its batches are files. Dreams go live."""

    def provider_for(self, purpose: Purpose) -> str:  # noqa: ARG002 - one provider for all purposes
        """Always ``"openai"``."""
        return self.name

    def model_for(self, purpose: Purpose) -> str:
        """The configured model for ``purpose``."""
        return choice(self._settings, purpose).model

    def complete(self, request: ModelRequest[AnswerT]) -> Completion[AnswerT]:
        """Call the model once. When the answer is unusable, the completion has a fault and no answer.

        Raises:
            Transient: the network failed, the server did not answer in time, or the status is 408, 409 or 5xx.
            Throttled: the status is 429. The error has the seconds to wait.
            OverBudget: the account has no credit or has reached a limit.
            Misconfigured: there is no key, the server answered 401 or 403, or the model is unknown.
            TooLarge: the prompt is longer than the model's context.
            Refused: a content filter refused the prompt, or a firewall before the server answered 403.
            Permanent: the server rejected the request for another reason.
        """
        return self._complete(request, lambda client, params: read_whole(client.chat.completions.create(**params)))

    def stream(self, request: ModelRequest[AnswerT], on_text: Callable[[str], None]) -> Completion[AnswerT]:
        """Call the model once, and give each piece of the reply to ``on_text`` as it arrives.

        Raises:
            JobError: the errors of :meth:`complete`. A part of the reply may have arrived before.
        """

        def streamed(client: OpenAI, params: dict[str, Any]) -> Reply:
            with client.chat.completions.create(
                **params, stream=True, stream_options={"include_usage": True}
            ) as pieces:
                return read_pieces(pieces, on_text)

        return self._complete(request, streamed)

    def _complete(self, request: ModelRequest[AnswerT], send: Send) -> Completion[AnswerT]:
        from openai import APIStatusError

        model = self.model_for(request.purpose)
        longest = int(getattr(self._settings, f"max_tokens_{request.purpose}"))
        began = time.monotonic()

        def ask(client: OpenAI) -> tuple[str, Reply, Dialect]:
            server = str(client.base_url)
            reply, dialect = self._dialects.negotiate(
                server,
                model,
                self._usual,
                lambda dialect: send(client, request_params(request, model, longest, dialect)),
                APIStatusError,
            )
            return server, reply, dialect

        with telling_pages_apart(partial(self.probe, (request.purpose,))):
            server, reply, dialect = self._client.call(ask)
        done = completion(reply, request, model, time.monotonic() - began)
        if done.misshapen or done.answer is not None:
            self._dialects.judge(server, model, dialect, misshapen=done.misshapen)
        return done

    def preload(self) -> None:
        """Load the SDK, which takes about a second."""
        import openai

        with openai.OpenAI(api_key="unused") as client:
            _ = client.chat.completions  # the library loads much of itself only when a client is made and used

    def probe(self, purposes: Collection[Purpose] = PURPOSES) -> None:
        """Check the key and the models of some purposes at no cost. A server that has no endpoint for models passes.

        Raises:
            Misconfigured: the server does not know a model.
            JobError: the errors of :meth:`complete`.
        """
        if is_azure(self._settings):  # the models there are deployments, which the endpoint for models does not list
            self._client.call(lambda client: client.models.list())
            return
        for name in sorted(
            {self.model_for(purpose) for purpose in purposes if choice(self._settings, purpose).provider == self.name}
        ):
            self._client.call(partial(_check, name))


def _check(name: str, client: OpenAI) -> None:
    import openai

    try:
        client.models.retrieve(name)
    except openai.NotFoundError as error:
        if name in str(error.body):
            raise Misconfigured(f"The model server does not know the model {name}.", remedy=REMEDY) from None
    except (openai.BadRequestError, openai.UnprocessableEntityError):
        return  # such a server has an endpoint of another kind
    except openai.APIStatusError as error:
        if error.status_code not in (405, 501):
            raise
