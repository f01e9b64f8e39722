"""The Claude client: its credentials, its secrets, its life between threads and forks, and the probe."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nexus_tasks import errors
from nexus_tasks.llm.anthropic import AnthropicModel, credentials_found
from nexus_tasks.llm.anthropic import client as client_module
from nexus_tasks.llm.server_errors import redact
from nexus_tasks.settings import Settings
from tests.standin import StandIn, faults, isolate
from tests.standin.answers import together
from tests.standin.samples import derive
from tests.standin.wire import Reply

KEY = "sk-ant-api03-SECRETSECRETSECRET"


@pytest.fixture(autouse=True)
def _bare(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def standin():
    with StandIn() as server:
        yield server


@pytest.fixture
def settings(standin, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    return Settings(anthropic_base_url=standin.url, model_timeout=10)


@pytest.fixture
def model(settings):
    return AnthropicModel(settings)


# --- secrets ----------------------------------------------------------------------------------------------------------
def told(error: BaseException) -> str:
    """Everything a log, a dead letter or another process could see of ``error``."""
    lines = traceback.format_exception(error)
    return "".join(lines) + repr(error) + str(vars(error)) + str(pickle.loads(pickle.dumps(error)))


@pytest.mark.parametrize(
    "fault",
    [
        faults.unauthorized(f"invalid key {KEY}"),
        faults.status(400, "invalid_request_error", f"header Authorization: Bearer {KEY} is odd"),
        faults.status(400, "invalid_request_error", "Bearer eyJhbGciOi.eyJzdWIiOi.c2ln is odd"),
        faults.status(500, "", "", body=f"<pre>{KEY}</pre>"),
        faults.throttled(KEY),
    ],
    ids=lambda value: value.name,
)
def test_no_secret_gets_into_an_error(model, standin, fault):
    standin.faults.append(fault)
    with pytest.raises(errors.JobError) as caught:
        model.complete(derive())
    assert "SECRET" not in told(caught.value)
    assert "eyJ" not in told(caught.value)


def test_a_key_with_a_line_break_is_a_misconfiguration_that_is_not_told(settings, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY + "\n")
    with pytest.raises(errors.Misconfigured, match="malformed") as caught:
        AnthropicModel(settings).complete(derive())
    assert "SECRET" not in told(caught.value)


def test_a_key_of_another_form_is_starred_out_as_well(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "gateway-password-1")
    assert (
        redact("the token gateway-password-1 at http://me:pw@proxy/ is odd")
        == "the token *** at http://***@proxy/ is odd"
    )
    assert len(redact("x" * 1000)) == 300


# --- credentials ------------------------------------------------------------------------------------------------------
def write_profile(home: Path, name: str = "default", token: str | None = "sk-ant-oat01-x") -> None:
    for folder in ("configs", "credentials"):
        (home / ".config/anthropic" / folder).mkdir(parents=True, exist_ok=True)
    config = home / f".config/anthropic/configs/{name}.json"
    config.write_text(json.dumps({"authentication": {"type": "user_oauth"}}))
    config.chmod(0o644)
    if token is not None:
        secret = home / f".config/anthropic/credentials/{name}.json"
        secret.write_text(json.dumps({"type": "oauth_token", "access_token": token}))
        secret.chmod(0o600)


FEDERATION = {
    "ANTHROPIC_FEDERATION_RULE_ID": "fdrl_1",
    "ANTHROPIC_ORGANIZATION_ID": "00000000-0000-0000-0000-000000000000",
    "ANTHROPIC_IDENTITY_TOKEN": "eyJhbGciOi.eyJzdWIiOi.c2ln",
}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, False),
        ({"ANTHROPIC_API_KEY": "k"}, True),
        ({"ANTHROPIC_API_KEY": ""}, False),
        ({"ANTHROPIC_AUTH_TOKEN": "t"}, True),
        ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, False),
        ({"ANTHROPIC_CUSTOM_HEADERS": "X-Api-Key: k"}, True),
        ({"ANTHROPIC_CUSTOM_HEADERS": "X-Team: memory"}, False),
        (FEDERATION, True),
        ({**FEDERATION, "ANTHROPIC_ORGANIZATION_ID": ""}, False),
    ],
    ids=str,
)
def test_credentials_in_the_environment(monkeypatch, variables, found):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert credentials_found() is found
    monkeypatch.setattr(client_module, "_nothing_configured", lambda: False)  # the SDK itself agrees with the shortcut
    assert credentials_found() is found


def test_credentials_in_a_profile(tmp_path):
    assert not credentials_found()
    write_profile(tmp_path)
    assert credentials_found()


def test_a_profile_that_is_named_and_missing_is_said(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_PROFILE", "work")
    with pytest.raises(errors.Misconfigured, match="profile 'work'"):
        credentials_found()


def test_without_credentials_a_call_is_misconfigured_and_says_what_to_do(standin):
    model = AnthropicModel(Settings(anthropic_base_url=standin.url))
    with pytest.raises(errors.Misconfigured, match="ANTHROPIC_API_KEY"):
        model.complete(derive())
    with pytest.raises(errors.Misconfigured, match="ANTHROPIC_API_KEY"):
        model.probe()
    assert standin.counters.calls == 0


def test_a_profile_without_its_secret_is_misconfigured(standin, tmp_path):
    write_profile(tmp_path, token=None)
    with pytest.raises(errors.Misconfigured, match="Credentials file not found"):
        AnthropicModel(Settings(anthropic_base_url=standin.url)).complete(derive())


def test_a_profile_speaks(standin, tmp_path):
    write_profile(tmp_path)
    assert AnthropicModel(Settings(anthropic_base_url=standin.url)).complete(derive()).answer is not None


def test_a_token_exchange_refused_is_misconfigured_and_one_unreachable_is_transient(standin, monkeypatch):
    for name, value in FEDERATION.items():
        monkeypatch.setenv(name, value)
    model = AnthropicModel(Settings(anthropic_base_url=standin.url))
    with pytest.raises(errors.Misconfigured, match="token exchange") as caught:
        model.complete(derive())
    assert "eyJ" not in told(caught.value)
    standin.stop()
    with pytest.raises(errors.Transient, match="token exchange"):
        model.complete(derive())


def test_credentials_are_read_anew_after_they_were_refused(model, standin, monkeypatch):
    model.complete(derive())
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-rotated")
    assert bearer(model) == f"Bearer {KEY}"
    standin.faults.append(faults.unauthorized())
    with pytest.raises(errors.Misconfigured):
        model.complete(derive())
    assert bearer(model) == "Bearer sk-ant-rotated"


def bearer(model):
    """The authorization that ``model`` sends now."""
    return model.call(lambda client: client.default_headers)["Authorization"]


# --- the client -------------------------------------------------------------------------------------------------------
def test_the_address_may_come_from_the_sdks_own_variable(standin, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", standin.url)
    assert AnthropicModel(Settings()).complete(derive()).answer is not None


def test_threads_share_one_client(settings, standin):
    model = AnthropicModel(settings.model_copy(update={"model_timeout": 90}))
    standin.answer(lambda _: True, together(8))
    clients: set[int] = set()
    start = threading.Barrier(8)

    def ask(_):
        start.wait(60)
        clients.add(model.call(id))
        return model.complete(derive()).answer

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    assert len(clients) == 1
    assert standin.counters.max_parallel == 8


def test_a_forked_child_has_a_client_of_its_own(model):
    model.complete(derive())
    before = model.call(id)
    assert model._client.holder._lock.acquire()  # as if another thread were just building it
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            done = model.complete(derive()).answer is not None and model.call(id) != before
            os.write(writing, b"ok" if done else b"no")
        finally:
            os._exit(0)
    model._client.holder._lock.release()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"ok"
    os.waitpid(child, 0)
    assert model.call(id) == before


def test_importing_the_provider_does_not_import_the_sdk():
    script = "import sys, nexus_tasks.llm.choose, nexus_tasks.llm.anthropic; sys.exit('anthropic' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# --- probe ------------------------------------------------------------------------------------------------------------
def test_probe_is_free(model, standin):
    model.probe()
    assert standin.counters.calls == 0


def test_probe_names_the_unknown_model(settings):
    settings = settings.model_copy(update={"model_reflect": "claude-nobody-9"})
    with pytest.raises(errors.Misconfigured, match="claude-nobody-9"):
        AnthropicModel(settings).probe()


def test_probe_does_not_hold_a_missing_endpoint_against_a_gateway(model, standin, monkeypatch):
    monkeypatch.setattr(standin, "model", lambda _: Reply(404, "no such page", kind="text/plain"))
    model.probe()


def test_probe_tells_a_retired_model(model, standin, monkeypatch):
    about = {"id": "m", "type": "model", "display_name": "m", "created_at": "2026-01-01T00:00:00Z"}
    monkeypatch.setattr(standin, "model", lambda _: Reply(200, {**about, "lifecycle": "retired"}))
    with pytest.raises(errors.Misconfigured, match="retired"):
        model.probe()
