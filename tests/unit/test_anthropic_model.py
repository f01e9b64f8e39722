"""What Claude's answers are worth, and what its errors mean: the real SDK over real HTTP, against the stand-in."""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from nexus_tasks import errors
from nexus_tasks.llm.answer_json import parse
from nexus_tasks.llm.answers import Digest, Reflection
from nexus_tasks.llm.anthropic import AnthropicModel, request_params
from nexus_tasks.llm.base import ModelRequest, counted
from nexus_tasks.llm.server_errors import RETRY_AFTER_DEFAULT, retry_after
from nexus_tasks.settings import Settings
from tests.standin import StandIn, faults, isolate
from tests.standin.answers import together
from tests.standin.samples import DIGEST, derive
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
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    return Settings(anthropic_base_url=standin.url, model_timeout=10)


@pytest.fixture
def model(settings):
    return AnthropicModel(settings)


# --- a good answer ----------------------------------------------------------------------------------------------------
def test_an_answer_is_validated_and_carries_what_it_cost(model, standin):
    standin.latency = 0.05
    completion = model.complete(derive())
    (observation,) = completion.answer.observations
    assert (observation.subject, observation.sources) == ("ann", [123])
    assert observation.content == "ann said: I moved to Lisbon."
    assert (completion.model, completion.fault, completion.detail) == ("claude-haiku-5-5", "", "")
    assert completion.usage.input_tokens > 0
    assert completion.usage.output_tokens > 0
    assert 0.05 <= completion.seconds < 5
    assert completion.raw["stop_reason"] == "end_turn"


def test_each_purpose_has_its_model_and_its_longest_answer(standin, settings):
    settings = settings.model_copy(update={"model_digest": "claude-opus-5-5", "max_tokens_digest": 321})
    model = AnthropicModel(settings)
    assert model.complete(DIGEST).answer.short.startswith("I moved to Lisbon.")
    params = standin.counters.requests[-1].params
    assert (params["model"], params["max_tokens"]) == ("claude-opus-5-5", 321)
    assert model.model_for("digest") == "claude-opus-5-5"
    assert model.model_for("reflect") == "claude-sonnet-5-5"


def test_the_prompt_goes_from_what_is_shared_to_what_varies(model, standin, settings):
    request = derive()
    model.complete(request)
    params = standin.counters.requests[-1].params
    assert params == json.loads(json.dumps(request_params(request, settings)))
    assert [block["text"] for block in params["system"]] == [request.instructions]
    (said,) = params["messages"]
    assert [block["text"] for block in said["content"]] == [request.transcript, request.question]
    assert params["output_config"]["format"]["type"] == "json_schema"
    assert "temperature" not in params


def test_an_empty_part_of_the_prompt_is_left_out(model):
    request = ModelRequest(
        purpose="reflect",
        instructions="Compare.",
        transcript="",
        question="Facts: none.",
        answer=Reflection,
        material=derive().material,
    )
    assert model.complete(request).answer == Reflection(relations=[], insights=[])


def test_control_characters_are_stripped_and_line_breaks_kept(model, standin):
    standin.answer("digest", lambda _: {"short": "a\x00b\x1b[31m\x9bc\ud800", "long": "one\n\ttwo"})
    answer = model.complete(DIGEST).answer
    assert (answer.short, answer.long) == ("ab[31mc", "one\n\ttwo")


def test_raw_control_characters_inside_json_do_not_spoil_it():
    assert parse('{"short": "a\x07b", "long": "c\nd"}', Digest) == Digest(short="ab", long="c\nd")


def test_constraints_the_schema_cannot_say_are_still_checked(model, standin):
    said = {"subject": "ann", "content": "x", "category": "fact", "confidence": 1.5, "sources": [123]}
    standin.answer("derive", lambda _: {"observations": [said]})
    completion = model.complete(derive())
    assert (completion.answer, completion.fault) == (None, "invalid")
    assert completion.detail == "1 faults: observations.0.confidence: less_than_equal"


