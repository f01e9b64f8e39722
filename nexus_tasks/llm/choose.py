"""Choosing the language model that ``NEXUS_MODEL`` asks for."""

from __future__ import annotations

from collections import OrderedDict

from nexus_tasks.errors import ConfigurationError, Misconfigured
from nexus_tasks.llm.base import LanguageModel
from nexus_tasks.settings import Settings

_KEPT = 8  # models of other settings are dropped, the oldest first; chosen by hand
# Keyed by id(settings), because settings hold a dict and have no hash. The entry keeps the settings alive, so that
# their id is not reused.
_chosen: OrderedDict[int, tuple[Settings, LanguageModel]] = OrderedDict()


def language_model(settings: Settings) -> LanguageModel:
    """The model that ``settings`` ask for; the same object for the same settings.

    ``auto`` is Claude when the SDK finds credentials, else the offline model. With a ``database_url``, missing
    credentials are an error: one worker without a key must not write extractive facts into a production database.

    Raises:
        ConfigurationError: ``auto`` with a ``database_url`` and no credentials, or unreadable credentials.
    """
    known = _chosen.get(id(settings))
    if known is None:
        known = _chosen.setdefault(id(settings), (settings, _choose(settings)))  # atomic: two threads get one model
        if len(_chosen) > _KEPT:
            _chosen.popitem(last=False)
    return known[1]


def _choose(settings: Settings) -> LanguageModel:
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
            remedy="Set ANTHROPIC_API_KEY, or NEXUS_MODEL=offline to store extractive facts on purpose.",
        )
    return found
