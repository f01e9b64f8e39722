"""Reading conversations from files. A file is checked as a whole first: what is wrong anywhere stores nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers import claude_code, jsonl, locomo
from nexus_tasks.integrations.importers.conversation import Conversation, decoded, wrong
from nexus_tasks.types import check_name, check_namespace

__all__ = ["Conversation", "Format", "read"]

Format = Literal["auto", "jsonl", "locomo", "claude-code"]


def read(path: Path, format: Format = "auto", *, namespace: str, session: str | None = None) -> Iterator[Conversation]:
    """The conversations of a file, in the order in which it begins them, each with its messages in order.

    The whole file is read into memory and checked before this returns.

    Args:
        path: ``jsonl`` (see :mod:`.jsonl`), ``locomo`` (see :mod:`.locomo`), ``claude-code`` (see :mod:`.claude_code`),
            or with ``auto`` any of them, told by content.
        format: how to read it.
        namespace: where the conversations belong; LoCoMo's are in ``namespace.<sample_id>``.
        session: the key of messages that name no session; default: the file's name without its ending. Of a transcript
            the key in any case; default: the agent's own.

    Raises:
        InvalidInput: the file cannot be read, is empty, or is not what ``format`` says; names the line or JSON path.
    """
    check_namespace(namespace)
    session = None if session is None else check_name("session", session)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror or error}.", remedy="Name a file that exists and may be read."
        ) from None
    if format == "claude-code":  # may end in the middle of a character
        return iter(claude_code.parse(path, data, namespace, session))
    text = decoded(path, data)
    if not text.strip():
        raise wrong(path, "", "the file is empty: there is nothing to ingest")
    if format == "auto":
        if claude_code.looks_like(text):
            return iter(claude_code.parse(path, data, namespace, session))
        format = "locomo" if locomo.looks_like(text) else "jsonl"
    if format == "locomo":
        return iter(locomo.parse(path, text, namespace))
    if format == "jsonl":
        return iter(jsonl.parse(path, text, namespace, session or path.stem))
    raise InvalidInput(f"format {format!r} is not known.", remedy="Use auto, jsonl, locomo or claude-code.")
