"""Give each namespace a few turns, so that the requests of one tenant do not hold the threads that all tenants need."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nexus_tasks import limits
from nexus_tasks.integrations.serving.access import current
from nexus_tasks.integrations.serving.connections import answer_and_drain
from nexus_tasks.integrations.serving.problems import problem

AT_ONCE = 8  # requests of a namespace that run at a time; the next ones wait
THREADS = 5 * AT_ONCE  # of a server


# Work of a request that goes on behind its answer. Each request has a list of its own.
_unfinished: ContextVar[list[asyncio.Future[Any]] | None] = ContextVar("nexus_unfinished", default=None)


def keep_until(work: asyncio.Future[Any]) -> None:
    """Let the request keep its turn and its place until ``work`` has ended, because ``work`` still holds a thread."""
    unfinished = _unfinished.get()
    if unfinished is not None:
        unfinished.append(work)


def unfinished() -> Sequence[asyncio.Future[Any]]:
    """The work of the present request that may go on behind its answer."""
    work = _unfinished.get() or ()
    return [one for one in work if not one.done()]


class Turns:
    """ASGI middleware that runs at most 8 requests of a namespace at a time.

    Up to ``limits.HTTP_NAMESPACE_REQUESTS`` requests of a namespace may be open. Further ones get the status 429, and
    their connection is closed, so that one tenant does not hold all connections either. Requests with the operator's
    token are not counted.

    A stream of events is open for minutes and holds no thread while it waits. It gives its turn back when it begins,
    and is no longer counted here. A request whose answer took too long keeps its turn until its thread is free.

    At its start a server gets 40 threads for its requests, however few processors the machine has.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._open: Counter[str] = Counter()
        self._ending = set[asyncio.Future[None]]()  # asyncio itself keeps no reference
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for a turn, and pass the request on; or answer 429."""
        if scope["type"] == "lifespan":  # the server starts
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "nexus-request"))
            to_thread.current_default_thread_limiter().total_tokens = THREADS
        entered = _unfinished.set([])
        try:
            await self._serve(scope, receive, send)
        finally:
            _unfinished.reset(entered)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = current.get()
        namespace = access.namespace if access and scope["type"] == "http" else None
        if namespace is None:
            await self.app(scope, receive, send)
            return
        if self._open[namespace] >= limits.HTTP_NAMESPACE_REQUESTS:
            said = f"At most {limits.HTTP_NAMESPACE_REQUESTS} requests of a namespace may be open."
            headers = {"Retry-After": "1", "Connection": "close"}
            refusal = problem(429, said, remedy="Try again when one has its answer.", headers=headers)
            await answer_and_drain(refusal, receive, send)
            return
        turns = self._turns.setdefault(namespace, asyncio.Semaphore(AT_ONCE))
        self._open[namespace] += 1
        async with AsyncExitStack() as turn:
            turn.callback(self._close, namespace)
            await turn.enter_async_context(turns)

            async def sending(message: Message) -> None:
                if _begins_events(message):
                    await turn.aclose()
                await send(message)

            try:
                await self.app(scope, receive, sending)
            finally:
                if work := unfinished():
                    kept = turn.pop_all()
                    ending = asyncio.ensure_future(_end(work, kept))
                    self._ending.add(ending)
                    ending.add_done_callback(self._ending.discard)

    def _close(self, namespace: str) -> None:
        self._open[namespace] -= 1
        if not self._open[namespace]:
            del self._open[namespace]


async def _end(work: Sequence[asyncio.Future[Any]], turn: AsyncExitStack) -> None:
    async with turn:
        await asyncio.wait(work)


def _begins_events(message: Message) -> bool:
    """Whether the message is the head of an answer that is a stream of events."""
    if message["type"] != "http.response.start":
        return False
    return Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
