"""The HTTP server of the endpoint: the standard library's, with a thread per request and without a log of requests."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

log = logging.getLogger(__name__)

CONNECTIONS = (
    32  # at a time, each with a thread; of more, the oldest is closed. A worker needs its files for other things
)
SECONDS = 10.0  # for a request and its answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a slow reader does not keep the process from ending
    request_queue_size = 2 * CONNECTIONS

    def __init__(self, *args: Any, **options: Any) -> None:
        self._open: dict[Any, threading.Timer] = {}  # by socket, the oldest first: what cuts it off
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread. A client that sends or reads too slowly is cut off, or gives way to another one."""
        for oldest in list(self._open)[: len(self._open) + 1 - CONNECTIONS]:
            self._shut(oldest)
        self._open[request] = cut_off = threading.Timer(SECONDS, self._shut, (request,))
        cut_off.daemon = True
        cut_off.start()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _shut(self, request: Any) -> None:
        self._forget(request)
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)  # the thread that reads or writes ends

    def _forget(self, request: Any) -> None:
        if cut_off := self._open.pop(request, None):
            cut_off.cancel()

    def handle_error(self, _request: Any, _client: Any) -> None:
        """Log an error of a connection, for example of a client that has gone, only at the level DEBUG."""
        log.debug("A request for metrics or health failed.", exc_info=True)

    def server_bind(self) -> None:
        """Bind without the search for the machine's name, which may ask a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = SECONDS

    def log_message(self, *_args: Any) -> None:
        """Log nothing: a monitoring system asks every few seconds."""


def make(host: str, port: int, application: Any) -> WSGIServer:
    """Bind a server. The caller calls its ``serve_forever``.

    Raises:
        OSError: the address cannot be used.
    """
    return make_server(host, port, application, server_class=_Server, handler_class=_Handler)
