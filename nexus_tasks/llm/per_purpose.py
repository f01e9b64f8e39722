"""A model that sends each purpose to the provider that the settings name for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from nexus_tasks.llm.base import PURPOSES, AnswerT, BatchProvider, Completion, LanguageModel, ModelRequest, Purpose


class ModelPerPurpose:
    """A :class:`~nexus_tasks.llm.base.LanguageModel` made of several.

    Args:
        models: the model of each purpose.
    """

    def __init__(self, models: Mapping[Purpose, LanguageModel]) -> None:
        self._models = dict(models)
        self._each = list(dict.fromkeys(self._models.values()))
        self.name = ", ".join(model.name for model in self._each)

    def batches_for(self, purpose: Purpose) -> BatchProvider | None:
        """The message batches of the provider that answers ``purpose``."""
        return self._models[purpose].batches_for(purpose)

    def provider_for(self, purpose: Purpose) -> str:
        """The name of the provider that answers ``purpose``."""
        return self._models[purpose].provider_for(purpose)

    def model_for(self, purpose: Purpose) -> str:
        """The model name that :meth:`complete` will use for ``purpose``."""
        return self._models[purpose].model_for(purpose)

    def complete(self, request: ModelRequest[AnswerT]) -> Completion[AnswerT]:
        """Call the model of the request's purpose once.

        Raises:
            JobError: the errors of the provider.
        """
        return self._models[request.purpose].complete(request)

    def stream(self, request: ModelRequest[AnswerT], on_text: Callable[[str], None]) -> Completion[AnswerT]:
        """Call the model as :meth:`complete` does, and give each piece of its reply to ``on_text`` as it arrives."""
        return self._models[request.purpose].stream(request, on_text)

    def preload(self) -> None:
        """Load the libraries of all providers."""
        for model in self._each:
            model.preload()

    def probe(self, purposes: Collection[Purpose] = PURPOSES) -> None:
        """Check the credentials and model names of some purposes at no cost.

        Raises:
            JobError: the errors of :meth:`complete`.
        """
        for model in self._each:
            if its := [purpose for purpose in purposes if self._models[purpose] is model]:
                model.probe(its)
