"""The own tracer provider of a process."""

from __future__ import annotations

import threading
import time

import pytest

from nexus_tasks.tracing import provider


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
