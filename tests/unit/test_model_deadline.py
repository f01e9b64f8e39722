"""A model call ends in time although the server goes on sending a byte or a ping from time to time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from nexus_tasks.errors import Transient
from nexus_tasks.llm.anthropic import AnthropicModel
from nexus_tasks.llm.openai import OpenAIModel
from nexus_tasks.settings import Settings
from tests.standin import isolate
from tests.standin.samples import derive

LONGEST = 10.0  # seconds for which the server drips
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
PING = b"event: ping\ndata: {}\n\n"


@contextmanager
def dripping(kind: bytes, part: bytes) -> Iterator[str]:
    """The address of a server that sends ``part`` every 0.1 s for 10 s, so that no gap is long and the reply is."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000_000)
                connection.sendall(HEAD % kind)
                until = time.monotonic() + LONGEST
                while time.monotonic() < until:
                    connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
                    time.sleep(0.1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(2 * LONGEST)


@pytest.mark.parametrize("model", [AnthropicModel, OpenAIModel])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_reply_that_never_ends_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, model: Any, streamed: bool
) -> None:
    isolate(monkeypatch, tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    with dripping(b"text/event-stream" if streamed else b"application/json", PING if streamed else b" ") as url:
        settings = Settings(anthropic_base_url=url, openai_base_url=f"{url}/v1", openai_model="small", model_timeout=1)
        asked = model(settings)
        asked.preload()  # importing the SDK takes seconds
        began = time.monotonic()
        with pytest.raises(Transient):
            asked.stream(derive(), lambda _: None) if streamed else asked.complete(derive())
        assert time.monotonic() - began < 0.7 * LONGEST
