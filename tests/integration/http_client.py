"""A client of the HTTP API whose every answer is compared with ``docs/openapi.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from nexus_tasks import Nexus
from nexus_tasks.integrations.http.application import application
from nexus_tasks.integrations.serving.listening import LOOPBACK
from nexus_tasks.services.access import TokenChecker
from tests.integration.served import TOKEN, served
from tests.sandbox import Sandbox

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"


@contextmanager
def api(here: Sandbox, token: str = TOKEN) -> Iterator[httpx2.Client]:
    """A client of a server, with the operator's token."""
    nexus = Nexus(here.deployment)
    with served(lambda _: application(nexus, TOKEN, checker=TokenChecker(here.deployment))) as port:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"http://{LOOPBACK}:{port}"
        with httpx2.Client(base_url=url, headers=headers, timeout=60, event_hooks={"response": [conforms]}) as client:
            yield client


def ok(response: httpx2.Response) -> Any:
    """The document of an answer that is no error."""
    assert response.status_code < 300, response.text
    return response.json()


def as_token(token: str) -> dict[str, str]:
    """The headers of another caller."""
    return {"Authorization": f"Bearer {token}"}


@cache
def described() -> dict[str, Any]:
    """The checked-in document."""
    return dict(json.loads(DOCUMENT.read_text(encoding="utf-8")))


def operation(method: str, path: str) -> tuple[str, dict[str, Any]] | None:
    """The path of the document that ``path`` fits, and its operation. A path without parameters goes first."""
    for template in sorted(described()["paths"], key=lambda one: "{" in one):
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            found = described()["paths"][template].get(method.lower())
            if found:
                return template, found
    return None


def conforms(response: httpx2.Response) -> None:
    """Check that an answer is as the document says."""
    found = operation(response.request.method, response.request.url.path)
    if found is None:
        return
    kind = response.headers.get("Content-Type", "").partition(";")[0]
    if response.status_code >= 300:
        assert kind == "application/problem+json", response.status_code
        schema: Any = {"$ref": "#/components/schemas/Problem"}
    else:
        answers = found[1]["responses"]
        assert str(response.status_code) in answers, (found[0], response.status_code)
        assert kind in answers[str(response.status_code)]["content"], (found[0], kind)
        if kind != "application/json":
            return
        schema = answers[str(response.status_code)]["content"][kind]["schema"]
    response.read()
    whole = {**schema, "components": described()["components"]}
    error = best_match(Draft202012Validator(whole).iter_errors(response.json()))
    assert error is None, f"{found[0]}: {error.message} at {list(error.absolute_path)}"
