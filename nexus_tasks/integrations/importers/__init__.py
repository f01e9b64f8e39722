"""Import conversations from files: JSONL, LoCoMo (a benchmark), transcripts of Claude Code, exports of mem0 and Honcho.

A fault in a file raises an error before any message is stored, but a damaged line of a transcript is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers import claude_code, honcho, jsonl, locomo, mem0
from nexus_tasks.integrations.importers.conversation import Conversation, file_error
from nexus_tasks.integrations.importers.source import STANDARD_INPUT, Source, opened
from nexus_tasks.types import check_name, check_namespace

__all__ = ["Conversation", "Format", "read"]

Format = Literal["auto", "jsonl", "locomo", "claude-code", "mem0", "honcho"]

_OTHERS = {"mem0": mem0, "honcho": honcho}  # exports of other memory systems


def read(path: Path, format: Format = "auto", *, namespace: str, session: str | None = None) -> Iterator[Conversation]:
    """Read the conversations of a file.

    The conversations are in the order of their first messages. The messages of a conversation are in the order of the
    file. The whole file is checked before the call returns. Of a file in lines, only the messages are in memory. A file
    has at most 256 MiB, 500,000 lines, and 32 MiB in a line.

    Args:
        path: the file; ``-`` is the standard input.
        format: ``jsonl``, ``locomo``, ``claude-code``, ``mem0`` or ``honcho``; see the module of each. ``auto`` detects
            the format by the file's content.
        namespace: the namespace of the conversations. A LoCoMo sample gets the namespace ``namespace.<sample_id>``.
        session: a session key. In JSONL the lines without a session get this key. The default for JSONL is the file's
            name without its suffix, or ``stdin``. In a transcript all messages get this key. The default for a
            transcript is the agent's session id. In an export of mem0 or Honcho all messages get this key. LoCoMo
            ignores ``session``.

    Raises:
        InvalidInput: the file cannot be read, is empty or too long, or does not have the format ``format``. The error
            names the line or the JSON path.
    """
    check_namespace(namespace)
    session = None if session is None else check_name("session", session)
    with opened(path) as source:
        return iter(_parsed(source, format, namespace, session))


def _parsed(source: Source, format: Format, namespace: str, session: str | None) -> list[Conversation]:
    # A transcript may end in the middle of a character, so it is parsed as bytes.
    if format == "claude-code":
        return claude_code.parse(source, namespace, session)
    if next(source.lines(), None) is None:
        raise file_error(source.path, "", "the file is empty: there is nothing to ingest")
    if format == "auto":
        if claude_code.looks_like(source):
            return claude_code.parse(source, namespace, session)
        other = next((name for name, importer in _OTHERS.items() if importer.looks_like(source)), None)
        format = cast("Format", other or ("locomo" if locomo.looks_like(source) else "jsonl"))
    if format == "locomo":
        return locomo.parse(source, namespace)
    if format in _OTHERS:
        found: list[Conversation] = _OTHERS[format].parse(source, namespace, session)
        return found
    if format == "jsonl":
        default = "stdin" if source.path == STANDARD_INPUT else source.path.stem
        return jsonl.parse(source, namespace, session or default)
    raise InvalidInput(
        f"format {format!r} is not known.", remedy="Use auto, jsonl, locomo, claude-code, mem0 or honcho."
    )