# --- worthless answers ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fault", "expected", "detail"),
    [
        (faults.truncated(), "truncated", "max_tokens after"),
        (faults.truncated("model_context_window_exceeded"), "truncated", "model_context_window_exceeded"),
        (faults.refused("Not about this person."), "refused", "cyber: Not about this person."),
        (faults.invalid_json(), "invalid", "no JSON: Expecting value at character 0"),
        (faults.schema_violation(), "invalid", "observations: list_type"),
        (faults.says(""), "invalid", "no JSON"),
        (faults.says("[" * 100_000), "invalid", "nested too deeply"),
        (faults.says("9" * 5_000), "invalid", "no JSON"),
        (faults.truncated("tool_use"), "invalid", "stopped with tool_use"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_worthless_answer_is_a_fault_with_its_usage(model, standin, fault, expected, detail):
    standin.faults.append(fault)
    completion = model.complete(derive())
    assert (completion.answer, completion.fault) == (None, expected)
    assert detail in completion.detail
    assert len(completion.detail) <= 300
    assert completion.usage.input_tokens > 0
    assert completion.usage.output_tokens > 0


STRANGE = {
    "a block without a text": {"content": [{"type": "text", "text": None}]},
    "a block of a new type": {"content": [{"type": "hologram"}]},
    "a list as the stop reason": {"stop_reason": ["end_turn"]},
    "a text as the details of a refusal": {"stop_reason": "refusal", "stop_details": "x"},
    "numbers in the details of a refusal": {"stop_reason": "refusal", "stop_details": {"category": 7}},
}


@pytest.mark.parametrize("strange", STRANGE)
def test_a_strange_message_is_a_fault(model, standin, strange):
    standin.faults.append(faults.Fault(name="strange", change=lambda message: message.update(STRANGE[strange])))
    assert model.complete(derive()).fault in ("invalid", "refused")


@pytest.mark.parametrize("tokens", [-5, 10**30, "many", 1.5, [1], None])
def test_a_strange_number_of_tokens_fits_the_ledger(tokens):
    assert 0 <= counted(tokens) < 2**31
    assert counted(7) == 7


def test_of_many_code_fences_the_first_are_read():
    other = "".join(f'```json\n{{"short": "a", "long": "{n}"}}\n```\n' for n in range(20_000))
    began = time.process_time()
    with pytest.raises(ValueError, match="two different answers"):
        parse(other, Digest)
    with pytest.raises(ValueError, match="missing"):
        parse("```json\n{}\n```\n" * 200_000, Digest)
    assert time.process_time() - began < 2


def test_a_fault_never_tells_what_the_model_wrote(model, standin):
    standin.always(faults.says(json.dumps({"observations": [{"content": "PRIVATE"}], "z" * 500: "PRIVATE"})))
    completion = model.complete(derive())
    assert completion.fault == "invalid"
    assert "PRIVATE" not in str(completion)
    assert len(completion.detail) <= 300


# --- errors -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (faults.throttled(), errors.Throttled),
        (faults.throttled(code="ramp_limit_exceeded"), errors.Throttled),
        (faults.throttled(code="enforced_spend_limit_reached"), errors.OverBudget),
        (faults.overloaded(), errors.Transient),
        (faults.server_error(), errors.Transient),
        (faults.server_error(502), errors.Transient),
        (faults.status(408, "timeout_error", "Too slow."), errors.Transient),
        (faults.status(409, "conflict_error", "Busy."), errors.Transient),
        (faults.cut(), errors.Transient),
        (faults.unauthorized(), errors.Misconfigured),
        (faults.forbidden(), errors.Misconfigured),
        (faults.not_found(), errors.Misconfigured),
        (faults.status(403, "", "", body="<html>Blocked by policy.</html>"), errors.Refused),
        (faults.status(403, "", "", body='{"message": "Forbidden"}'), errors.Refused),
        (faults.status(403, "", "", body=" "), errors.Misconfigured),
        (faults.status(403, "", "", body='{"error": {"type": "forbidden"}}'), errors.Misconfigured),
        (faults.status(400, "invalid_request_error", "On hold.", code="organization_on_hold"), errors.Misconfigured),
        (faults.payment_required(), errors.OverBudget),
        (faults.too_large(), errors.TooLarge),
        (faults.prompt_too_long(), errors.TooLarge),
        (faults.status(400, "invalid_request_error", "Bad."), errors.Permanent),
        (faults.status(422, "invalid_request_error", "Bad."), errors.Permanent),
        (faults.status(502, "", "", body="<html>Bad Gateway</html>"), errors.Transient),
        (faults.status(400, "", "", body='{"error": {"message": {"odd": 1}}}'), errors.Permanent),
        (faults.status(400, "", "", body='{"error": "odd"}'), errors.Permanent),
        (faults.status(500, "", "", body="[1]"), errors.Transient),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_error_has_its_type_and_is_not_retried_here(model, standin, fault, expected):
    standin.faults.append(fault)
    with pytest.raises(errors.JobError) as caught:
        model.complete(derive())
    assert type(caught.value) is expected
    assert standin.counters.calls == 1
    assert model.complete(derive()).answer is not None  # the client works on


@pytest.mark.parametrize(
    "body", ["<html>Blocked by policy.</html>", '{"statusCode": 403, "message": "Blocked by policy."}']
)
def test_a_firewall_that_refuses_every_request_is_no_fault_of_one_message(model, standin, monkeypatch, body):
    page = faults.status(403, "", "", body=body)
    standin.when(lambda call: call.text != "probe", page)
    with pytest.raises(errors.Refused, match="nexus jobs retry") as caught:
        model.complete(derive())
    assert "by policy" in errors.with_quotation(caught.value)
    for answer, expected in (
        (page, errors.Misconfigured),
        (faults.forbidden(), errors.Refused),  # the key may not count: the firewall has let this pass
        (faults.not_found(), errors.Refused),  # a gateway that cannot count
        (faults.server_error(), errors.Transient),
    ):
        monkeypatch.setattr(standin, "count", lambda _, answer=answer: Reply.of(answer))
        with pytest.raises(errors.JobError) as caught:
            model.complete(derive())
        assert type(caught.value) is expected


def test_a_slow_answer_is_a_timeout(standin, settings):
    standin.faults.append(faults.slow(30))
    impatient = AnthropicModel(settings.model_copy(update={"model_timeout": 0.2}))
    with pytest.raises(errors.AnswerTimeout, match="in time"):
        impatient.complete(derive())


def test_a_server_that_never_got_the_request_charges_for_nothing(settings):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as waiting:
        for _ in range(4):  # they fill its queue, so that no other connection gets an answer
            filler = waiting.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        model = AnthropicModel(settings.model_copy(update={"model_timeout": 0.2, "anthropic_base_url": url}))
        with pytest.raises(errors.Transient, match="in time") as caught:
            model.complete(derive())
    assert type(caught.value) is errors.Transient


def test_no_server_is_transient(standin, model):
    standin.stop()
    with pytest.raises(errors.Transient, match="ConnectError"):
        model.complete(derive())


@pytest.mark.parametrize("address", ["htp://127.0.0.1", "127.0.0.1:8000", "http://127.0.0.1:99x"])
def test_a_malformed_address_is_not_waited_out(settings, address):
    with pytest.raises(errors.Misconfigured, match="malformed"):
        AnthropicModel(settings.model_copy(update={"anthropic_base_url": address})).complete(derive())


def test_a_gateways_page_with_status_200_is_no_message(model, standin):
    page = faults.Fault(name="page", status=203, body="<html>Sign in</html>")
    standin.faults.append(page)
    with pytest.raises(errors.Transient, match="no message"):
        model.complete(derive())


@pytest.mark.parametrize("body", ["<html>", "", "[" * 100_000, '{"usage":' + "9" * 6_000 + "}"])
def test_a_message_that_is_no_json_is_waited_out(model, standin, monkeypatch, body):
    monkeypatch.setattr(standin, "_reply", lambda *_: Reply(200, body))
    with pytest.raises(errors.Transient, match="no JSON"):
        model.complete(derive())


BEGUN = {"type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}


@pytest.mark.parametrize(
    "pieces",
    [
        [{"type": "message_start", "message": None}],
        [{"type": "message_start", "message": BEGUN}, TEXT],
        [{"type": "message_start", "message": BEGUN | {"content": None}}, TEXT],
        [{"type": "message_start", "message": BEGUN}, TEXT | {"delta": {"type": "text_delta", "text": None}}],
        [{"type": "message_start", "message": BEGUN}, {"type": "message_delta", "delta": None, "usage": None}],
    ],
)
def test_a_reply_in_pieces_that_make_no_message_is_waited_out(model, standin, monkeypatch, pieces):
    told = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in pieces)
    monkeypatch.setattr(standin, "_reply", lambda *_: Reply(200, told, kind="text/event-stream"))
    with pytest.raises(errors.Transient):
        model.stream(derive(), lambda _: None)


CALLED = {"type": "tool_use", "id": "t", "name": "answer", "input": {}}
CUT = {
    "in the text": ({"type": "text", "text": ""}, {"type": "text_delta", "text": '{"observations": [{"sub'}),
    "in a tool's input": (CALLED, {"type": "input_json_delta", "partial_json": '{"observations": [], "more": ['}),
}


@pytest.mark.parametrize("block", CUT.values(), ids=CUT)
def test_a_reply_in_pieces_that_is_cut_off_without_an_error_is_no_answer(model, standin, monkeypatch, block):
    begun, delta = block
    pieces = [
        {"type": "message_start", "message": BEGUN},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_delta", "index": 0, "delta": delta},
    ]
    told = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in pieces)
    monkeypatch.setattr(standin, "_reply", lambda *_: Reply(200, told, kind="text/event-stream"))
    with pytest.raises(errors.Transient, match="cut off"):
        model.stream(derive(), lambda _: None)


@pytest.mark.parametrize("usage", [{}, {"input_tokens": None, "output_tokens": None}, None, "12"])
def test_tokens_that_a_gateway_does_not_count_are_estimated(model, standin, monkeypatch, usage):
    counting = standin._reply

    def reply(*given):
        found = counting(*given)
        return replace(found, body={**found.body, "usage": usage})

    monkeypatch.setattr(standin, "_reply", reply)
    request = derive()
    completion = model.complete(request)
    assert completion.answer is not None
    prompt = len(request.instructions + request.transcript + request.question)
    assert completion.usage.input_tokens == pytest.approx(prompt / 4, abs=2)
    assert completion.usage.output_tokens > 10


def test_a_usage_that_is_no_number_counts_as_none():
    assert [counted(tokens) for tokens in (True, "7", None, -1, 1.5)] == [0] * 5


def test_the_largest_settings_are_not_refused_by_the_sdk(settings):
    large = {"model_timeout": 600.0, "max_tokens_derive": 64_000}
    assert AnthropicModel(settings.model_copy(update=large)).complete(derive()).answer is not None


# --- Retry-After ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "7", "retry-after-ms": "1250"}, 1.25),
        ({"retry-after": "7", "retry-after-ms": "soon"}, 7),
        ({"retry-after": "0"}, 0.5),
        ({"retry-after": "-3"}, 0.5),
        ({"retry-after": "99999999"}, 3600),
        ({"retry-after": "inf"}, 5),
        ({"retry-after": "nan"}, 5),
        ({"retry-after": "later"}, 5),
        ({"retry-after": ""}, 5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.5),
        ({}, 5),
    ],
)
def test_retry_after_in_all_its_forms(headers, seconds):
    assert retry_after(headers) == seconds


