"""The provider for OpenAI's API: addresses, keys, Azure, and what its replies may lack."""

from __future__ import annotations

import os
import signal

import httpx2
import pytest

from nexus_tasks import errors
from nexus_tasks.llm.dialects import Dialect
from nexus_tasks.llm.openai import OpenAIModel, credentials_found
from nexus_tasks.llm.openai.chat import read_pieces, request_params
from nexus_tasks.settings import Settings
from tests.standin import StandIn, faults, isolate
from tests.standin.samples import derive
from tests.standin.server import OPENAI_KEY
from tests.standin.wire import Reply


@pytest.fixture(autouse=True)
def _bare(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def standin():
    with StandIn() as server:
        yield server


@pytest.fixture
def settings(standin, monkeypatch):
    for name, value in standin.openai_environment().items():
        monkeypatch.setenv(name, value)
    return Settings(model_timeout=10)


@pytest.fixture
def model(settings):
    return OpenAIModel(settings)


# --- requests ---------------------------------------------------------------------------------------------------------
def test_the_prompt_goes_from_what_is_shared_to_what_varies():
    request = derive()
    params = request_params(request, "m", 77, Dialect())
    assert params["messages"] == [
        {"role": "system", "content": request.instructions},
        {"role": "user", "content": f"{request.transcript}\n\n{request.question}"},
    ]
    assert (params["model"], params["max_tokens"]) == ("m", 77)
    assert not {"temperature", "tools"} & params.keys()


def test_a_long_shared_transcript_is_read_from_the_servers_cache(model):
    first, second = (model.complete(derive(name, padding=20_000)).usage for name in ("assistant", "bob"))
    assert first.cache_write_tokens > 4_000
    assert second.cache_read_tokens == first.cache_write_tokens
    assert second.input_tokens < 1_000


# --- addresses and keys -----------------------------------------------------------------------------------------------
AZURE = {"AZURE_OPENAI_ENDPOINT": "http://127.0.0.1:9", "OPENAI_API_VERSION": "2025-04-01"}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, False),
        ({"OPENAI_API_KEY": "k"}, True),
        ({"NEXUS_OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, True),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, True),
        (AZURE, False),
        ({**AZURE, "OPENAI_API_KEY": "k"}, False),
        ({**AZURE, "AZURE_OPENAI_API_KEY": "k"}, True),
        ({**AZURE, "AZURE_OPENAI_AD_TOKEN": "t"}, True),
    ],
    ids=str,
)
def test_credentials_in_the_environment(monkeypatch, variables, found):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert credentials_found(Settings()) is found
    if not found:
        with pytest.raises(errors.Misconfigured, match="No API key"):
            OpenAIModel(Settings(openai_model="m", model="openai")).complete(derive())


