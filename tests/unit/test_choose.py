"""Which model speaks, for all purposes and for each."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nexus_tasks.errors import ConfigurationError
from nexus_tasks.llm.base import PURPOSES
from nexus_tasks.llm.choose import language_model
from nexus_tasks.settings import Settings
from tests.standin import isolate

SERVER = {"database_url": "postgresql://u:secret@db/x", "redis_url": "redis://r"}


@pytest.fixture(autouse=True)
def _bare(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.mark.parametrize("server", [{}, SERVER], ids=["embedded", "server"])
@pytest.mark.parametrize(("asked", "key"), [("auto", "k"), ("anthropic", "k"), ("anthropic", "")])
def test_claude_speaks(monkeypatch, server, asked, key):
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    assert language_model(Settings(model=asked, **server)).name == "anthropic"


@pytest.mark.parametrize("server", [{}, SERVER], ids=["embedded", "server"])
@pytest.mark.parametrize("key", ["", "k"])
def test_offline_speaks_when_asked_for_even_with_a_key(monkeypatch, server, key):
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    assert language_model(Settings(model="offline", **server)).name == "offline"


def test_auto_without_credentials_is_offline_when_embedded():
    assert language_model(Settings()).name == "offline"


def test_auto_without_credentials_is_an_error_on_a_server():
    with pytest.raises(ConfigurationError) as caught:
        language_model(Settings(**SERVER))
    assert "ANTHROPIC_API_KEY" in caught.value.remedy
    assert "NEXUS_MODEL=offline" in caught.value.remedy
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("server", [{}, SERVER], ids=["embedded", "server"])
def test_auto_with_a_broken_profile_is_an_error_everywhere(monkeypatch, server):
    monkeypatch.setenv("ANTHROPIC_PROFILE", "work")
    with pytest.raises(ConfigurationError, match="work"):
        language_model(Settings(**server))


def test_choosing_offline_does_not_import_the_sdk():
    script = (
        "import sys; from nexus_tasks.settings import Settings; from nexus_tasks.llm.choose import language_model\n"
        "assert language_model(Settings()).name == 'offline'; sys.exit('anthropic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# --- a provider per purpose -------------------------------------------------------------------------------------------
def chosen(**settings: str) -> dict[str, str]:
    """``provider/model`` of each purpose that is not the usual one of Claude."""
    usual = {purpose: f"anthropic/{Settings.model_fields[f'model_{purpose}'].default}" for purpose in PURPOSES}
    model = language_model(Settings(**settings))
    found = {purpose: f"{model.provider_for(purpose)}/{model.model_for(purpose)}" for purpose in PURPOSES}
    return {purpose: one for purpose, one in found.items() if one != usual[purpose]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"model_reflect": "claude-opus-5-5"}, {"reflect": "anthropic/claude-opus-5-5"}),
        ({"model_reflect": "anthropic/claude-opus-5-5"}, {"reflect": "anthropic/claude-opus-5-5"}),
        ({"model_reflect": "anthropic"}, {}),
        ({"model_reflect": "offline"}, {"reflect": "offline/offline"}),
        ({"model_digest": "openai/gpt-x"}, {"digest": "openai/gpt-x"}),
        ({"model_digest": "openai-compatible/gpt-x"}, {"digest": "openai/gpt-x"}),
        ({"model_digest": "openai/meta-llama/L-3"}, {"digest": "openai/meta-llama/L-3"}),
        ({"model_digest": "openai", "openai_model": "small"}, {"digest": "openai/small"}),
        ({"model_digest": "meta-llama/L-3"}, {"digest": "anthropic/meta-llama/L-3"}),
    ],
    ids=str,
)
def test_a_purpose_may_name_its_provider(monkeypatch, settings, expected):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    for model in ("auto", "anthropic"):
        assert chosen(model=model, **settings) == expected


@pytest.mark.parametrize("name", ["openai", "openai-compatible"])
def test_openai_answers_all_purposes_with_one_model(name):
    assert chosen(model=name, openai_model="small") == dict.fromkeys(PURPOSES, "openai/small")
    both = chosen(model=name, openai_model="small", model_facts="claude-haiku-5-5", model_answer="anthropic")
    assert both["facts"] == "openai/claude-haiku-5-5"  # a bare name is a model of the provider that NEXUS_MODEL names
    assert "answer" not in both


def test_a_purpose_may_have_claude_beside_the_offline_model():
    found = chosen(model="offline", model_facts="anthropic/claude-haiku-5-5", model_reflect="claude-sonnet-5-5")
    assert found == {purpose: "offline/offline" for purpose in PURPOSES if purpose != "facts"}


def test_a_forgotten_key_is_an_error_for_every_purpose_that_does_not_name_offline():
    with pytest.raises(ConfigurationError, match="no credentials for Claude"):
        language_model(Settings(model_reflect="offline", **SERVER))
    named = {f"model_{purpose}": "offline" for purpose in PURPOSES}
    assert language_model(Settings(**named, **SERVER)).name == "offline"
    del named["model_facts"]
    with pytest.raises(ConfigurationError, match="no credentials for Claude"):
        language_model(Settings(**named, **SERVER))
    assert language_model(Settings(**named, model_facts="openai/x", **SERVER)).name == "offline, openai"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "openai"}, "NEXUS_OPENAI_MODEL"),
        ({"model_digest": "openai"}, "NEXUS_MODEL_DIGEST=openai/NAME"),
        ({"model_digest": "openai/"}, "names no model"),
    ],
    ids=str,
)
def test_a_name_that_is_missing_is_said(settings, said):
    with pytest.raises(ConfigurationError) as caught:
        language_model(Settings(**settings))
    assert said in str(caught.value)


def test_without_the_extra_everything_else_works_and_the_error_names_it():
    script = (
        "import sys, importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'openai' else find(name, *a)\n"
        "sys.modules['openai'] = None\n"
        "from nexus_tasks.settings import Settings; from nexus_tasks.llm.choose import language_model\n"
        "from nexus_tasks.errors import ConfigurationError\n"
        "assert language_model(Settings(model='offline')).name == 'offline'\n"
        "assert language_model(Settings(model='anthropic')).name == 'anthropic'\n"
        "try: language_model(Settings(model_digest='openai/x'))\n"
        "except ConfigurationError as error: assert 'nexus-tasks[openai]' in error.remedy\n"
        "else: sys.exit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_choosing_openai_does_not_import_the_sdk():
    script = (
        "import sys; from nexus_tasks.settings import Settings; from nexus_tasks.llm.choose import language_model\n"
        "assert language_model(Settings(model='openai', openai_model='m')).name == 'openai'\n"
        "sys.exit('openai' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
