"""The page on adapters, executed in order, with stand-ins for Claude and for OpenAI's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec

import pytest

from tests.adapters.frameworks import FRAMEWORKS, needs
from tests.integration.inline import work
from tests.pages import ROOT, Reader
from tests.sandbox import Sandbox
from tests.standin import Call, StandIn

for _package in FRAMEWORKS:
    needs(_package)

pytestmark = pytest.mark.long


class Responses(BaseHTTPRequestHandler):
    """OpenAI's Responses API, which always says the same."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        text = {"type": "output_text", "text": "Good to know.", "annotations": []}
        said = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
        told = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "output": [said]}
        told |= {"parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "status": "completed"}
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def models(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Variables that make both SDKs speak to stand-ins."""
    server = HTTPServer(("127.0.0.1", 0), Responses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in standin.environment().items():
        if not name.startswith("NEXUS_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-standin")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    yield standin
    server.shutdown()
    server.server_close()


def write_a_file(call: Call) -> object:
    """What Claude says: it writes a file with the memory tool once, and then it is done."""
    if not call.params.get("tools") or "tool_result" in str(call.params["messages"]):
        return "It is kept."
    command = {"command": "create", "path": "/memories/deploys.md", "file_text": "Deploys happen on Tuesdays."}
    return [{"type": "tool_use", "id": "toolu_1", "name": "memory", "input": command}]


def test_the_page_works_as_written(here: Sandbox, models: StandIn) -> None:
    models.answer(lambda _: True, write_a_file)
    one = Reader(here, work)
    one.execute(ROOT / "docs" / "adapters.md")
    assert one.printed == ""
    nexus = one.program["nexus"]
    assert [topic.filename for topic in nexus.topics("adapted")] == ["deploys.md"]
    keys = {session.session_key for session in nexus.sessions("adapted")}
    assert keys >= {"chat-1", "chat-2", "chat-3", "chat-4", "langgraph/users/ann/"}
    assert all(find_spec(package) for package in FRAMEWORKS)
