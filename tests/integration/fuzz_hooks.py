"""What the fuzzer does not know of this API. Schemathesis loads this file (``SCHEMATHESIS_HOOKS``)."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, Response
from schemathesis.specs.openapi import checks


@schemathesis.serializer("application/x-ndjson")
def lines(_context: Any, value: Any) -> bytes:
    """JSON lines are the body of an import. Any text is a body; most are no export."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@schemathesis.check
def deleted_is_gone(context: CheckContext, response: Response, case: Case) -> None:
    """Schemathesis' check ``use_after_free``, except that a dropped job is still shown, as one that was dropped."""
    shown = case.operation.path == "/v1/jobs/{job_id}" and response.status_code == 200
    if not (shown and response.json()["status"] == "dropped"):
        checks.use_after_free(context, response, case)
