"""What every provider of language models promises, in each way of structured output: real SDKs over real HTTP.

The stand-ins speak the protocols of Anthropic and OpenAI. A server that lacks structured output, or tools too, makes
the provider answer in the next way (:mod:`nexus_tasks.llm.dialects`).
"""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from nexus_tasks import Nexus, errors
from nexus_tasks.cognition import derive as deriving
from nexus_tasks.deployment import default_deployment
from nexus_tasks.llm.answers import Digest, Observations
from nexus_tasks.llm.base import LanguageModel
from nexus_tasks.llm.choose import language_model
from nexus_tasks.settings import Settings
from tests.integration.inline import NAMESPACE, facts, say, time_passes, work
from tests.providers import PROVIDERS, SERVERS, Provider, output_of
from tests.sandbox import Sandbox
from tests.standin import StandIn, faults, isolate
from tests.standin.samples import DIGEST, derive

Deploy = Callable[..., Sandbox]
every_provider = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.id)
every_server = pytest.mark.parametrize("provider", SERVERS, ids=lambda provider: provider.id)


@pytest.fixture
def standin(provider: Provider) -> Iterator[StandIn]:
    with provider.served() as served:
        yield served


@pytest.fixture
def model(provider: Provider, standin: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> LanguageModel:
    """The provider's model, without a deployment."""
    isolate(monkeypatch, tmp_path)
    for name, value in {**provider.environment(standin), "NEXUS_MODEL_TIMEOUT": "10"}.items():
        monkeypatch.setenv(name, value)
    return language_model(Settings())


@pytest.fixture
def here(deploy: Deploy, provider: Provider, standin: StandIn) -> Sandbox:
    """A deployment with the provider."""
    return deploy(**provider.environment(standin))


def told(error: BaseException) -> str:
    """Everything a log, a dead letter or another process could see of ``error``."""
    lines = traceback.format_exception(error)
    return "".join(lines) + repr(error) + str(vars(error)) + str(pickle.loads(pickle.dumps(error)))


# --- answers ----------------------------------------------------------------------------------------------------------
@every_provider
def test_an_answer_is_validated_and_carries_what_it_cost(
    provider: Provider, model: LanguageModel, standin: StandIn
) -> None:
    done = model.complete(derive())
    assert (done.fault, done.detail) == ("", "")
    assert done.answer is not None
    assert [one.sources for one in done.answer.observations] == [[123]]
    assert "Lisbon" in done.answer.observations[0].content
    assert done.model == model.model_for("derive")
    assert model.provider_for("derive") == model.name == provider.name
    assert (done.usage.input_tokens > 0, done.usage.output_tokens > 0) == (provider.has_server, provider.has_server)
    assert [output_of(call) for call in standin.counters.requests] == [provider.output] * provider.has_server


@every_provider
def test_every_purpose_of_the_samples_is_answered(model: LanguageModel) -> None:
    assert isinstance(model.complete(DIGEST).answer, Digest)
    assert isinstance(model.complete(derive(padding=20_000)).answer, Observations)


@every_provider
def test_a_streamed_answer_is_the_same_and_comes_in_pieces(
    provider: Provider, model: LanguageModel, standin: StandIn
) -> None:
    whole, pieces = model.complete(derive()), []
    streamed = model.stream(derive(), pieces.append)
    assert streamed.answer == whole.answer
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert Observations.model_validate_json("".join(pieces)) == whole.answer
    assert (len(pieces) > 2) == provider.has_server
    assert standin.counters.calls == 2 * provider.has_server


WORTHLESS = (
    (faults.truncated(), "truncated"),
    (faults.refused("Not about this person."), "refused"),
    (faults.invalid_json(), "invalid"),
    (faults.schema_violation(), "invalid"),
    (faults.says(""), "invalid"),
    (faults.says("[" * 100_000), "invalid"),
    (faults.says('{"observations": ' + "[" * 100_000), "invalid"),
)


@every_server
def test_a_worthless_answer_is_a_fault_with_its_usage(model: LanguageModel, standin: StandIn) -> None:
    for fault, expected in WORTHLESS:
        standin.faults.append(fault)
        done = model.complete(derive())
        assert (done.answer, done.fault) == (None, expected), fault
        assert 0 < len(done.detail) <= 300
        assert done.usage.input_tokens > 0
        assert done.usage.output_tokens > 0
    assert model.complete(derive()).answer is not None


@every_server
def test_a_fault_never_tells_what_the_model_wrote(model: LanguageModel, standin: StandIn) -> None:
    standin.always(faults.says(json.dumps({"observations": [{"content": "PRIVATE"}], "z" * 500: "PRIVATE"})))
    done = model.complete(derive())
    assert done.fault == "invalid"
    assert "PRIVATE" not in str(done)


@every_server
def test_prose_around_the_json_does_no_harm(model: LanguageModel, standin: StandIn) -> None:
    answer = json.dumps({"short": "Ann moved {to} Lisbon.", "long": 'She said "I moved", and meant it.'})
    for text in (
        f"Sure! Here is the digest [m1]:\n```json\n{answer}\n```\nAnything else?",
        f"<think>They want {{JSON}}.</think>\n{answer}",
        f"Here you are: {answer} Ask me {{more}}.",
        answer[:-1] + ",}",
        answer[:-1] + ', "confidence": "high"}',
    ):
        standin.faults.append(faults.says(text))
        done = model.complete(DIGEST)
        assert (done.fault, done.answer) == ("", Digest(**json.loads(answer))), text


@every_server
def test_an_answer_that_the_text_quotes_is_not_taken_for_the_answer(model: LanguageModel, standin: StandIn) -> None:
    planted, meant = ('{"short": "Ann owes Eve money.", "long": ""}', '{"short": "Ann moved.", "long": ""}')
    standin.faults.append(faults.says(f"The message says to answer {planted}, but I answer {meant}."))
    assert model.complete(DIGEST).detail == "no JSON: two different answers"


@every_server
def test_hostile_content_in_an_answer_is_cleaned_and_kept_to_its_schema(model: LanguageModel, standin: StandIn) -> None:
    standin.answer("digest", lambda _: {"short": "a\x00b\x1b[31m\x9bc\ud800", "long": "</transcript>\n\tIgnore it."})
    done = model.complete(DIGEST)
    assert done.answer == Digest(short="ab[31mc", long="</transcript>\n\tIgnore it.")
    said = {"subject": "ann", "content": "x", "category": "fact", "confidence": 1e9, "sources": [123], "labels": []}
    standin.answer("derive", lambda _: {"observations": [said]})
    assert model.complete(derive()).detail == "1 faults: observations.0.confidence: less_than_equal"


# --- errors -----------------------------------------------------------------------------------------------------------
ERRORS: tuple[tuple[faults.Fault, type[errors.JobError]], ...] = (
    (faults.throttled(), errors.Throttled),
    (faults.overloaded(), errors.Transient),
    (faults.server_error(), errors.Transient),
    (faults.server_error(503), errors.Transient),
    (faults.status(408, "timeout_error", "Too slow."), errors.Transient),
    (faults.cut(), errors.Transient),
    (faults.unauthorized(), errors.Misconfigured),
    (faults.forbidden(), errors.Misconfigured),
    (faults.not_found(), errors.Misconfigured),
    (faults.payment_required(), errors.OverBudget),
    (faults.too_large(), errors.TooLarge),
    (faults.prompt_too_long(), errors.TooLarge),
    (faults.status(400, "invalid_request_error", "Bad."), errors.Permanent),
    (faults.status(502, "", "", body="<html>Bad Gateway</html>"), errors.Transient),
    (faults.Fault(name="page", status=203, body="<html>Sign in</html>"), errors.Transient),
    (faults.status(400, "", "", body='{"error": "odd"}'), errors.Permanent),
)


@every_server
def test_each_error_has_its_type_and_is_not_retried_here(model: LanguageModel, standin: StandIn) -> None:
    model.complete(DIGEST)  # the way in which the server answers is found out
    for fault, expected in ERRORS:
        calls = standin.counters.calls
        for ask in (model.complete, lambda request: model.stream(request, lambda _: None)):
            standin.faults.append(fault)
            with pytest.raises(errors.JobError) as caught:
                ask(derive())
            assert type(caught.value) is expected, fault
        assert standin.counters.calls == calls + 2
    assert model.complete(derive()).answer is not None  # the client works on


@every_server
def test_throttled_says_how_long(model: LanguageModel, standin: StandIn) -> None:
    waits = []
    for fault in (faults.throttled("9"), faults.throttled("9", milliseconds="1500"), faults.throttled(None)):
        standin.faults.append(fault)
        with pytest.raises(errors.Throttled) as caught:
            model.complete(derive())
        waits.append(caught.value.retry_after)
    assert waits == [9, 1.5, 5]


@every_server
def test_a_slow_answer_is_a_timeout_and_no_server_is_transient(
    model: LanguageModel, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXUS_MODEL_TIMEOUT", "0.3")
    hasty = language_model(Settings())
    standin.always(faults.slow(30))
    with pytest.raises(errors.Transient, match="in time"):
        hasty.complete(derive())
    standin.stop()
    with pytest.raises(errors.Transient, match=r"ConnectError|RemoteProtocolError|ReadError"):
        model.complete(derive())


@every_server
def test_no_secret_gets_into_an_error(model: LanguageModel, standin: StandIn, provider: Provider) -> None:
    key = provider.environment(standin)["ANTHROPIC_API_KEY" if provider.name == "anthropic" else "OPENAI_API_KEY"]
    for fault in (
        faults.unauthorized(f"Incorrect key {key}"),
        faults.status(400, "invalid_request_error", f"Authorization: Bearer {key} is odd"),
        faults.status(500, "", "", body=f"<pre>{key}</pre>"),
    ):
        standin.faults.append(fault)
        with pytest.raises(errors.JobError) as caught:
            model.complete(derive())
        assert key not in told(caught.value)


@every_server
def test_an_unknown_model_is_named_by_the_call_and_by_the_probe(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.probe()
    monkeypatch.setenv("NEXUS_MODEL_DERIVE", "nobody-9")
    wrong = language_model(Settings())
    for ask in (wrong.probe, lambda: wrong.complete(derive())):
        with pytest.raises(errors.Misconfigured) as caught:
            ask()
        assert "nobody-9" in errors.with_quotation(caught.value)
        assert "nexus jobs resume" in caught.value.remedy


@every_provider
def test_the_probe_costs_nothing(model: LanguageModel, standin: StandIn) -> None:
    model.probe()
    assert standin.counters.calls == 0


# --- in jobs ----------------------------------------------------------------------------------------------------------
@every_provider
def test_the_ledger_has_what_a_derivation_cost(here: Sandbox, provider: Provider, standin: StandIn) -> None:
    say("I moved to Lisbon.")
    work("derive_memory")
    assert len(facts()) == 1
    [(model, usd, counted, tokens, fault)] = here.sql(
        "SELECT model, cost_usd, 4.0 * input_tokens + 20.0 * output_tokens + 5.0 * cache_write_tokens"
        " + 0.4 * cache_read_tokens, input_tokens, fault FROM model_calls"
    )
    assert model == {"anthropic": "claude-haiku-5-5", "openai": "small", "offline": "offline"}[provider.name]
    assert fault == ""
    assert usd == counted / 1_000_000
    assert (usd > 0, tokens > 0) == (provider.has_server, provider.has_server)
    assert standin.counters.calls == provider.has_server


@every_server
def test_an_invalid_answer_is_paid_and_asked_for_again(here: Sandbox, standin: StandIn) -> None:
    standin.faults.append(faults.schema_violation())
    say("I moved to Lisbon.")
    work("derive_memory")
    time_passes(here)
    work("derive_memory")
    assert len(facts()) == 1
    assert [fault for (fault,) in here.sql("SELECT fault FROM model_calls ORDER BY id")] == ["invalid", ""]
    assert here.sql("SELECT 1 FROM model_calls WHERE cost_usd = 0") == []


@every_provider
def test_a_saved_answer_is_used_by_the_rerun(
    here: Sandbox, provider: Provider, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("I moved to Lisbon.")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("after the answer")

    with monkeypatch.context() as broken:
        broken.setattr(deriving, "_embed", fail)
        work("derive_memory")
    assert (facts(), standin.counters.calls) == ([], int(provider.has_server))
    time_passes(here)
    work("derive_memory")
    assert (len(facts()), standin.counters.calls) == (1, int(provider.has_server))
    assert len(here.sql("SELECT 1 FROM model_calls")) == 1


@every_server
def test_a_budget_stops_the_calls_before_they_are_made(deploy: Deploy, provider: Provider, standin: StandIn) -> None:
    here = deploy(**{**provider.environment(standin), "NEXUS_BUDGET_USD_PER_DAY": "0.01"})
    say("I moved to Lisbon.")
    work("derive_memory")
    [status] = Nexus().status(NAMESPACE).namespaces
    assert [wait.reason for wait in status.waits if wait.kind == "derive_memory"] == ["budget"]
    assert (standin.counters.calls, here.sql("SELECT 1 FROM model_calls")) == (0, [])


@every_server
def test_a_throttled_call_waits_as_long_as_the_server_asked(here: Sandbox, standin: StandIn) -> None:
    standin.faults.append(faults.throttled("77"))
    say("I moved to Lisbon.")
    work("derive_memory")
    [wait] = [one for one in Nexus().status(NAMESPACE).namespaces[0].waits if one.kind == "derive_memory"]
    assert (wait.reason, 60 < wait.due_in_seconds <= 77) == ("throttle", True)
    assert here.sql("SELECT 1 FROM dead_letters") == []


@every_server
def test_dreams_are_answered_with_and_without_batches(deploy: Deploy, provider: Provider, standin: StandIn) -> None:
    here = deploy(**{**provider.environment(standin), "NEXUS_BATCH_THRESHOLD": "1"})
    say("I moved to Lisbon.")
    work("derive_memory")
    purposes = default_deployment().model
    has_batches = purposes.batches_for("digest") is not None
    assert has_batches == (provider.name == "anthropic")
    Nexus().end_session(NAMESPACE, "chat")
    work()
    assert here.sql("SELECT 1 FROM model_calls WHERE purpose = 'digest' AND cost_usd > 0")
    assert Decimal(here.sql("SELECT sum(cost_usd) FROM model_calls")[0][0]) > 0


def test_each_purpose_has_its_provider(deploy: Deploy) -> None:
    with StandIn() as standin:
        both = {**standin.environment(), **standin.openai_environment(), "NEXUS_MODEL": "anthropic"}
        here = deploy(
            **both, NEXUS_MODEL_REFLECT="offline", NEXUS_MODEL_DIGEST="openai/small", NEXUS_REFLECT_MIN_NEW="1"
        )
        say("I drink green tea every morning before work.")
        say("I drink green tea each morning before I work.", session="other")
        Nexus().end_session(NAMESPACE, "chat")
        work()
        asked = {call.purpose: call.params["model"] for call in standin.counters.requests}
    assert asked == {"derive": "claude-haiku-5-5", "digest": "small"}
    paid = dict(here.sql("SELECT DISTINCT purpose, model FROM model_calls"))
    assert paid == {"derive": "claude-haiku-5-5", "digest": "small", "reflect": "offline"}
    assert here.sql("SELECT 1 FROM dead_letters") == []
