"""The OpenAPI document of the API, which ``docs/openapi.json`` holds too.

FastAPI derives it from the routes and from the types of the client. Added here: problems, tokens with their scopes,
idempotency keys, and the descriptions of fields, which are the comments in the source of the types.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from nexus_tasks import types
from nexus_tasks.integrations.http import pages
from nexus_tasks.integrations.http.documents import DocumentRoute
from nexus_tasks.integrations.http.repeats import HEADER
from nexus_tasks.integrations.serving.problems import MEDIA_TYPE
from nexus_tasks.storage.transfer.tables import FORMAT, TABLES

router = APIRouter(include_in_schema=False)
_FIELD = re.compile(r" {4}(\w+): ([^#]*)(?:#(.*))?")
# The fields that `to_dict()` may leave out, besides those of a job that have a default.
_MAY_BE_LEFT_OUT = {"messages", "notes", "derived", "not_rewritten", "away"}
_PROBLEM = {
    "type": "object",
    "description": "An error (RFC 9457).",
    "properties": {
        "type": {"type": "string", "description": "urn:nexus-tasks: and the name of the error's class."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "remedy": {"type": "string", "description": "What to do about it."},
    },
    "required": ["type", "title", "status", "detail", "remedy"],
}
_EXPORT_LINE = {
    "description": "A line of an export: first the header, then a row per line, and last the end.",
    "oneOf": [
        {
            "type": "object",
            "title": "header",
            "properties": {
                "format": {"type": "string", "const": FORMAT},
                "version": {"type": "integer"},
                "settings": {"type": "object", "description": "The settings of the namespace."},
            },
            "required": ["format", "version", "settings"],
        },
        {
            "type": "object",
            "title": "row",
            "properties": {"table": {"type": "string", "enum": [model.__tablename__ for model in TABLES]}},
            "required": ["table"],
            "additionalProperties": {"description": "A column of the row."},
        },
        {
            "type": "object",
            "title": "end",
            "properties": {"end": {"type": "integer", "description": "The number of rows."}},
            "required": ["end"],
        },
    ],
}
_KEY = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "A repeat with the same key and body gets the answer of the first request, for 24 hours.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 256},
}


def document(app: FastAPI) -> dict[str, Any]:
    """Make the document of ``app``. That takes about 1 s, so the server keeps the result."""
    app.openapi_schema = None  # FastAPI would give its document of the last time, which is completed already
    made = FastAPI.openapi(app)
    parts = made["components"]
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    parts["schemas"] |= {"Problem": _PROBLEM, "ExportLine": _EXPORT_LINE}
    for kind in _documents():
        if kind.__name__ in parts["schemas"]:
            _describe(kind, parts["schemas"][kind.__name__])
    for route in _routes(app):
        for method in route.methods or ():
            _complete(made["paths"][route.path][method.lower()], route)
    return made


def install(app: FastAPI) -> None:
    """Give ``app`` a place for its document."""
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    app.state.openapi, app.state.openapi_lock = None, asyncio.Lock()


@router.get("/openapi.json")
async def served(request: Request) -> Response:
    """The document. The first request makes it, in a thread, so that other requests go on. No token is needed."""
    state = request.app.state
    async with state.openapi_lock:
        if state.openapi is None:
            state.openapi = await asyncio.to_thread(_compact, request.app)
    return Response(state.openapi, media_type="application/json")


def _compact(app: FastAPI) -> bytes:
    return json.dumps(document(app), ensure_ascii=False, separators=(",", ":")).encode()


def _routes(app: FastAPI) -> Iterator[DocumentRoute]:
    return (route for route in app.routes if isinstance(route, DocumentRoute))


def _complete(operation: dict[str, Any], route: DocumentRoute) -> None:
    operation["security"] = [{"token": list(route.needs.scopes)}] if route.needs else []
    if route.needs and route.needs.operator:
        operation["x-operator-only"] = True
    schema = {"$ref": "#/components/schemas/Problem"}
    operation["responses"]["default"] = {"description": "A problem", "content": {MEDIA_TYPE: {"schema": schema}}}
    if route.takes_key:
        operation.setdefault("parameters", []).append(_KEY)


def _documents() -> list[type]:
    found = [*vars(types).values(), *vars(pages).values()]
    return [one for one in found if isinstance(one, type) and issubclass(one, types.Document)]


def _describe(kind: type, schema: dict[str, Any]) -> None:
    """Describe the fields of a type, and say which ones are always there."""
    fields = schema.get("properties", {})
    if issubclass(kind, types.JobInfo):
        fields.pop("source", None)
        schema["required"] = [name for name in schema["required"] if name != "source"]
    else:
        schema["required"] = [name for name in fields if name not in _MAY_BE_LEFT_OUT]
    for base in reversed(kind.__mro__):
        for name, comment in _comments(base):
            if comment and name in fields:
                fields[name].setdefault("description", comment)


def _comments(kind: type) -> Iterator[tuple[str, str]]:
    """The fields of a class, and the comments above or behind them."""
    if kind is object or not issubclass(kind, types.Document):
        return
    above = list[str]()
    for line in inspect.getsource(kind).splitlines():
        if line.startswith("    #"):
            above.append(line.strip().removeprefix("# "))
            continue
        if field := _FIELD.fullmatch(line):
            yield field[1], (field[3] or " ".join(above)).strip()
        above.clear()


def as_text(app: FastAPI) -> str:
    """The document of ``app`` as it stands in ``docs/openapi.json``."""
    return json.dumps(document(app), ensure_ascii=False, indent=2)
