"""Export and import all memory of a namespace, as JSON lines."""

from __future__ import annotations

import io
import tempfile
from typing import TextIO, cast

from fastapi import Request
from starlette.responses import Response

from nexus_tasks import limits
from nexus_tasks.errors import TooLarge
from nexus_tasks.integrations.http.caller import ChangingOperator, Reader
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.parameters import Namespace
from nexus_tasks.integrations.http.repeats import repeat
from nexus_tasks.integrations.http.slots import LONG_CALL
from nexus_tasks.integrations.http.streams import Pipe, Stream, json_text
from nexus_tasks.types import TransferReceipt

router = routes("transfer")
LINES = "application/x-ndjson"
_IN_MEMORY = 1_000_000  # bytes of an import that are kept in memory; the rest is in a file
_LINES = {LINES: {"schema": {"description": "One JSON document per line.", **json_text("ExportLine")}}}


@router.get(
    "/export",
    dependencies=[LONG_CALL],
    responses={200: {"content": _LINES}},
    response_class=Response,
    response_model=None,
)
async def export(caller: Reader, namespace: Namespace = None) -> Response:
    """Write all messages and memories of a namespace, one JSON document per line.

    The last line says that the export is complete. A stream without it was cut off, and an import refuses it.
    """
    nexus, name = await caller.space(namespace)
    await nexus.anamespace(name)  # there is such a namespace, or the answer is 404
    pipe = Pipe()
    return Stream(pipe.read_from(lambda: nexus.aexport(name, cast(TextIO, pipe))), media_type=LINES)


@router.post(
    "/import",
    dependencies=[LONG_CALL],
    openapi_extra={"requestBody": {"required": True, "content": _LINES}},
)
@repeat("no key")
async def import_(request: Request, caller: ChangingOperator, namespace: Namespace = None) -> TransferReceipt:
    """Read an export into an empty namespace. The body is the export. After an error, nothing is stored.

    Only the operator may: an export has settings, such as the budget.
    """
    nexus, name = await caller.space(namespace)
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > limits.HTTP_IMPORT_BYTES:
                raise TooLarge(
                    f"The body has more than {limits.HTTP_IMPORT_BYTES:,} bytes; nothing was stored.",
                    remedy="Import the file with `nexus import`, which has no such limit.",
                )
            file.write(chunk)
        file.seek(0)
        return await nexus.aimport_(name, io.TextIOWrapper(file, encoding="utf-8"))
