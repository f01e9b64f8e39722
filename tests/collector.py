"""A collector of OpenTelemetry: it takes spans by OTLP over HTTP, as protobuf, and keeps them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """A span that arrived."""

    name: str
    trace: str
    id: str
    parent: str
    links: tuple[str, ...]  # the traces of the linked spans
    began: float
    ended: float
    attributes: dict[str, Any]
    failed: bool
    resource: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.ended - self.began


class Collector:
    """A running collector. ``url`` is its address; ``raw`` is every byte that arrived."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.raw = bytearray()
        self.hangs = threading.Event()  # while it is set, no request is answered
        self._free = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.hangs.is_set():
                    collector._free.wait(60)
                    return
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                collector._take(body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send a process's spans here, at once."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def named(self, name: str, **attributes: Any) -> list[Seen]:
        """The spans of a name with these attributes; `_` stands for a dot."""
        wanted = {key.replace("_", "."): value for key, value in attributes.items()}
        return [one for one in self.spans if one.name == name and wanted.items() <= one.attributes.items()]

    def close(self) -> None:
        """Answer nothing any more."""
        self._free.set()
        self._server.shutdown()
        self._server.server_close()

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            about = {one.key: _value(one.value) for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Seen(
                            name=span.name,
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            links=tuple(link.trace_id.hex() for link in span.links),
                            began=span.start_time_unix_nano / 1e9,
                            ended=span.end_time_unix_nano / 1e9,
                            attributes={one.key: _value(one.value) for one in span.attributes},
                            failed=span.status.code == 2,
                            resource=about,
                        )
                    )
        self.raw += body


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector for the block."""
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()
