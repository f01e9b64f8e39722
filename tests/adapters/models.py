"""What stands for the models of the page on adapters: Anthropic's API, and OpenAI's Responses API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from tests.standin import Call, StandIn


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


def write_a_file(call: Call) -> object:
    """What Claude says: it writes a file with the memory tool once, and then it is done."""
    if not call.params.get("tools") or "tool_result" in str(call.params["messages"]):
        return "It is kept."
    command = {"command": "create", "path": "/memories/deploys.md", "file_text": "Deploys happen on Tuesdays."}
    return [{"type": "tool_use", "id": "toolu_1", "name": "memory", "input": command}]


@contextmanager
def stand_in_for_models(standin: StandIn) -> Iterator[dict[str, str]]:
    """The variables that make both SDKs speak to stand-ins. ``standin`` is the one for Anthropic's API."""
    standin.answer(lambda _: True, write_a_file)
    with HTTPServer(("127.0.0.1", 0), Responses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {
                **{name: value for name, value in standin.environment().items() if not name.startswith("NEXUS_")},
                "OPENAI_API_KEY": "sk-standin",
                "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}",
                "OPENAI_AGENTS_DISABLE_TRACING": "1",
            }
        finally:
            server.shutdown()
