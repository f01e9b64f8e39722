"""The application: the routes, behind the check of tokens and the limits of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from nexus_tasks import __version__
from nexus_tasks.client import Nexus
from nexus_tasks.integrations.http import (
    access,
    asking,
    bodies,
    consolidation,
    errors,
    health,
    jobs,
    memories,
    namespaces,
    observation,
    openapi,
    operating,
    progress,
    recall,
    sessions,
    slots,
    topics,
    transfer,
    webhooks,
)
from nexus_tasks.integrations.http.browser import routes as browser
from nexus_tasks.integrations.http.browser.visit import Visit
from nexus_tasks.integrations.http.documents import PREFIX
from nexus_tasks.integrations.http.repeats import HEADER
from nexus_tasks.integrations.serving.connections import BodyLimit
from nexus_tasks.integrations.serving.hosts import KnownHosts
from nexus_tasks.integrations.serving.rate import RateLimit
from nexus_tasks.integrations.serving.tokens import TokenRequired
from nexus_tasks.integrations.serving.turns import Turns
from nexus_tasks.services.access import TokenChecker
from nexus_tasks.types import TOKEN_SCOPES

SETTING = "NEXUS_HTTP_TOKEN"
ROUTERS = tuple(
    one.router
    for one in (
        *(memories, recall, asking, sessions, observation, topics, consolidation, namespaces, access, operating),
        *(jobs, progress, transfer, webhooks),
    )
)


def api(nexus: Nexus | None = None, checker: TokenChecker | None = None, visit: Visit | None = None) -> FastAPI:
    """The routes alone. They find the caller's access in ``access.current``, which :func:`application` sets.

    Args:
        nexus: the client that the routes use. ``None``: the routes are only described.
        checker: writes refused requests to the audit log when the server ends.
        visit: the visit that the link of ``nexus browse`` opens.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        if checker is not None:
            checker.write_refusals()

    # The pages of Swagger and ReDoc load scripts from other hosts, so there are none.
    app = FastAPI(
        title="nexus-tasks",
        summary="Always-on memory for AI agents.",
        version=__version__,
        openapi_url=None,  # openapi.py has the route
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.nexus, app.state.visit = nexus, visit
    app.state.readiness = None  # the check of `/readyz` that runs, or ran last
    openapi.install(app)
    errors.install(app)
    slots.install(app)
    bodies.install(app)
    progress.install(app)
    for router in (*ROUTERS, health.router, openapi.router, browser.router):
        app.router.routes.extend(router.routes)  # `include_router` would look through one router after the other
    return app


def application(
    nexus: Nexus,
    token: str,
    *,
    checker: TokenChecker | None = None,
    scopes: tuple[str, ...] = TOKEN_SCOPES,
    visit: Visit | None = None,
    hosts: Collection[str] | None = None,
) -> ASGIApp:
    """The ASGI application. A request below ``/v1`` needs a valid token; other paths need none.

    Args:
        nexus: the client of the operator.
        token: the operator's token; empty: there is none.
        checker: checks the tokens of namespaces. ``None``: they are refused.
        scopes: what the operator's token may do.
        visit: the visit that the link of ``nexus browse`` opens.
        hosts: the host names that a request without a valid token may name, besides addresses and ``localhost``.
            ``None``: any.

    Raises:
        ConfigurationError: no token can be valid.
    """
    settings = nexus.deployment.settings
    app: ASGIApp = Turns(BodyLimit(api(nexus, checker, visit), streamed={f"{PREFIX}/import"}))
    if settings.http_rate:
        app = RateLimit(app, settings.http_rate)
    if hosts is not None:
        app = KnownHosts(app, hosts)
    app = TokenRequired(app, token, checker, setting=SETTING, guarded=_guarded, scopes=scopes)
    if settings.http_origins:
        headers = ["Authorization", "Content-Type", HEADER]
        app = CORSMiddleware(app, settings.http_origins, allow_methods=["*"], allow_headers=headers)
    return app


def _guarded(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")
