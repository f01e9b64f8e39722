"""What the fuzzer does not know of this API. Schemathesis loads this file (``SCHEMATHESIS_HOOKS``)."""

from __future__ import annotations

import json
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
    if not (response.status_code == 200 and status_told(case.operation.path, response) == "dropped"):
        checks.use_after_free(context, response, case)


def status_told(path: str, response: Response) -> str | None:
    """The status that an answer about a job says: that of the last event, in a stream of events."""
    if path == "/v1/jobs/{job_id}":
        job = response.json()
    elif path == "/v1/jobs/{job_id}/events":
        job = json.loads([line for line in response.text.splitlines() if line.startswith("data: ")][-1][6:])
    else:
        return None
    return str(job["status"])
