"""An error as a document ``application/problem+json`` (RFC 9457), with the remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


def document(status: int, detail: str, *, type: str = "", title: str = "", remedy: str = "") -> bytes:
    """A problem as JSON. ``type`` is the name of an error's class; without one the status says all."""
    problem = {
        "type": f"urn:nexus-tasks:{type}" if type else "about:blank",
        "title": title or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "remedy": remedy,
    }
    return json.dumps(problem).encode()  # in ASCII, because a detail may quote half a surrogate pair


def problem(
    status: int,
    detail: str,
    *,
    type: str = "",
    title: str = "",
    remedy: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response with :func:`document`."""
    body = document(status, detail, type=type, title=title, remedy=remedy)
    return Response(body, status, headers, MEDIA_TYPE)
