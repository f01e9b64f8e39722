"""Idempotency keys: a write that is sent again with the same key has its effect once.

The guarantee: while the key is kept (normally 24 hours), a repeat gets the answer of the first request, and no two
requests with one key run at a time. When the process dies between the effect and the keeping of the answer, or Redis
loses the key, a repeat is served anew. Most writes then change nothing: messages with an ``id``, endings, corrections
and digests.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput, NexusError, QueueUnavailable, WaitTimeout
from nexus_tasks.idempotency import kept_answers
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.kept_answers import KeptAnswer, Taken
from nexus_tasks.integrations.serving import turns
from nexus_tasks.integrations.serving.access import Access, current
from nexus_tasks.integrations.serving.problems import problem

log = logging.getLogger(__name__)

HEADER = "Idempotency-Key"
REPLAYED = {"Idempotency-Replayed": "true"}
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_ending = set[asyncio.Future[None]]()  # asyncio itself keeps no reference
# What a repeat of a request gets: the kept answer; or an answer made anew, because the work changes nothing the second
# time and the answer has content, which is kept nowhere; or a refusal, because the answer has a secret or content. Or
# the route takes no key.
Repeat = Literal["kept", "anew", "refused", "no key"]
F = TypeVar("F", bound=Callable[..., object])


def repeat(kind: Repeat) -> Callable[[F], F]:
    """A decorator of a route's function: what a repeat gets. Default of writes: ``kept``."""

    def marked(endpoint: F) -> F:
        endpoint.repeat = kind  # type: ignore[attr-defined]
        return endpoint

    return marked


async def once(request: Request, handle: Handler, kind: Repeat) -> Response:
    """Serve a request, unless its key has an answer.

    Raises:
        InvalidInput: the key is no key, or belongs to another request.
        RequestRunning: a request with this key runs.
        QueueUnavailable: the request has a key, and Redis does not answer. Nothing was done.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return await handle(request)
    if not 1 <= len(key) <= limits.NAME_CHARACTERS or not key.isascii() or not key.isprintable():
        raise InvalidInput(f"{HEADER} must be 1 to {limits.NAME_CHARACTERS} printable ASCII characters.")
    access = current.get() or Access()
    claims: Claims = request.app.state.nexus.deployment.claims
    caller = access.actor.token_id if access.actor else "operator"
    fingerprint = await asyncio.to_thread(_fingerprint, request, key, await request.body())
    taken = await asyncio.to_thread(kept_answers.take, claims, caller, key, fingerprint)
    if isinstance(taken, KeptAnswer):
        return await handle(request) if kind == "anew" else _replayed(taken)
    return await _serve(request, handle, kind, claims, taken)


def _fingerprint(request: Request, key: str, body: bytes) -> str:
    parts = (key, request.method, request.url.path, request.url.query)
    head = "\0".join(parts).encode("utf-8", "replace")
    return hashlib.sha256(head + b"\0" + body).hexdigest()


def _replayed(answer: KeptAnswer) -> Response:
    if answer.body is not None:
        return Response(answer.body, answer.status, REPLAYED, "application/json")
    return problem(
        409,
        "A request with this idempotency key was done before. Its answer is not kept.",
        type="AnswerNotKept",
        remedy="Read the present state instead. To do it once more, use a new key.",
        headers=REPLAYED,
    )


async def _serve(request: Request, handle: Handler, kind: Repeat, claims: Claims, taken: Taken) -> Response:
    try:
        async with _renewed(claims, taken):
            response = await handle(request)
    except WaitTimeout:
        if work := turns.unfinished():  # else the key is free when its lease has ended
            ending = asyncio.ensure_future(_free_behind(work, claims, taken))
            _ending.add(ending)
            ending.add_done_callback(_ending.discard)
        raise
    except (NexusError, RequestValidationError):
        await _try(kept_answers.free, claims, taken)
        raise
    body = bytes(response.body)
    if response.status_code >= 300:
        await _try(kept_answers.free, claims, taken)
    elif kind == "kept" and len(body) <= limits.HTTP_ANSWER_KEPT_BYTES:
        await _try(kept_answers.keep, claims, taken, KeptAnswer(response.status_code, body.decode()))
    else:
        await _try(kept_answers.keep, claims, taken, KeptAnswer(response.status_code, None))
    return response


async def _free_behind(work: Sequence[asyncio.Future[Any]], claims: Claims, taken: Taken) -> None:
    """Keep a key while the work of its request goes on in its thread, and free it then. A repeat is served anew."""
    async with _renewed(claims, taken):
        await asyncio.wait(work)
    await _try(kept_answers.free, claims, taken)


@asynccontextmanager
async def _renewed(claims: Claims, taken: Taken) -> AsyncIterator[None]:
    """Renew the key inside the block."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(kept_answers.RENEW_EVERY)
            await _try(kept_answers.renew, claims, taken)

    renewing = asyncio.ensure_future(renew())
    try:
        yield
    finally:
        renewing.cancel()
        with suppress(asyncio.CancelledError):
            await renewing


async def _try(change: Callable[..., None], *args: object) -> None:
    """Change the key's entry. When Redis does not answer, the effect stays, and the key is free within 60 s."""
    try:
        await asyncio.to_thread(change, *args)
    except QueueUnavailable as error:
        log.warning("An idempotency key is not kept: %s", error.message)
