"""What ``nexus doctor`` says about models: the provider of each purpose, its credentials, its server, its prices."""

from __future__ import annotations

import pytest

from nexus_tasks.cli.checks.models import models
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.settings import Settings
from tests.standin import StandIn, faults, isolate
from tests.standin.wire import Reply


@pytest.fixture(autouse=True)
def _bare(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def standin():
    with StandIn() as server:
        yield server


def said(settings: Settings) -> list[tuple[str, bool, str]]:
    return [(check.name, check.ok, check.found) for check in models(settings)]


def test_the_offline_model_says_why_it_is_used():
    assert said(Settings()) == [("model", True, "offline, no credentials for Claude were found")]
    assert said(Settings(model="offline")) == [("model", True, "offline, as NEXUS_MODEL says")]


def test_each_purpose_is_shown_with_its_provider(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    found = said(Settings(model_reflect="offline", model_digest="openai/gpt-x"))
    assert [(name, ok) for name, ok, _ in found] == [("model", True)] * 3 + [("prices", True)]
    claude, offline, openai, prices = (text for _, _, text in found)
    assert claude.startswith(
        "anthropic, credentials found, claude-haiku-5-5 for derive, observe, condense, topics, facts;"
    )
    assert offline.startswith("offline, for reflect")
    assert openai == "openai, credentials found, gpt-x for digest"
    assert prices.startswith("unknown for gpt-x")


def test_missing_credentials_are_said_for_the_provider_that_lacks_them(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    checks = models(Settings(model_digest="openai/gpt-x"))
    [failed] = [check for check in checks if not check.ok]
    assert failed.found == "openai, without credentials, gpt-x for digest"
    assert "OPENAI_API_KEY" in failed.remedy
    assert "NEXUS_MODEL_DIGEST" in failed.remedy
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    [failed] = [check for check in models(Settings(model="anthropic")) if not check.ok]
    assert "ANTHROPIC_API_KEY" in failed.remedy


def test_a_forgotten_key_in_production_is_an_error():
    server = {"database_url": "postgresql://u:secret@db/x", "redis_url": "redis://r"}
    with pytest.raises(ConfigurationError, match="no credentials for Claude"):
        models(Settings(model_reflect="offline", **server))


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_server_of_ones_own_is_asked_for_its_models(standin, monkeypatch, provider):
    environment = standin.environment() if provider == "anthropic" else standin.openai_environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NEXUS_PRICES", '{"small": [0, 0, 0, 0]}')
    assert said(Settings())[-1] == (
        "model server",
        True,
        f"{Settings().openai_base_url or standin.url} answers, and refuses neither the key nor a model",
    )
    wrong = models(Settings(model_facts="nobody-9"))[-1]
    assert (wrong.name, wrong.ok) == ("model server", False)
    assert "nobody-9" in wrong.found
    monkeypatch.setattr(standin, "model", lambda _: Reply.of(faults.unauthorized()))
    assert not models(Settings())[-1].ok
    standin.stop()
    away = models(Settings())[-1]
    assert (away.ok, "Connect" in away.found) == (False, True)
    assert standin.counters.calls == 0


def test_a_budget_wants_the_price_of_every_model(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    settings = Settings(model="openai", openai_model="gpt-x", budget_usd_per_day=1)
    [prices] = [check for check in models(settings) if check.name == "prices"]
    assert not prices.ok
    assert 'NEXUS_PRICES=\'{"gpt-x"' in prices.remedy
