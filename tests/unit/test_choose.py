"""Which model speaks."""

from __future__ import annotations

import sys

import pytest

from nexus_tasks.errors import ConfigurationError
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
    import subprocess

    script = (
        "import sys; from nexus_tasks.settings import Settings; from nexus_tasks.llm.choose import language_model\n"
        "assert language_model(Settings()).name == 'offline'; sys.exit('anthropic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
