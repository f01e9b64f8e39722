"""``/livez`` answers while strangers hold connections that send nothing, or a request byte by byte."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import httpx2
import pytest

from nexus_tasks.integrations.serving.listening import LOOPBACK
from tests.integration.serve_process import serve_process
from tests.integration.served import TOKEN
from tests.sandbox import Sandbox

STRANGERS = 60
BEGUN: dict[str, bytes] = {
    "silent": b"",
    "half a head": b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "half a body": b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\nx",
    "unread answers": b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
}


@contextmanager
def of_the_api(here: Sandbox) -> Iterator[int]:
    with serve_process(here, NEXUS_HTTP_TOKEN=TOKEN) as (_, port):
        yield port


@contextmanager
def of_a_worker(here: Sandbox) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = int(probe.getsockname()[1])
    here.worker(concurrency=1, NEXUS_METRICS_PORT=str(port))
    yield port


@pytest.mark.parametrize("server", [of_the_api, of_a_worker])
def test_livez_answers_while_strangers_hold_connections(
    here: Sandbox, server: Callable[[Sandbox], AbstractContextManager[int]]
) -> None:
    with server(here) as port:
        asked(port)  # a server names its address before it has started; its start is not what strangers hold up
        for sent in BEGUN.values():
            with ExitStack() as held, strangers(held, port, sent):
                waits = [asked(port) for _ in range(20)]
            assert max(waits) <= 2.0, sent


@contextmanager
def strangers(held: ExitStack, port: int, sent: bytes) -> Iterator[None]:
    """60 connections that have sent ``sent``; then each sends a byte every 100 ms."""
    open_ones = [held.enter_context(socket.create_connection((LOOPBACK, port), timeout=10)) for _ in range(STRANGERS)]
    for one in open_ones:
        one.sendall(sent)
    ended = threading.Event()

    def trickle() -> None:
        while not ended.wait(0.1):
            for one in open_ones:
                try:
                    one.send(b"x", socket.MSG_DONTWAIT)
                except OSError:
                    continue

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def asked(port: int) -> float:
    """The seconds until ``/livez`` has answered on a connection of its own."""
    began = time.monotonic()
    assert httpx2.get(f"http://{LOOPBACK}:{port}/livez", timeout=10).status_code == 200
    return time.monotonic() - began
