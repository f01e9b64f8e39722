"""Store the session buffer while a server runs.

A container of a server often has a folder of its own. No worker stores the buffer there, and the next call of a tenant
may reach another container.
"""

from __future__ import annotations

import asyncio
import logging
import threading

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nexus_tasks.client import Nexus
from nexus_tasks.errors import NexusError
from nexus_tasks.services import buffer_flush
from nexus_tasks.services.cells import buffers

log = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds for which a server that ends waits until the buffer is stored


class StoresBuffer:
    """ASGI middleware with a thread. The thread stores the buffer every 5 s, and once more when the server ends."""

    def __init__(self, app: ASGIApp, nexus: Nexus) -> None:
        self.app = app
        self._nexus = nexus
        self._ends = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on. Start the thread when the server starts."""
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        thread = threading.Thread(target=self._work, name="nexus-buffer", daemon=True)
        thread.start()

        async def received() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self._ends.set()
                await asyncio.to_thread(thread.join, PATIENCE)
            return message

        await self.app(scope, received, send)

    def _work(self) -> None:
        told, over = "", False
        while not over:
            over = self._ends.wait(buffer_flush.LOOK_EVERY)
            try:
                self._store()
                told = ""
            except NexusError as error:
                if error.message != told:  # once for an outage
                    log.warning("The session buffer is not stored yet: %s", error)
                told = error.message
            except Exception as error:  # such as a file of another user
                if repr(error) != told:
                    log.exception("The session buffer is not stored yet.")
                told = repr(error)

    def _store(self) -> None:
        deployment, allowed = self._nexus.deployment, self._nexus.limit
        if self._nexus.cells is not None:
            buffers.store_all(self._nexus.cells, allowed=allowed, briefly=True)
        elif deployment.buffer.pending():
            buffer_flush.store_buffer(deployment, allowed=allowed, briefly=True)
