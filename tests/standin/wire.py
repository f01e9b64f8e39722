"""HTTP/1.1 with keep-alive, a thread per connection, one write per reply."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tests.standin.faults import Fault, status
from tests.standin.rules import refuse_headers

if TYPE_CHECKING:
    from tests.standin.server import StandIn


@dataclass(frozen=True)
class Reply:
    """A status and a body; ``cut`` closes the connection in the middle of it."""

    status: int
    body: dict[str, Any] | str
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False

    @classmethod
    def of(cls, fault: Fault) -> Reply:
        """The error reply of ``fault``."""
        if fault.body is not None:
            return cls(fault.status, fault.body, kind="text/html", headers=fault.headers)
        return cls(fault.status, fault.error(), headers=fault.headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, standin: StandIn, port: int) -> None:
        self.standin = standin
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Break the connections that clients keep alive; otherwise they would be served after the end."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away (a killed worker, a timeout) is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise a reply can wait 40 ms for a delayed ACK
    timeout = 60
    server: _Server

    def do_GET(self) -> None:
        self._send(self._route("GET", None))

    def do_DELETE(self) -> None:
        self._send(self._route("DELETE", None))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            self._send(Reply.of(status(400, "invalid_request_error", "The body is no JSON.")))
        else:
            self._send(self._route("POST", body))

    def _route(self, method: str, body: Any) -> Reply:
        standin = self.server.standin
        path = unquote(urlsplit(self.path).path)
        if path == "/counters":
            return Reply(200, standin.counters.as_dict())
        if refusal := refuse_headers(self.headers):
            return Reply.of(refusal)
        match (method, *path.strip("/").split("/")):
            case ("POST", "v1", "messages"):
                return standin.message(body)
            case ("POST", "v1", "chat", "completions"):
                return standin.chat(body)
            case ("POST", "openai", "deployments", name, "chat", "completions"):
                return standin.chat(body, name)
            case ("GET", "openai", "models"):
                return Reply(200, {"object": "list", "data": []})
            case ("POST", "v1", "messages", "count_tokens"):
                return standin.count(body)
            case ("POST", "v1", "messages", "batches"):
                return standin.create_batch(body)
            case ("GET", "v1", "messages", "batches"):
                return standin.batch_list()
            case ("GET", "v1", "messages", "batches", name):
                return standin.batch(name)
            case ("DELETE", "v1", "messages", "batches", name):
                return standin.batch(name, "delete")
            case ("GET", "v1", "messages", "batches", name, "results"):
                return standin.batch(name, "results")
            case ("POST", "v1", "messages", "batches", name, "cancel"):
                return standin.batch(name, "cancel")
            case ("GET", "v1", "models", name):
                return standin.model(name)
        return Reply.of(status(404, "not_found_error", f"{method} {path}"))

    def _send(self, reply: Reply) -> None:
        text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body, ensure_ascii=False)
        body = text.encode("utf-8", "surrogatepass")
        head = {"Content-Type": reply.kind, "Content-Length": str(len(body)), "Request-Id": "req_standin"}
        lines = [f"HTTP/1.1 {reply.status} Standin"]
        lines += [f"{name}: {value}" for name, value in {**head, **reply.headers}.items()]
        whole = "\r\n".join([*lines, "", ""]).encode() + body
        if reply.cut:
            self.wfile.write(whole[: len(whole) - len(body) // 2])
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(whole)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


class Listener:
    """The socket and the thread that accepts on it."""

    def __init__(self, standin: StandIn, port: int) -> None:
        self._server = _Server(standin, port)
        self._thread = threading.Thread(target=self._serve, name="standin", daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.02)

    def start(self) -> None:
        """Serve in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.hang_up()
