"""A proxy whose connections go silent or are cut, all or some of them; new ones are as good as before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire:
    """A client's connection through the proxy, and the proxy's own to the server."""

    def __init__(self, client: Pair, server: Pair) -> None:
        self.sent = b""  # the client's last bytes
        self.silent = False  # nothing passes
        self.mute = False  # the server's bytes are not even read
        self.until = b""  # the client's bytes that make it silent
        self._writers = client[1], server[1]
        self.flows = self._flow(client[0], server[1], note=True), self._flow(server[0], client[1])

    async def _flow(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, note: bool = False) -> None:
        """Pass bytes on. A silent wire takes them, so that TCP acknowledges them, and passes nothing on."""
        with suppress(OSError):
            while data := await source.read(65_536):
                if note:
                    self.sent = (self.sent + data)[-4_096:]
                    self.silent = self.silent or bool(self.until and self.until in self.sent)
                while self.mute and not note:
                    await asyncio.sleep(0.05)
                if not self.silent:
                    target.write(data)
                    await target.drain()
        if not self.silent:  # nor does a silent wire say that its other side has closed
            self.cut()

    def cut(self) -> None:
        """Close both sides."""
        for writer in self._writers:
            writer.close()


class Proxy:
    """Listens on a port of ``address`` and passes everything on to a server's unix socket, or its port here."""

    def __init__(self, target: Path | int, address: str = "127.0.0.1") -> None:
        self.target, self._address = target, address
        self._loop = asyncio.new_event_loop()
        self._wires: set[Wire] = set()
        self._until = b""
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._listening.wait(10)

    def silence(self, where: bytes = b"") -> int:
        """Silence the open connections whose last bytes to the server contain ``where``; returns how many."""
        found = [wire for wire in list(self._wires) if not wire.silent and where in wire.sent]
        for wire in found:
            wire.silent = True
        return len(found)

    def silent_from(self, sent: bytes) -> None:
        """Let new connections go silent once the client has sent these bytes; with none, no more."""
        self._until = sent

    def deafen(self) -> None:
        """Read no more from the server on the open connections: its answers fill its buffers."""
        for wire in list(self._wires):
            wire.mute = True

    def cut(self, where: bytes = b"") -> int:
        """Close such connections; returns how many."""
        found = [wire for wire in list(self._wires) if where in wire.sent]
        for wire in found:
            self._loop.call_soon_threadsafe(wire.cut)
        return len(found)

    def close(self) -> None:
        """End every connection, and listen no more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, self._address, 0, backlog=256))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self.target, int):
            server = await asyncio.open_connection("127.0.0.1", self.target)
        else:
            server = await asyncio.open_unix_connection(str(self.target))
        wire = Wire((reader, writer), server)
        wire.until = self._until
        self._wires.add(wire)
        try:
            with suppress(asyncio.CancelledError):  # the proxy is closed
                await asyncio.gather(*wire.flows)
        finally:
            wire.cut()
            self._wires.discard(wire)


@contextmanager
def proxy(target: Path | int, address: str = "127.0.0.1") -> Iterator[Proxy]:
    """A proxy in front of a server's unix socket, or of its port on this host."""
    made = Proxy(target, address)
    try:
        yield made
    finally:
        made.close()
