"""The checked-in OpenAPI document is the one that the routes make."""

from __future__ import annotations

import json
from pathlib import Path

from nexus_tasks.integrations.http.application import api
from nexus_tasks.integrations.http.openapi import as_text

PAGE = Path(__file__).parents[2] / "docs" / "openapi.json"


def test_the_checked_in_document_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == as_text(api()) + "\n", "run `nexus serve --openapi > docs/openapi.json`"


def test_every_operation_says_its_scopes_and_its_problems() -> None:
    for path, methods in json.loads(PAGE.read_text(encoding="utf-8"))["paths"].items():
        for method, one in methods.items():
            assert one["description"], path
            assert one["security"][0]["token"] or one["x-operator-only"], (method, path)
            assert "application/problem+json" in one["responses"]["default"]["content"]
