"""The OpenAPI document of the API, which ``docs/openapi.json`` holds too."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI

from nexus_tasks.integrations.http.application import api


def document(app: FastAPI) -> dict[str, Any]:
    """The document of ``app``."""
    return app.openapi()


def as_text() -> str:
    """The document as it stands in ``docs/openapi.json``."""
    return json.dumps(document(api()), ensure_ascii=False, indent=2)
