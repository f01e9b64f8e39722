"""Routes whose functions return a :class:`Document`, which becomes the JSON of the answer."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.responses import Response

from nexus_tasks.types import Document


def as_json(document: Document) -> bytes:
    """The JSON of a document in UTF-8."""
    return json.dumps(document.to_dict(), ensure_ascii=False).encode("utf-8", "replace")


class DocumentRoute(APIRoute):
    """A route whose function returns a document, or a response.

    FastAPI alone would check each answer against its model once more, and write fields that ``to_dict()`` leaves out.
    """

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Any]], **options: Any) -> None:
        status = options.get("status_code") or 200

        @functools.wraps(endpoint)
        async def answer(*args: Any, **given: Any) -> Response:
            made = await endpoint(*args, **given)
            return made if isinstance(made, Response) else Response(as_json(made), status, None, "application/json")

        super().__init__(path, answer, **options)


def routes(tag: str) -> APIRouter:
    """A router for routes that return documents."""
    return APIRouter(route_class=DocumentRoute, tags=[tag])
