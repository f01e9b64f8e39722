"""Serve the files of the page, and exchange the code of a link for a token."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import FileResponse, Response

from nexus_tasks.errors import NotAllowed
from nexus_tasks.integrations.http.browser.visit import Visit
from nexus_tasks.integrations.http.parameters import Body
from nexus_tasks.integrations.serving.peers import is_of_another_user

router = APIRouter(include_in_schema=False)
_FOLDER = Path(__file__).parent
_FILES = {path.name: path for path in _FOLDER.iterdir() if path.suffix in (".html", ".css", ".js", ".svg")}
# Scripts, styles and requests come from this server alone, and no other page may frame this one.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # the file is asked for again, and sent only when it has changed
}


class CodeBody(Body):
    """The code of the link that ``nexus browse`` prints."""

    code: str = Field(max_length=100)


@router.get("/")
async def page() -> Response:
    """The page. It has no memory in it: its script asks for memories, with a token."""
    return FileResponse(_FILES["index.html"], headers=_HEADERS)


@router.get("/browser/{name}")
async def file(name: str) -> Response:
    """A script, the style or the icon of the page."""
    found = _FILES.get(name)
    return FileResponse(found, headers=_HEADERS) if found else Response(status_code=404)


@router.post("/browser/key")
async def key(request: Request, body: CodeBody) -> dict[str, str]:
    """Exchange the code of a link for the token of the visit. A code is valid once.

    Raises:
        NotAllowed: this server has given no link, or the link was used already. Or another user of this machine asks:
            all users can read the link on the command line of the web browser.
    """
    visit: Visit | None = request.app.state.visit
    if visit and request.client and is_of_another_user(request.client, request.scope["server"]):
        raise NotAllowed(
            "Another user of this machine has opened the link.",
            remedy="Run `nexus browse` as the user who opens the link.",
        )
    token = visit.redeem(body.code) if visit else None
    if token is None:
        raise NotAllowed("This link is not valid, or it was used already.", remedy="Start `nexus browse` again.")
    return {"token": token}
