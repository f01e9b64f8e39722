"""Checks of the language models: the provider of each purpose, its credentials, its server and its prices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from nexus_tasks.cli.checks.check import Check, failed, passed
from nexus_tasks.errors import JobError
from nexus_tasks.llm.base import PURPOSES, LanguageModel, Purpose
from nexus_tasks.llm.purposes import choice
from nexus_tasks.settings import Settings, mask_url

_PATIENCE = 10.0  # seconds within which a model server has to answer; chosen by hand


def models(settings: Settings) -> Sequence[Check]:
    """Report which provider and model answer each purpose, and check the credentials of each provider.

    A server at an address of one's own is asked for its models, at no cost. The others get no request.

    Raises:
        ConfigurationError: no model can be chosen.
        Misconfigured: the credentials cannot be read.
    """
    from nexus_tasks.llm.choose import language_model

    model = language_model(settings)
    providers = dict.fromkeys(model.provider_for(purpose) for purpose in PURPOSES)
    if list(providers) == ["offline"]:
        asked = any(choice(settings, purpose).provider == "auto" for purpose in PURPOSES)
        why = "no credentials for Claude were found" if asked else "as NEXUS_MODEL says"
        return [passed("model", f"offline, {why}")]
    checks = [*_providers(settings, model, list(providers)), _prices(settings, model)]
    return [*checks, *_servers(settings, list(providers))] if all(check.ok for check in checks[:-1]) else checks


def _providers(settings: Settings, model: LanguageModel, providers: list[str]) -> Iterator[Check]:
    for name in providers:
        names: dict[str, list[Purpose]] = {}
        for purpose in PURPOSES:
            if model.provider_for(purpose) == name:
                names.setdefault(model.model_for(purpose), []).append(purpose)
        listed = "; ".join(
            each if len(providers) == 1 and len(names) == 1 else f"{each} for {', '.join(purposes)}"
            for each, purposes in names.items()
        )
        if name == "offline":
            yield passed("model", f"offline, {listed.removeprefix('offline ')}, as NEXUS_MODEL_* say")
        elif _has_credentials(settings, name):
            yield passed("model", f"{name}, credentials found, {listed}")
        else:
            variable = "ANTHROPIC_API_KEY" if name == "anthropic" else "OPENAI_API_KEY or NEXUS_OPENAI_BASE_URL"
            yield failed(
                "model",
                f"{name}, without credentials, {listed}",
                f"Set {variable}, or NEXUS_MODEL=offline, or name another provider in"
                f" NEXUS_MODEL_{next(iter(names.values()))[0].upper()}.",
            )


def _has_credentials(settings: Settings, provider: str) -> bool:
    if provider == "anthropic":
        from nexus_tasks.llm.anthropic.client import credentials_found as claude_has

        return claude_has()
    from nexus_tasks.llm.openai.client import credentials_found as openai_has

    return openai_has(settings)


def _servers(settings: Settings, providers: list[str]) -> Iterator[Check]:
    """Ask the servers whose addresses are the operator's own: they may not run, or not know a model's name."""
    quick = settings.model_copy(update={"model_timeout": min(settings.model_timeout, _PATIENCE)})
    for name, address in _own_addresses(settings).items():
        if name in providers:
            try:
                _provider(quick, name).probe()
            except JobError as error:
                yield failed(
                    "model server", f"{mask_url(address)}: {error.message} {error.quoted}".rstrip(), error.remedy
                )
            else:
                yield passed("model server", f"{mask_url(address)} answers, and refuses neither the key nor a model")


def _own_addresses(settings: Settings) -> dict[str, str]:
    found = {
        "anthropic": settings.anthropic_base_url or os.environ.get("ANTHROPIC_BASE_URL"),
        "openai": settings.openai_base_url or os.environ.get("OPENAI_BASE_URL"),
    }
    return {name: address for name, address in found.items() if address}


def _provider(settings: Settings, name: str) -> LanguageModel:
    if name == "anthropic":
        from nexus_tasks.llm.anthropic import AnthropicModel

        return AnthropicModel(settings)
    from nexus_tasks.llm.openai import OpenAIModel

    return OpenAIModel(settings)


def _prices(settings: Settings, model: LanguageModel) -> Check:
    """Check that the price of every model is known. Otherwise its calls count as 0 USD, and a budget refuses them."""
    names = dict.fromkeys(model.model_for(purpose) for purpose in PURPOSES)
    unknown = [name for name in names if not settings.has_price(name)]
    if not unknown:
        return passed("prices", "known for every model")
    found = f"unknown for {', '.join(unknown)}: its calls count as 0 USD, and a namespace with a budget waits"
    if settings.budget_usd_per_day is None:
        return passed("prices", found)
    row = f'{{"{unknown[0]}": [INPUT, OUTPUT, CACHE_WRITE, CACHE_READ]}}'
    return failed("prices", found, f"Set NEXUS_PRICES='{row}', in USD per million tokens.")