def test_a_date_to_retry_after_that_no_calendar_has_is_not_believed():
    for date in ("Wed, 21 Oct 99999 07:28:00 GMT", "Wed, 21 Oct 99999 07:28:00"):
        assert retry_after({"retry-after": date}) == RETRY_AFTER_DEFAULT


def test_retry_after_as_a_date():
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 55 <= retry_after({"retry-after": date}) <= 61


def test_throttled_says_how_long(model, standin):
    standin.faults += [faults.throttled("9"), faults.throttled("9", milliseconds="1500"), faults.throttled(None)]
    waits = []
    for _ in range(3):
        with pytest.raises(errors.Throttled) as caught:
            model.complete(derive())
        waits.append(caught.value.retry_after)
    assert waits == [9, 1.5, 5]


# --- the prompt cache -------------------------------------------------------------------------------------------------
def usages(model, *requests):
    return [model.complete(request).usage for request in requests]


def test_a_long_shared_transcript_is_read_from_the_cache_by_the_next_observer(model):
    first, second = usages(model, derive("assistant", padding=20_000), derive("bob", padding=20_000))
    assert first.cache_write_tokens > 5_000
    assert first.cache_read_tokens == 0
    assert (second.cache_read_tokens, second.cache_write_tokens) == (first.cache_write_tokens, 0)
    assert second.input_tokens < 1_000


