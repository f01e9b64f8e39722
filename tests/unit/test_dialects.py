"""Servers that lack a feature: it is found out once, at no cost where the server says so, and remembered."""

from __future__ import annotations

import json
import time

import pytest

from nexus_tasks import errors
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.llm.choose import language_model
from nexus_tasks.settings import Settings
from tests.providers import PROVIDERS, Provider, output_of
from tests.standin import StandIn, faults, isolate
from tests.standin.samples import DIGEST, derive

CLAUDE, OPENAI = PROVIDERS[0], PROVIDERS[3]
both = pytest.mark.parametrize("provider", [CLAUDE, OPENAI], ids=lambda provider: provider.name)


@pytest.fixture(autouse=True)
def _bare(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def standin():
    with StandIn() as server:
        yield server


@pytest.fixture
def make(standin, monkeypatch):
    """``make(provider)``: the model, as another process would make it."""

    def made(provider: Provider, **settings):
        for name, value in provider.environment(standin).items():
            monkeypatch.setenv(name, value)
        return language_model(Settings(**settings))

    return made


def ways(standin: StandIn) -> list[str]:
    return [output_of(call) for call in standin.counters.requests]


@both
def test_a_rejected_feature_costs_nothing_and_is_asked_for_once(standin, make, provider):
    standin.lacks = frozenset({"schema", "tool"})
    model = make(provider)
    assert [model.complete(derive()).fault for _ in range(2)] == ["", ""]
    assert make(provider).complete(derive()).answer is not None  # in another process
    assert (standin.counters.calls, ways(standin)) == (3, ["json"] * 3)


@both
def test_a_server_that_ignores_the_schema_gives_one_invalid_answer(standin, make, provider):
    standin.ignores = frozenset({"schema"})
    model = make(provider)
    first, second = model.complete(derive()), model.complete(derive())
    assert (first.fault, first.misshapen, second.fault) == ("invalid", True, "")
    assert make(provider).complete(derive()).fault == ""
    assert ways(standin) == ["none", "tool", "tool"]


@both
def test_a_server_that_ignores_tools_too_is_asked_in_words(standin, make, provider):
    standin.ignores = frozenset({"schema", "tool"})
    model = make(provider)
    assert [model.complete(derive()).fault for _ in range(4)] == ["invalid", "invalid", "", ""]
    assert ways(standin)[2:] == ["json", "json"]


@both
def test_a_bad_answer_of_a_server_that_kept_the_schema_before_changes_nothing(standin, make, provider):
    model = make(provider)
    model.complete(derive())
    standin.faults += [faults.invalid_json(), faults.schema_violation(), faults.truncated(), faults.refused()]
    for _ in range(4):
        assert model.complete(derive()).fault
    assert model.complete(derive()).fault == ""
    assert set(ways(standin)) == {"schema"}


@both
def test_a_truncated_or_refused_first_answer_says_nothing_about_the_server(standin, make, provider):
    standin.faults += [faults.truncated(), faults.refused()]
    model = make(provider)
    assert [model.complete(derive()).fault for _ in range(3)] == ["truncated", "refused", ""]
    assert set(ways(standin)) == {"schema"}


@both
def test_a_bound_that_no_server_enforces_says_nothing_either(standin, make, provider):
    said = {"subject": "ann", "content": "x", "category": "fact", "confidence": 2, "sources": [1], "labels": []}
    standin.answer("derive", lambda _: {"observations": [said]})
    model = make(provider)
    done = model.complete(derive())
    assert (done.fault, done.misshapen) == ("invalid", False)
    model.complete(derive())
    assert set(ways(standin)) == {"schema"}


@both
@pytest.mark.parametrize("way", ["schema", "tool", "json"])
def test_a_setting_forces_a_way(standin, make, provider, way):
    forced = make(provider, **{f"{provider.name}_structured_output": way})
    assert forced.complete(derive()).fault == ""
    assert ways(standin) == [way]
    standin.faults.append(faults.invalid_json())
    forced.complete(derive())
    forced.complete(derive())
    assert set(ways(standin)) == {way}


@both
def test_a_forced_way_that_the_server_rejects_is_an_error(standin, make, provider):
    standin.lacks = frozenset({"schema"})
    with pytest.raises(errors.Permanent):
        make(provider, **{f"{provider.name}_structured_output": "schema"}).complete(derive())


@both
def test_an_unrelated_rejection_is_raised_at_once(standin, make, provider):
    standin.always(faults.status(400, "invalid_request_error", "Bad."))
    with pytest.raises(errors.Permanent) as caught:
        make(provider).complete(derive())
    assert caught.value.quoted == "Bad."
    assert standin.counters.calls == 1


@both
def test_when_nothing_is_taken_the_last_error_ends_the_search(standin, make, provider):
    standin.always(faults.status(400, "invalid_request_error", "neither a schema nor tools nor max_tokens: unknown"))
    with pytest.raises(errors.Permanent):
        make(provider).complete(derive())
    assert standin.counters.calls <= 6
    standin.heal()
    assert make(provider).complete(derive()).fault == ""
    assert ways(standin)[-1] == "schema"  # what was never taken is not remembered


def test_what_was_found_is_kept_for_a_week_and_may_be_damaged(standin, make, tmp_path):
    standin.lacks = frozenset({"schema"})
    make(OPENAI).complete(derive())
    path = tmp_path / "nexus/model_dialects.json"
    assert oct(path.stat().st_mode)[-3:] == "600"
    [(key, found)] = json.loads(path.read_text()).items()
    assert (key, found["output"]) == (f"{standin.url}/v1/ small", "tool")
    standin.lacks = frozenset()
    path.write_text(json.dumps({key: {**found, "at": time.time() - 8 * 86_400}}))
    make(OPENAI).complete(derive())
    path.write_text('{"half a')
    make(OPENAI).complete(derive())
    path.write_text(json.dumps({key: {**found, "output": "by mail"}}))
    make(OPENAI).complete(derive())
    assert ways(standin) == ["tool", "schema", "schema", "schema"]


def test_no_password_of_an_address_is_kept(standin, make, tmp_path, monkeypatch):
    standin.lacks = frozenset({"schema"})
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    made = make(OPENAI, openai_base_url=f"{standin.url}/v1".replace("//", "//me:s3cret@"))
    assert made.complete(derive()).fault == ""
    assert "s3cret" not in (tmp_path / "nexus/model_dialects.json").read_text()


def test_a_home_that_cannot_be_written_is_no_error(standin, make, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path / "file/home"))
    standin.lacks = frozenset({"schema"})
    model = make(OPENAI)
    assert [model.complete(derive()).fault for _ in range(2)] == ["", ""]
    assert ways(standin) == ["tool", "tool"]


def test_each_model_has_its_own_dialect(standin, make):
    standin.models.add("other")
    standin.lacks = frozenset({"schema"})
    model = make(OPENAI, model_digest="openai/other")
    model.complete(derive())
    standin.lacks = frozenset()
    model.complete(DIGEST)
    assert ways(standin) == ["tool", "schema"]


def test_cache_markers_are_left_out_where_they_are_rejected(standin, make):
    standin.lacks = frozenset({"caching"})
    long = ModelRequest(**{**vars(DIGEST), "instructions": "Summarise. " * 2_000})
    model = make(CLAUDE)
    done = model.complete(long)
    assert (done.fault, done.usage.cache_write_tokens, done.usage.cache_read_tokens) == ("", 0, 0)
    assert "cache_control" not in str(standin.counters.requests[-1].params)
    assert ways(standin) == ["schema"]


@pytest.mark.parametrize("lacking", ["max_tokens", "max_completion_tokens"])
def test_the_longest_answer_is_named_as_the_server_wants_it(standin, make, lacking):
    standin.lacks = frozenset({lacking})
    assert [make(OPENAI).complete(derive()).fault for _ in range(2)] == ["", ""]
    assert {call.params["max_tokens"] for call in standin.counters.requests} == {8_000}
