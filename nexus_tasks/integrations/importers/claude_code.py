"""Import transcripts of Claude Code (``~/.claude/projects/*/*.jsonl``). Each file becomes one session.

The session's key is the agent's session id. Placeholders replace secrets. The importer skips lines without a message,
and damaged lines: a transcript may be cut off, and a new version of the agent may change the fields.
"""

from __future__ import annotations

import json
from itertools import islice

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers.conversation import Conversation, file_error
from nexus_tasks.integrations.importers.source import Source
from nexus_tasks.services.transcript_messages import message_of
from nexus_tasks.transcripts.claude_code import Reader
from nexus_tasks.types import Message, check_name

_FIRST_LINES = 50


def looks_like(source: Source) -> bool:
    """Whether one of the first 50 lines is a line of a transcript."""
    for line in islice(source.raw_lines(), _FIRST_LINES):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and "content" not in record and "sessionId" in record and "type" in record:
            return True
    return False


def parse(source: Source, namespace: str, session: str | None) -> list[Conversation]:
    """The conversation of a transcript, in a list. The list is empty when the file contains no message.

    Raises:
        InvalidInput: no line of the file is a line of a transcript.
    """
    reader = Reader()
    seen = dict[str, Message]()
    for fields in reader.messages(source.raw_lines()):
        try:
            message = message_of(fields)
        except (InvalidInput, ValueError):
            reader.broken += 1
        else:
            seen.setdefault(str(message.id), message)
    if not seen and reader.session_id is None:
        raise file_error(source.path, "", "not a transcript of Claude Code: no line has a sessionId")
    key = check_name("session", session or reader.session_id or source.path.stem)
    return [Conversation(namespace=namespace, session_key=key, messages=tuple(seen.values()))] if seen else []
