"""The stand-in for the Claude API: what the tests of the model do not already cover."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import anthropic
import pytest

from tests.standin import StandIn, faults, isolate
from tests.standin.answers import together

SCHEMA = {
    "type": "object",
    "properties": {"observations": {"type": "array", "items": {"type": "string"}}},
    "required": ["observations"],
    "additionalProperties": False,
}
TRANSCRIPT = """(context) [1] 2026-01-02T03:04:05Z ann (user): Morning.
[2] 2026-01-02T03:05:05Z ann (user): I like tea.
[3] 2026-01-02T03:06:05Z Bob Jones (user): And I like coffee.
[4] 2026-01-02T03:07:05Z assistant (assistant): Noted."""


@pytest.fixture(autouse=True)
def _bare(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def standin():
    with StandIn() as server:
        yield server


@pytest.fixture
def client(standin):
    return anthropic.Anthropic(api_key="k", base_url=standin.url, max_retries=0)


def params(*texts: str, schema: object = SCHEMA, **more: object) -> dict:
    return {
        "model": "claude-haiku-5-5",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        **more,
    }


def answer(client, *texts: str, **more: object):
    return json.loads(client.messages.create(**params(*texts, **more)).content[0].text)


# --- answers and scripts ----------------------------------------------------------------------------------------------
def test_derive_says_one_thing_per_batch_line_of_a_subject(client):
    said = answer(client, TRANSCRIPT, "Observer: assistant\nSubjects: ann, Bob Jones")["observations"]
    assert [(one["subject"], one["sources"]) for one in said] == [("ann", [2]), ("Bob Jones", [3])]
    assert said[1]["content"] == "Bob Jones said: And I like coffee."


def test_derive_reads_any_question_that_names_its_subjects(client):
    said = answer(client, TRANSCRIPT, "What does it teach about ann?")["observations"]
    assert [one["sources"] for one in said] == [[2]]


def test_an_unknown_purpose_gets_the_smallest_answer(client):
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
            "top": {"$ref": "#/$defs/Item"},
        },
        "required": ["kind", "items", "top"],
        "additionalProperties": False,
        "$defs": {
            "Item": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "at": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                "required": ["n", "at"],
                "additionalProperties": False,
            }
        },
    }
    assert answer(client, "x", schema=schema) == {"kind": "a", "items": [], "top": {"n": 0, "at": None}}


def test_scripts_by_purpose_and_by_predicate(client, standin):
    standin.answer("derive", lambda _: {"observations": ["scripted"]})
    standin.answer(lambda call: "special" in call.text, lambda call: {"observations": call.parts})
    assert answer(client, "plain") == {"observations": ["scripted"]}
    assert answer(client, "special") == {"observations": ["special"]}


def test_faults_queue_stand_and_heal(client, standin):
    standin.faults.append(faults.overloaded())
    standin.when("POISON", faults.server_error())
    with pytest.raises(anthropic.OverloadedError):
        answer(client, "fine")
    answer(client, "fine")
    for _ in range(2):
        with pytest.raises(anthropic.InternalServerError):
            answer(client, "some POISON here")
    standin.heal()
    answer(client, "some POISON here")
    assert standin.counters.outcomes == {"529": 1, "ok": 2, "500": 2}


# --- what the real API refuses ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        {"messages": []},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {}}}}},
        {"output_config": {"format": {"type": "json_schema", "schema": {**SCHEMA, "maxItems": 3}}}},
        {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}] * 5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_malformed_request_is_refused(client, standin, change):
    with pytest.raises(anthropic.BadRequestError):
        client.post("/v1/messages", body={**params("x"), **change}, cast_to=object)
    assert standin.counters.calls == 0


def test_an_unknown_model_and_a_missing_key_are_refused(client):
    with pytest.raises(anthropic.NotFoundError):
        answer(client, "x", model="claude-nobody")
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude-nobody")
    with pytest.raises(anthropic.AuthenticationError):
        client.messages.create(**params("x"), extra_headers={"Authorization": anthropic.omit})


# --- counting ---------------------------------------------------------------------------------------------------------
def test_twenty_slow_calls_run_at_once(client, standin):
    standin.answer(lambda _: True, together(20))
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda n: answer(client, f"call {n}"), range(20)))
    counters = standin.counters.as_dict()
    assert (counters["calls"], counters["purposes"], counters["max_parallel"]) == (20, {"derive": 20}, 20)
    assert counters["input_tokens"] == 20 * 2 + counters["tokens"]["schema_tokens"]
    assert standin.counters.parallel == 0


@pytest.mark.parametrize(
    ("model", "characters", "cached"), [("claude-haiku-5-5", 16_384, 4_096), ("claude-sonnet-5-5", 4_096, 1_024)]
)
def test_only_a_prefix_of_the_minimum_length_is_cached(client, model, characters, cached):
    def usage(length: int, question: str):
        marked = {"type": "text", "text": "~" * length, "cache_control": {"type": "ephemeral"}}
        said = [{"role": "user", "content": [marked, {"type": "text", "text": question}]}]
        used = client.messages.create(**{**params(), "model": model, "messages": said}).usage
        return used.cache_creation_input_tokens, used.cache_read_input_tokens

    assert [usage(characters - 4, question) for question in "ab"] == [(0, 0), (0, 0)]
    assert [usage(characters, question) for question in "ab"] == [(cached, 0), (0, cached)]


def test_nothing_is_served_after_the_end(client, standin):
    answer(client, "x")
    standin.stop()
    with pytest.raises(anthropic.APIConnectionError):
        answer(client, "x")


# --- batches ----------------------------------------------------------------------------------------------------------
def items(**texts: str) -> list:
    return [{"custom_id": name, "params": params(text)} for name, text in texts.items()]


def results(client, batch) -> dict:
    return {one.custom_id: one.result for one in client.messages.batches.results(batch.id)}


def test_a_batch_from_submission_to_results(client, standin):
    standin.batch_delay = None
    standin.when("POISON", faults.invalid_json())
    standin.when("LATE", faults.expired())
    standin.when("BROKEN", faults.server_error())
    batches = client.messages.batches
    batch = batches.create(requests=items(a="fine", b="POISON", c="LATE", d="BROKEN"))
    assert (batch.processing_status, batch.request_counts.processing, batch.results_url) == ("in_progress", 4, None)
    with pytest.raises(anthropic.AnthropicError):
        results(client, batch)
    standin.end_batches()
    batch = batches.retrieve(batch.id)
    counts = batch.request_counts
    assert (batch.processing_status, counts.succeeded, counts.errored, counts.expired) == ("ended", 2, 1, 1)
    found = results(client, batch)
    assert [one.type for one in found.values()] == ["errored", "expired", "succeeded", "succeeded"]  # another order
    assert found["a"].message.content[0].text == '{"observations": []}'
    assert found["a"].message.usage.service_tier == "batch"
    assert "Sure!" in found["b"].message.content[0].text
    assert found["d"].error.error.type == "api_error"
    assert (standin.counters.calls, standin.counters.batches, standin.counters.batch_items) == (0, 1, 4)
    assert standin.counters.batch_tokens["input_tokens"] > 0


def test_a_batch_can_be_cancelled_listed_and_deleted(client, standin):
    standin.batch_delay = None
    batches = client.messages.batches
    first, second = (batches.create(requests=items(a="x")) for _ in range(2))
    assert [batch.id for batch in batches.list()] == [second.id, first.id]
    assert batches.cancel(first.id).processing_status == "canceling"
    assert batches.retrieve(first.id).processing_status == "ended"
    assert results(client, first)["a"].type == "canceled"
    with pytest.raises(anthropic.BadRequestError):
        batches.delete(second.id)
    batches.delete(first.id)
    assert [batch.id for batch in batches.list()] == [second.id]
    with pytest.raises(anthropic.NotFoundError):
        batches.retrieve(first.id)


@pytest.mark.parametrize("names", [["a", "a"], [""], ["with space"], []])
def test_custom_ids_are_checked(client, names):
    with pytest.raises(anthropic.BadRequestError):
        client.messages.batches.create(requests=[{"custom_id": name, "params": params("x")} for name in names])


# --- as a process -----------------------------------------------------------------------------------------------------
def test_it_runs_as_a_process_of_its_own():
    command = [sys.executable, "-m", "tests.standin", "--lifetime", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"]}) as process:
        url = process.stdout.readline().strip()
        answer(anthropic.Anthropic(api_key="k", base_url=url, max_retries=0), "x")
        with urllib.request.urlopen(f"{url}/counters", timeout=5) as reply:
            assert json.load(reply)["calls"] == 1
        process.terminate()
        assert json.loads(process.stdout.read())["calls"] == 1
    assert process.returncode == 0