def test_parallel_first_calls_share_nothing(settings, standin):
    model = AnthropicModel(settings.model_copy(update={"model_timeout": 90}))
    standin.answer(lambda _: True, together(2))
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(model.complete, (derive("assistant", padding=20_000), derive("bob", padding=20_000))))
    assert [done.usage.cache_read_tokens for done in both] == [0, 0]


def test_a_transcript_below_the_models_minimum_is_neither_marked_nor_cached(model, standin):
    first, second = usages(model, derive("assistant", padding=12_000), derive("bob", padding=12_000))
    assert {first.cache_write_tokens, second.cache_read_tokens} == {0}
    assert "cache_control" not in str(standin.counters.requests[-1].params)


def test_a_transcript_nobody_else_reads_is_not_marked(model, standin):
    (usage,) = usages(model, derive(padding=20_000, shared=False))
    assert usage.cache_write_tokens == 0
    assert "cache_control" not in str(standin.counters.requests[-1].params)


@pytest.mark.parametrize(("name", "minimum"), [("claude-haiku-5-5", 4096), ("claude-sonnet-5-5", 1024)])
def test_the_minimum_depends_on_the_model(settings, name, minimum):
    settings = settings.model_copy(update={"model_derive": name})
    bare = len(derive().instructions + derive().transcript)

    def marked(tokens):
        params = request_params(derive(padding=tokens * 4 - bare), settings)
        return "cache_control" in params["messages"][0]["content"][0]

    assert (marked(minimum - 1), marked(minimum)) == (False, True)


