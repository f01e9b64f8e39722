"""Routes whose functions return a :class:`Document`, which becomes the JSON of the answer."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.responses import Response

from nexus_tasks import limits
from nexus_tasks.errors import WaitTimeout
from nexus_tasks.integrations.http import bodies
from nexus_tasks.integrations.http.caller import Needs
from nexus_tasks.integrations.http.repeats import Handler, Repeat, once
from nexus_tasks.integrations.http.slots import LONG_CALL
from nexus_tasks.integrations.serving import turns
from nexus_tasks.types import Document

PREFIX = "/v1"
F = TypeVar("F", bound=Callable[..., object])


def as_json(document: Document) -> bytes:
    """The JSON of a document in UTF-8."""
    return json.dumps(document.to_dict(), ensure_ascii=False).encode("utf-8", "replace")


class DocumentRoute(APIRoute):
    """A route whose function returns a document, or a response.

    FastAPI alone would check each answer against its model once more, and write fields that ``to_dict()`` leaves out.
    """

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Any]], **options: Any) -> None:
        self.repeat: Repeat = getattr(endpoint, "repeat", "kept")
        self.long = LONG_CALL in (options.get("dependencies") or ())
        answer = _answering(endpoint, options.get("status_code") or 200, long=self.long)
        super().__init__(path, answer, **options)

    @property
    def needs(self) -> Needs | None:
        """What the token must be allowed to do."""
        found = (one.call for one in self.dependant.dependencies if isinstance(one.call, Needs))
        return next(found, None)

    @property
    def takes_key(self) -> bool:
        """Whether a request may have an idempotency key: whether it writes."""
        reads = self.needs is None or self.needs.scopes == ("read",)
        return "GET" not in (self.methods or ()) and not reads and self.repeat != "no key"

    def get_route_handler(self) -> Handler:
        """The handler of requests, which reads the body in its own way, and knows idempotency keys."""
        handle: Handler = super().get_route_handler()
        if self.takes_key:
            handle = functools.partial(once, handle=handle, kind=self.repeat)
        if self.body_field is None:
            return handle
        kind: Any = self.body_field.field_info.annotation
        model, needs = TypeAdapter[Any](kind), self.needs

        async def with_body(request: Request) -> Response:
            if needs:
                await needs(request)  # who may not call needs no answer to the body
            return await bodies.served(request, model, handle, long=self.long)

        return with_body


def _answering(endpoint: Callable[..., Awaitable[Any]], status: int, *, long: bool) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def answer(*args: Any, **given: Any) -> Response:
        takes_long = long or bodies.has_long_body.get()
        seconds = limits.HTTP_LONG_SECONDS if takes_long else limits.HTTP_ANSWER_SECONDS
        work = asyncio.ensure_future(endpoint(*args, **given))
        try:
            done, _ = await asyncio.wait({work}, timeout=seconds)
        except asyncio.CancelledError:
            work.cancel()
            raise
        if not done:
            turns.keep_until(work)
            raise WaitTimeout(
                f"There was no answer within {seconds} s. The work goes on, and what it writes may be stored already.",
                remedy=getattr(endpoint, "unanswered", "Look at the state before you ask again, or ask for less."),
            )
        made = work.result()
        return made if isinstance(made, Response) else Response(as_json(made), status, None, "application/json")

    return answer


def unanswered(remedy: str) -> Callable[[F], F]:
    """A decorator of a route's function: what to do after a call that had no answer in time."""

    def marked(endpoint: F) -> F:
        endpoint.unanswered = remedy  # type: ignore[attr-defined]
        return endpoint

    return marked


def routes(tag: str) -> APIRouter:
    """A router for routes that return documents."""
    return APIRouter(
        route_class=DocumentRoute,
        prefix=PREFIX,
        tags=[tag],
        responses={"default": {}},  # instead of FastAPI's own answer to a wrong request; see openapi.py
        generate_unique_id_function=lambda route: route.name.rstrip("_"),
    )
