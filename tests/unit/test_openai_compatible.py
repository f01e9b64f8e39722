"""Vectors over HTTP: what is sent, what is believed, and which error each refusal becomes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from nexus_tasks.embeddings.choose import embedder
from nexus_tasks.embeddings.openai_compatible import AT_ONCE, LONGEST, OpenAICompatibleEmbedder
from nexus_tasks.errors import ConfigurationError, Misconfigured, OverBudget, Permanent, Throttled, Transient
from nexus_tasks.settings import Settings


class Server(ThreadingHTTPServer):
    """Answers ``POST /v1/embeddings`` as its ``answer`` says; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.answer: Callable[[dict[str, Any]], tuple[int, Any]] = lambda body: (200, listed(body))
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, dict(self.headers), body))
        status, answer = self.server.answer(body)
        sent = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def listed(body: dict[str, Any]) -> dict[str, Any]:
    """A vector per text, the last text's first: the order of an answer is not promised."""
    rows = [{"index": i, "embedding": [float(len(text)), 1.0, 0.0]} for i, text in enumerate(body["input"])]
    return {"data": rows[::-1]}


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    thread = threading.Thread(target=started.serve_forever, args=(0.01,))
    thread.start()
    yield started
    started.shutdown()
    thread.join()
    started.server_close()


def test_vectors_come_in_the_order_of_the_texts_and_of_length_one(server: Server) -> None:
    texts = ["a" * n for n in range(1, AT_ONCE + 3)]
    found = OpenAICompatibleEmbedder(server.url, "small", "k-1").embed(texts)
    assert found.shape == (len(texts), 3)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(found[:, 0] / found[:, 1], range(1, AT_ONCE + 3), rtol=1e-5)
    assert [len(body["input"]) for _, _, body in server.asked] == [AT_ONCE, 2]
    path, headers, body = server.asked[0]
    assert (path, body["model"]) == ("/v1/embeddings", "small")
    assert {name.lower(): value for name, value in headers.items()}["authorization"] == "Bearer k-1"


def test_long_and_empty_texts_are_sent_as_what_a_server_takes(server: Server) -> None:
    OpenAICompatibleEmbedder(server.url + "/embeddings/", "small").embed(["x" * (LONGEST + 1), " \n", ""])
    [(path, headers, body)] = server.asked
    assert path == "/v1/embeddings"
    assert [len(text) for text in body["input"]] == [LONGEST, 1, 1]
    assert "authorization" not in {name.lower() for name in headers}


def test_no_texts_are_not_asked_about(server: Server) -> None:
    assert len(OpenAICompatibleEmbedder(server.url, "small").embed([])) == 0
    assert not server.asked


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((status, Misconfigured) for status in (401, 403, 404)),
        *((status, Permanent) for status in (400, 413)),
        *((status, Transient) for status in (408, 500, 503)),
        (402, OverBudget),
        (429, Throttled),
    ],
)
def test_each_refusal_is_the_error_that_decides_what_happens(server: Server, status: int, error: type) -> None:
    server.answer = lambda _: (status, {"error": "you sent: my secret text"})
    with pytest.raises(error) as caught:
        OpenAICompatibleEmbedder(server.url, "small", "k-1").embed(["my secret text"])
    assert type(caught.value) is error
    assert "secret" not in str(caught.value)
    assert "k-1" not in str(caught.value)


@pytest.mark.parametrize("body", [b"<html>Blocked by policy.</html>", {"statusCode": 403, "message": "Blocked."}])
def test_a_firewall_that_refuses_one_text_is_no_misconfiguration(server: Server, body: Any) -> None:
    page = 403, body
    server.answer = lambda body: page if "objects" in str(body) else (200, listed(body))
    small = OpenAICompatibleEmbedder(server.url, "small")
    with pytest.raises(Permanent, match="firewall"):
        small.embed(["The firewall objects to this."])
    assert len(small.embed(["I drink green tea."])) == 1
    server.answer = lambda _: page
    with pytest.raises(Misconfigured):
        small.embed(["I drink green tea."])


@pytest.mark.parametrize(("said", "waited"), [("7", 7.0), ("0", 0.5), ("999999", 3_600.0), ("soon", 5.0)])
def test_a_server_that_asks_to_be_called_later_says_when(server: Server, said: str, waited: float) -> None:
    server.answer, server.headers = lambda _: (429, {}), {"retry-after": said}
    with pytest.raises(Throttled) as caught:
        OpenAICompatibleEmbedder(server.url, "small").embed(["a"])
    assert caught.value.retry_after == waited


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        {"data": []},
        {"data": [{"index": 0}]},
        {"data": [{"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        {"data": [{"index": 0, "embedding": [float("nan")]}]},
        [],
    ],
)
def test_an_answer_that_is_no_list_of_vectors_is_not_believed(server: Server, answer: Any) -> None:
    server.answer = lambda _: (200, answer)
    with pytest.raises(Transient):
        OpenAICompatibleEmbedder(server.url, "small").embed(["a"])


def test_nobody_there_passes_and_a_malformed_address_does_not() -> None:
    with pytest.raises(Transient):
        OpenAICompatibleEmbedder("http://127.0.0.1:9/v1", "small").embed(["a"])
    with pytest.raises(Misconfigured):
        OpenAICompatibleEmbedder("localhost:8000/v1", "small").embed(["a"])


def test_it_is_chosen_by_its_settings() -> None:
    chosen = embedder(
        Settings(embedder="openai-compatible", embedder_url="http://h/v1", embedder_model="m", embedder_key="k")
    )
    assert chosen.name == "openai-compatible/m"
    with pytest.raises(ConfigurationError, match="address and a model"):
        embedder(Settings(embedder="openai-compatible", embedder_model="m"))
    with pytest.raises(ConfigurationError, match="no embedder named"):
        embedder(Settings(embedder="word2vec"))