def test_long_instructions_are_marked_too_and_read_by_every_call(settings):
    model = AnthropicModel(settings.model_copy(update={"model_digest": "claude-sonnet-5-5"}))
    one = ModelRequest(**{**vars(DIGEST), "instructions": "Summarise. " * 500, "shared": False})
    other = ModelRequest(**{**vars(one), "transcript": "something else entirely"})
    first, second = usages(model, one, other)
    assert second.cache_read_tokens == first.cache_write_tokens > 1024


# --- the request's hash -----------------------------------------------------------------------------------------------
def test_the_hash_is_the_same_in_every_process():
    script = (
        "from nexus_tasks.llm.base import ModelRequest; from nexus_tasks.llm.answers import Digest\n"
        "print(ModelRequest(purpose='digest', instructions='i', transcript='t', question='q', answer=Digest,"
        " material=None).hash('m'))"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "7"}
    other = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    here = ModelRequest(purpose="digest", instructions="i", transcript="t", question="q", answer=Digest, material=None)
    assert other.stdout.strip() == here.hash("m")


def test_the_hash_knows_what_decides_the_answer_and_nothing_else():
    request = derive()
    assert request.hash("a") != request.hash("b")
    for name in ("instructions", "transcript", "question"):
        assert ModelRequest(**{**vars(request), name: "other"}).hash("a") != request.hash("a")
    assert ModelRequest(**{**vars(request), "answer": Digest}).hash("a") != request.hash("a")
    assert ModelRequest(**{**vars(request), "shared": False, "material": None}).hash("a") == request.hash("a")
