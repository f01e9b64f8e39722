"""Let the fuzzer send JSON lines: the body of an import. Schemathesis loads this file (``SCHEMATHESIS_HOOKS``)."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(_context: Any, value: Any) -> bytes:
    """Any text is a body; most are no export."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
