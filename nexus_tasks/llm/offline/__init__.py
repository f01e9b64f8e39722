"""The offline model: rules in place of a language model, for trying and testing the system without a network.

The offline model reads the material of a request (the data from which the prompt was made), not the prompt. Its answers
repeat sentences of the material. Its rules are for English. In text of other languages, the offline model finds fewer
facts, but raises no error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from pydantic import BaseModel

from nexus_tasks.llm.answers import (
    AnswerMaterial,
    CondenseMaterial,
    DeriveMaterial,
    Material,
    ObserveMaterial,
    ReflectMaterial,
    SessionFactsMaterial,
    TopicsMaterial,
)
from nexus_tasks.llm.base import PURPOSES, AnswerT, Completion, ModelRequest, Purpose, Usage
from nexus_tasks.llm.offline.answer import answer
from nexus_tasks.llm.offline.derive import derive
from nexus_tasks.llm.offline.digest import digest
from nexus_tasks.llm.offline.extract import facts, topics
from nexus_tasks.llm.offline.observe import condense, observe
from nexus_tasks.llm.offline.reflect import reflect

__all__ = ["OfflineModel"]


class OfflineModel:
    """A :class:`~nexus_tasks.llm.base.LanguageModel` that costs nothing and gives the same answer every time."""

    name = "offline"

    def batches_for(self, purpose: Purpose) -> None:
        """None: the model has no message batches."""

    def provider_for(self, purpose: Purpose) -> str:  # noqa: ARG002 - one provider for all purposes
        """Always ``"offline"``."""
        return self.name

    def model_for(self, purpose: Purpose) -> str:  # noqa: ARG002 - one model for all purposes
        """Always ``"offline"``."""
        return self.name

    def complete(self, request: ModelRequest[AnswerT]) -> Completion[AnswerT]:
        """Answer from ``request.material``. The completion has no fault, and its usage is 0 tokens.

        Raises:
            TypeError: the request asks for an answer type that does not belong to its material.
        """
        began = time.perf_counter()
        answer = _answer(request.material)
        if not isinstance(answer, request.answer):
            raise TypeError(f"{type(request.material).__name__} gives {type(answer).__name__}, not {request.answer}.")
        return Completion(model=self.name, usage=Usage(), seconds=time.perf_counter() - began, answer=answer)

    def stream(self, request: ModelRequest[AnswerT], on_text: Callable[[str], None]) -> Completion[AnswerT]:
        """Answer as :meth:`complete` does, and give the whole reply to ``on_text``."""
        done = self.complete(request)
        assert done.answer is not None
        on_text(done.answer.model_dump_json())
        return done

    def preload(self) -> None:
        """Do nothing, because the model has no library."""

    def probe(self, purposes: Collection[Purpose] = PURPOSES) -> None:
        """Do nothing, because the model needs no credentials."""


def _answer(material: Material) -> BaseModel:
    if isinstance(material, AnswerMaterial):
        return answer(material)
    if isinstance(material, DeriveMaterial):
        return derive(material)
    if isinstance(material, ReflectMaterial):
        return reflect(material)
    if isinstance(material, ObserveMaterial):
        return observe(material)
    if isinstance(material, CondenseMaterial):
        return condense(material)
    if isinstance(material, TopicsMaterial):
        return topics(material)
    if isinstance(material, SessionFactsMaterial):
        return facts(material)
    return digest(material)
