"""Which provider and model the settings choose for each purpose.

``NEXUS_MODEL`` names the provider of every purpose. ``NEXUS_MODEL_DERIVE``, ``NEXUS_MODEL_REFLECT`` and the others may
name another one for their purpose:

    offline                    the offline model
    anthropic/claude-opus-5-5  a model of this provider
    openai                     this provider, with the model that it uses by default
    claude-opus-5-5            a model of the provider that NEXUS_MODEL names
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nexus_tasks.errors import ConfigurationError
from nexus_tasks.llm.base import Purpose
from nexus_tasks.settings import Settings

Provider = Literal["anthropic", "openai", "offline"]
OFFLINE = "offline"
_PROVIDERS: dict[str, Provider] = {
    "anthropic": "anthropic",
    "openai": "openai",
    "openai-compatible": "openai",
    "offline": "offline",
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The provider and the model of a purpose.

    Attributes:
        provider: ``auto`` when the credentials decide between Claude and the offline model.
        model: the model's name, as the provider calls it.
        named: whether the purpose's own setting names the provider.
    """

    provider: Provider | Literal["auto"]
    model: str
    named: bool = False


def choice(settings: Settings, purpose: Purpose) -> Choice:
    """The provider and the model that the settings choose for ``purpose``.

    Raises:
        ConfigurationError: no model is named for the provider ``openai``, or a name is missing after the slash.
    """
    setting = f"model_{purpose}"
    given = str(getattr(settings, setting)) if setting in settings.model_fields_set else ""
    before, slash, after = given.partition("/")
    provider = _PROVIDERS.get(before)
    if provider == "offline" and not slash:
        return Choice(provider="offline", model=OFFLINE, named=True)
    if provider is not None and provider != "offline":
        if slash and not after:
            raise ConfigurationError(
                f"NEXUS_{setting.upper()}={given} names no model.", remedy=f"Write it as {before}/NAME, or as {before}."
            )
        return Choice(provider=provider, model=after or _usual(settings, provider, purpose), named=True)
    if settings.model == "offline":
        return Choice(provider="offline", model=OFFLINE)
    return Choice(provider=settings.model, model=given or _usual(settings, settings.model, purpose))


def claude_name(settings: Settings, purpose: Purpose) -> str:
    """The Claude model for ``purpose``, also when another provider answers the purpose."""
    chosen = choice(settings, purpose)
    return chosen.model if chosen.provider in ("anthropic", "auto") else str(_default(purpose))


def _usual(settings: Settings, provider: str, purpose: Purpose) -> str:
    if provider != "openai":
        return _default(purpose)
    if not settings.openai_model:
        raise ConfigurationError(
            f"No model of the provider `openai` is named for the purpose {purpose}.",
            remedy=f"Set NEXUS_OPENAI_MODEL, or NEXUS_MODEL_{purpose.upper()}=openai/NAME.",
        )
    return settings.openai_model


def _default(purpose: Purpose) -> str:
    return str(Settings.model_fields[f"model_{purpose}"].default)