def test_a_server_of_ones_own_needs_no_key(settings, standin, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    assert OpenAIModel(settings).complete(derive()).fault == ""
    monkeypatch.delenv("NEXUS_OPENAI_BASE_URL")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{standin.url}/v1")
    assert OpenAIModel(Settings()).complete(derive()).fault == ""


@pytest.mark.parametrize("credential", ["AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"])
def test_azure_speaks(standin, monkeypatch, credential):
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", standin.url)
    monkeypatch.setenv("OPENAI_API_VERSION", "2025-04-01-preview")
    monkeypatch.setenv(credential, "k")
    model = OpenAIModel(Settings(model="openai", openai_model="small", model_timeout=10))
    assert model.complete(derive()).fault == ""
    assert model.stream(derive(), lambda _: None).fault == ""
    model.probe()


def test_azure_without_a_version_says_so(standin, monkeypatch):
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", standin.url)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "k")
    with pytest.raises(errors.Misconfigured, match="OPENAI_API_VERSION"):
        OpenAIModel(Settings(model="openai", openai_model="small")).complete(derive())


@pytest.mark.parametrize("address", ["htp://127.0.0.1", "127.0.0.1:8000", "http://127.0.0.1:99x"])
def test_a_malformed_address_is_not_waited_out(settings, address):
    with pytest.raises(errors.Misconfigured, match="malformed"):
        OpenAIModel(settings.model_copy(update={"openai_base_url": address})).complete(derive())


def test_a_key_with_a_line_break_is_a_misconfiguration_that_is_not_told(settings, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-SECRETSECRETSECRET\n")
    with pytest.raises(errors.Misconfigured, match="malformed") as caught:
        OpenAIModel(settings).complete(derive())
    assert "SECRET" not in str(caught.value)


def test_a_key_is_read_anew_after_it_was_refused(model, standin, monkeypatch):
    model.complete(derive())
    monkeypatch.setenv("OPENAI_API_KEY", "sk-rotated")
    assert model._client.call(lambda client: client.api_key) == OPENAI_KEY
    standin.faults.append(faults.unauthorized())
    with pytest.raises(errors.Misconfigured):
        model.complete(derive())
    assert model._client.call(lambda client: client.api_key) == "sk-rotated"


def test_a_forked_child_has_a_client_of_its_own(model):
    model.complete(derive())
    before = model._client.call(id)
    assert model._client.holder._lock.acquire()  # as if another thread were just building it
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            done = model.complete(derive()).answer is not None and model._client.call(id) != before
            os.write(writing, b"ok" if done else b"no")
        finally:
            os._exit(0)
    model._client.holder._lock.release()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"ok"
    os.waitpid(child, 0)


# --- replies ----------------------------------------------------------------------------------------------------------
def test_tokens_that_the_server_does_not_count_are_estimated(model, standin):
    counted = model.complete(derive()).usage
    standin.ignores = frozenset({"usage"})
    for done in (model.complete(derive()), model.stream(derive(), lambda _: None)):
        assert 0 < done.usage.input_tokens <= counted.input_tokens
        assert abs(done.usage.output_tokens - counted.output_tokens) <= 1


# OpenRouter's answer when its moderation has flagged a prompt.
FLAGGED = '{"error": {"message": "flagged", "code": 403, "metadata": {"reasons": ["x"], "flagged_input": "y"}}}'


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (faults.status(400, "", "The response was filtered", code="content_filter"), errors.Refused),
        (faults.status(429, "", "You exceeded your quota", code="insufficient_quota"), errors.OverBudget),
        (faults.status(400, "", "This model's maximum context length is 4096 tokens"), errors.TooLarge),
        (faults.status(400, "", "the request exceeds the available context size"), errors.TooLarge),
        (faults.status(400, "", "", body='{"detail": [{"loc": ["body"], "msg": "odd"}]}'), errors.Permanent),
        (faults.status(200, "", "", body="[]"), errors.Transient),
        (faults.status(203, "", "", body='{"error": {"message": "upstream"}}'), errors.Transient),
        (faults.status(500, "", "", body="[1]"), errors.Transient),
        (faults.status(403, "", "", body="<html>Blocked by policy.</html>"), errors.Refused),
        (faults.status(403, "", "", body=FLAGGED), errors.Refused),
        (faults.status(403, "", "", body='{"statusCode": 403, "message": "Blocked."}'), errors.Refused),
        (faults.status(403, "", "", body='{"message": "Forbidden"}'), errors.Refused),
        (faults.status(403, "", "", body='{"message": "Your plan has ended."}'), errors.Misconfigured),
        (faults.status(403, "", "", body='{"error": {"message": "Key limit", "code": 403}}'), errors.Misconfigured),
        (faults.status(403, "", "", body=""), errors.Misconfigured),
        (faults.status(400, "", "", body='{"error": {"type": {"odd": 1}, "code": [2]}}'), errors.Permanent),
    ],
    ids=lambda value: getattr(value, "message", None),
)
def test_errors_of_other_servers(model, standin, fault, expected):
    if fault.status == 200:
        fault = faults.Fault(name="odd", status=203, body=fault.body)
    standin.faults.append(fault)
    with pytest.raises(errors.JobError) as caught:
        model.complete(derive())
    assert type(caught.value) is expected


def test_a_stream_that_ends_early_is_no_answer():
    with pytest.raises(errors.Transient, match="cut off"):
        read_pieces([], lambda _: None)


def test_a_stream_whose_connection_is_cut_is_no_answer():
    def pieces():
        raise httpx2.RemoteProtocolError("peer closed connection")
        yield

    with pytest.raises(errors.Transient, match="cut off"):
        read_pieces(pieces(), lambda _: None)


ODD = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
ODD_CALL = {"message": {"role": "assistant", "tool_calls": [{"type": "function", "function": None}]}}


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "",
        "[" * 100_000,
        {**ODD, "choices": {"a": 1}},
        {**ODD, "choices": ["x"]},
        {**ODD, "choices": [{"message": "x"}]},
        {**ODD, "choices": [ODD_CALL]},
    ],
    ids=lambda body: str(body)[:60],
)
def test_a_reply_that_is_no_completion_is_waited_out(model, standin, monkeypatch, body):
    monkeypatch.setattr(standin, "_reply", lambda *_: Reply(200, body))
    with pytest.raises(errors.Transient, match=r"no JSON|no completion"):
        model.complete(derive())


NOTHING = '{"observations": []}'


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": NOTHING}]}, ""),
        ({"tool_calls": [{"type": "function", "function": {"name": "answer", "arguments": {"observations": []}}}]}, ""),
        ({"content": 5}, "invalid"),
        ({"content": {"text": NOTHING}}, "invalid"),
        ({"content": NOTHING, "refusal": ["no"]}, ""),
    ],
)
def test_a_reply_in_another_form_than_a_text_is_entered_in_the_ledger(model, standin, monkeypatch, message, fault):
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    monkeypatch.setattr(standin, "_reply", lambda *_: Reply(200, {**ODD, "choices": [choice]}))
    assert model.complete(derive()).fault == fault


def test_the_probe_does_not_hold_a_missing_endpoint_against_a_server(model, standin, monkeypatch):
    for status in (404, 405, 501):
        monkeypatch.setattr(standin, "model", lambda _, status=status: Reply(status, "no page", kind="text/plain"))
        model.probe()
