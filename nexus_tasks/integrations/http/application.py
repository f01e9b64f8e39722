"""The application: the routes, behind the check of tokens and the limits of requests."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from nexus_tasks import __version__
from nexus_tasks.client import Nexus
from nexus_tasks.integrations.http import errors, health, jobs, memories, namespaces, recall, sessions
from nexus_tasks.integrations.http.browser import routes as browser
from nexus_tasks.integrations.http.browser.visit import Visit
from nexus_tasks.integrations.serving.connections import BodyLimit
from nexus_tasks.integrations.serving.tokens import TokenRequired
from nexus_tasks.integrations.serving.turns import Turns
from nexus_tasks.services.access import TokenChecker
from nexus_tasks.types import TOKEN_SCOPES

SETTING = "NEXUS_HTTP_TOKEN"
PREFIX = "/v1"
ROUTERS = (memories.router, recall.router, sessions.router, namespaces.router, jobs.router)


def api(nexus: Nexus | None = None, visit: Visit | None = None) -> FastAPI:
    """The routes alone. They find the caller's access in ``access.current``, which :func:`application` sets.

    Args:
        nexus: the client that the routes use. ``None``: the routes are only described.
        visit: the visit that the link of ``nexus browse`` opens.
    """
    # The pages of Swagger and ReDoc load scripts from other hosts, so there are none.
    app = FastAPI(title="nexus-tasks", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.nexus, app.state.visit = nexus, visit
    errors.install(app)
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    app.include_router(health.router)
    app.include_router(browser.router)
    return app


def application(
    nexus: Nexus,
    token: str,
    *,
    checker: TokenChecker | None = None,
    scopes: tuple[str, ...] = TOKEN_SCOPES,
    visit: Visit | None = None,
) -> ASGIApp:
    """The ASGI application. A request below ``/v1`` needs a valid token; other paths need none.

    Args:
        nexus: the client of the operator.
        token: the operator's token; empty: there is none.
        checker: checks the tokens of namespaces. ``None``: they are refused.
        scopes: what the operator's token may do.
        visit: the visit that the link of ``nexus browse`` opens.

    Raises:
        ConfigurationError: no token can be valid.
    """
    app = Turns(BodyLimit(api(nexus, visit)))
    return TokenRequired(app, token, checker, setting=SETTING, guarded=_guarded, scopes=scopes)


def _guarded(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")
