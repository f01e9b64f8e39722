"""Turn errors into problems: which status a :class:`NexusError` gets, and what a wrong request is told."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from nexus_tasks import errors
from nexus_tasks.errors import InvalidInput, NexusError, Throttled, faults
from nexus_tasks.integrations.serving.access import current
from nexus_tasks.integrations.serving.problems import MEDIA_TYPE, document, problem

log = logging.getLogger(__name__)

# The status of each class of errors. A class that is not here has the status of its base class.
STATUS: Mapping[type[NexusError], int] = {
    NexusError: 500,
    errors.InvalidInput: 422,
    errors.UnsupportedOption: 422,
    errors.NotFound: 404,
    errors.NotAllowed: 403,
    errors.UndoRefused: 409,
    errors.Conflict: 409,
    errors.NamespaceMoved: 409,
    errors.JobFailed: 409,
    errors.RequestRunning: 409,
    errors.SchemaOutdated: 503,
    errors.QueueUnavailable: 503,
    errors.BufferError: 503,
    errors.EmbeddedError: 503,
    errors.WaitTimeout: 504,
    errors.JobError: 502,  # the model gave no answer
    errors.Transient: 503,
    errors.OverBudget: 402,
    errors.AwaitsBatch: 503,
    errors.Permanent: 422,
    errors.TooLarge: 413,
}
RETRY_AFTER = "5"  # seconds


def status_of(error: NexusError) -> int:
    """The HTTP status of an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem_document(error: NexusError) -> bytes:
    """The problem that tells a client of an error, as JSON."""
    title = (type(error).__doc__ or "").partition("\n")[0]
    access = current.get()
    may_read = access is None or access.has("read")
    message = error.message if may_read else error.without_words or error.message
    return document(status_of(error), message, type=type(error).__name__, title=title, remedy=error.remedy)


def problem_of(error: NexusError) -> Response:
    """The response that tells a client of an error."""
    status = status_of(error)
    headers = {}
    if status == 503 or isinstance(error, errors.RequestRunning):
        headers["Retry-After"] = f"{error.retry_after:.0f}" if isinstance(error, Throttled) else RETRY_AFTER
    return Response(problem_document(error), status, headers, MEDIA_TYPE)


def wrong_request(found: Iterable[Any]) -> InvalidInput:
    """The error of a request with pydantic's errors ``found``."""
    return InvalidInput(f"The request is wrong: {faults(found, root='body')}.")


def install(app: FastAPI) -> None:
    """Let ``app`` answer every error with a problem."""

    @app.exception_handler(NexusError)
    async def known(_request: Request, error: NexusError) -> Response:
        if status_of(error) >= 500:
            log.warning("A request failed: %s", error.message)
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, error: RequestValidationError) -> Response:
        return problem_of(wrong_request(error.errors()))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        remedies = {404: "The routes are in /openapi.json.", 405: "The methods of each route are in /openapi.json."}
        remedy = remedies.get(error.status_code, "Correct the request.")
        headers = dict(error.headers or {})
        if error.status_code == 405:  # the framework names the methods of one route alone
            matching = [one for one in app.routes if one.matches(request.scope)[0] is not Match.NONE]
            # `/v1/jobs/repair` also matches `/v1/jobs/{id}`, which is another path in the document.
            path = min((getattr(one, "path", "") for one in matching), key=lambda template: template.count("{"))
            of_the_path = [one for one in matching if getattr(one, "path", "") == path]
            methods = {method for one in of_the_path for method in getattr(one, "methods", ())}
            headers["Allow"] = ", ".join(sorted(methods))
        return problem(error.status_code, error.detail, remedy=remedy, headers=headers)

    @app.exception_handler(Exception)
    async def unknown(_request: Request, _error: Exception) -> Response:
        detail = "The server has met a fault of its own, which its log shows."
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail, remedy="Try again; if it fails again, read the log.")
