"""The HTTP server of the endpoint: the standard library's, with a thread per request and without a log of requests."""

from __future__ import annotations

import logging
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

log = logging.getLogger(__name__)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a slow reader does not keep the process from ending

    def handle_error(self, _request: Any, _client: Any) -> None:
        """Log an error of a connection, for example of a client that has gone, only at the level DEBUG."""
        log.debug("A request for metrics or health failed.", exc_info=True)

    def server_bind(self) -> None:
        """Bind without the search for the machine's name, which may ask a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds for a request

    def log_message(self, *_args: Any) -> None:
        """Log nothing: a monitoring system asks every few seconds."""


def make(host: str, port: int, application: Any) -> WSGIServer:
    """Bind a server. The caller calls its ``serve_forever``.

    Raises:
        OSError: the address cannot be used.
    """
    return make_server(host, port, application, server_class=_Server, handler_class=_Handler)
