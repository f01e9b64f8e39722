"""Choose the language model of each purpose by the settings ``NEXUS_MODEL`` and ``NEXUS_MODEL_<PURPOSE>``."""

from __future__ import annotations

from functools import cached_property

from nexus_tasks.errors import ConfigurationError, Misconfigured
from nexus_tasks.llm.base import PURPOSES, LanguageModel
from nexus_tasks.llm.per_purpose import ModelPerPurpose
from nexus_tasks.llm.purposes import Provider, choice
from nexus_tasks.settings import Settings


def language_model(settings: Settings) -> LanguageModel:
    """The model that the settings name: one provider's, or one that sends each purpose to its provider.

    ``auto`` means Claude when Anthropic's SDK finds credentials, else the offline model. When ``database_url`` is set,
    ``auto`` without credentials is an error. Otherwise a worker without its key would write the offline model's facts
    into a production database.

    Raises:
        ConfigurationError: a purpose is left to ``auto``, and the credentials are unreadable, or no credentials were
            found although ``database_url`` is set; or a provider's package or model name is missing.
    """
    chooser = _Chooser(settings)
    models = {purpose: chooser.provider(choice(settings, purpose).provider) for purpose in PURPOSES}
    one = next(iter(models.values()))
    return one if all(model is one for model in models.values()) else ModelPerPurpose(models)


class _Chooser:
    """Makes each provider's model at most once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def provider(self, name: Provider | str) -> LanguageModel:
        if name == "anthropic" or (name == "auto" and self._claude_speaks):
            return self._anthropic
        return self._openai if name == "openai" else self._offline

    @cached_property
    def _anthropic(self) -> LanguageModel:
        from nexus_tasks.llm.anthropic import AnthropicModel

        return AnthropicModel(self._settings)

    @cached_property
    def _openai(self) -> LanguageModel:
        from nexus_tasks.llm.openai import OpenAIModel

        return OpenAIModel(self._settings)

    @cached_property
    def _offline(self) -> LanguageModel:
        from nexus_tasks.llm.offline import OfflineModel

        return OfflineModel()

    @cached_property
    def _claude_speaks(self) -> bool:
        from nexus_tasks.llm.anthropic.client import credentials_found

        try:
            found = credentials_found()
        except Misconfigured as error:
            raise ConfigurationError(
                error.message, remedy="Correct the profile, or set NEXUS_MODEL=offline to run without Claude."
            ) from None
        if not found and self._settings.database_url is not None:
            raise ConfigurationError(
                "NEXUS_DATABASE_URL is set and no credentials for Claude were found.",
                remedy="Set ANTHROPIC_API_KEY, or NEXUS_MODEL=openai for a server with OpenAI's API, or set"
                " NEXUS_MODEL=offline to use the offline model on purpose.",
            )
        return found
