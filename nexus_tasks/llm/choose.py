"""Choose the language model by the setting ``NEXUS_MODEL``."""

from __future__ import annotations

from nexus_tasks.errors import ConfigurationError, Misconfigured
from nexus_tasks.llm.base import LanguageModel
from nexus_tasks.settings import Settings


def language_model(settings: Settings) -> LanguageModel:
    """The model that ``settings.model`` names.

    ``auto`` means Claude when Anthropic's SDK finds credentials, else the offline model. When ``database_url`` is set,
    ``auto`` without credentials is an error. Otherwise a worker without its key would write the offline model's facts
    into a production database.

    Raises:
        ConfigurationError: the model is ``auto``, and the credentials are unreadable, or no credentials were found
            although ``database_url`` is set.
    """
    if settings.model == "anthropic" or (settings.model == "auto" and _claude_speaks(settings)):
        from nexus_tasks.llm.anthropic import AnthropicModel

        return AnthropicModel(settings)
    from nexus_tasks.llm.offline import OfflineModel

    return OfflineModel()


def _claude_speaks(settings: Settings) -> bool:
    from nexus_tasks.llm.anthropic.client import credentials_found

    try:
        found = credentials_found()
    except Misconfigured as error:
        raise ConfigurationError(
            error.message, remedy="Correct the profile, or set NEXUS_MODEL=offline to run without Claude."
        ) from None
    if not found and settings.database_url is not None:
        raise ConfigurationError(
            "NEXUS_DATABASE_URL is set and no credentials for Claude were found.",
            remedy="Set ANTHROPIC_API_KEY, or set NEXUS_MODEL=offline to use the offline model on purpose.",
        )
    return found
