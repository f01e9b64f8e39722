"""The own tracer provider of a process."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from nexus_tasks import tracing
from nexus_tasks.services import spans
from nexus_tasks.tracing import NoSpan, provider


def test_threads_that_ask_while_the_provider_is_made_get_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    making = threading.Event()

    def make() -> object:
        making.set()
        time.sleep(0.1)
        return "a provider"

    monkeypatch.setattr(provider, "_make", make)
    monkeypatch.setattr(provider.atexit, "register", lambda _function: None)
    own = provider._OwnProvider()
    first = threading.Thread(target=own.get)
    first.start()
    making.wait(5)
    assert own.get() == "a provider"
    first.join()


def test_a_thread_that_empties_the_tracers_costs_another_no_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Emptied(dict[object, object]):
        def __setitem__(self, key: object, value: object) -> None:
            """Another thread empties the tracers directly after."""

    monkeypatch.setattr(provider, "_tracers", Emptied())
    monkeypatch.setattr(provider, "_of_the_application", lambda: "a provider")
    monkeypatch.setattr(provider, "_tracer_of", lambda _provider: "a tracer")
    assert provider.tracer() == "a tracer"


def test_a_span_names_no_first_argument_that_is_no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the span of `Nexus.job(JOB)` had the job's id as its namespace."""
    told: dict[str, object] = {}

    class Span(NoSpan):
        recording = True

        def set(self, name: str, value: object) -> None:
            told[name] = value

    class Client:
        deployment = SimpleNamespace(settings=SimpleNamespace(metrics_namespaces=True))

        def job(self, job_id: str) -> None:
            """A job."""

        def session(self, namespace: str) -> None:
            """A session."""

    monkeypatch.setattr(tracing, "span", lambda _name: Span())
    client = spans.traced_methods(Client)()
    client.job("the id of a job")
    assert told == {}
    client.session("acme")
    assert told == {"nexus.namespace": "acme"}
