"""Import LoCoMo (Maharana et al., ACL 2024), a benchmark of long conversations between two people.

Each sample becomes a namespace (``NS.<sample_id>``). Each ``session_N`` with turns becomes a session. Each turn becomes
a message of role ``user``. The turn's speaker is the message's author, and the turn's ``dia_id`` is the message's id.
The caption of a turn's image is appended to the message's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, cast

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers.conversation import (
    Conversation,
    ConversationBuilder,
    field,
    file_error,
    parsed,
    required_field,
)
from nexus_tasks.integrations.importers.source import Source
from nexus_tasks.text import shorten
from nexus_tasks.types import Message, check_namespace

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = re.compile(r"(\d{1,2}):(\d\d)\s*([ap])m on (\d{1,2}) ([a-z]{3})[a-z]*,? (\d{4})", re.IGNORECASE)
_SESSION = re.compile(r"session_([0-9]{1,9})")


def looks_like(source: Source) -> bool:
    """Whether a file is LoCoMo: one JSON document that is a list, or an object with the key ``conversation``."""
    begin = source.beginning(1)
    if begin != "{":
        return begin == "["
    two = [line for _, line in islice(source.lines(), 2)]
    try:
        first = parsed(two[0])
    except ValueError:  # the object takes several lines, so the text is not JSONL
        return len(two) > 1 and any('"conversation"' in line for _, line in source.lines())
    return isinstance(first, dict) and "conversation" in first and "content" not in first


def parse(source: Source, namespace: str) -> list[Conversation]:
    """Read the conversations of all samples. Every sample is checked.

    Raises:
        InvalidInput: a part of the file is not in LoCoMo's format. The error names the part's JSON path and the fault.
    """
    try:
        document = parsed(source.text())
    except ValueError as error:
        raise file_error(source.path, "", f"not JSON: {error}") from None
    if isinstance(document, dict):
        document = [document]
    if not isinstance(document, list) or not document:
        raise file_error(source.path, "$", "LoCoMo is a list of samples")
    sessions = ConversationBuilder()
    for index, sample in enumerate(document):
        where = f"$[{index}]"
        try:
            space = check_namespace(f"{namespace}.{required_field(sample, 'sample_id', str)}")
            conversation = required_field(sample, "conversation", dict)
        except InvalidInput as error:
            raise file_error(source.path, where, f"not a LoCoMo sample: {error.message}") from None
        _read_sample(source.path, f"{where}.conversation", conversation, space, sessions)
    return sessions.conversations()


def _read_sample(
    path: Path, where: str, conversation: Mapping[str, Any], space: str, sessions: ConversationBuilder
) -> None:
    for key in sorted(filter(_SESSION.fullmatch, conversation), key=lambda key: int(key.removeprefix("session_"))):
        at = f"{where}.{key}"
        try:
            turns = required_field(conversation, key, list)
            if not turns:
                continue
            began = _time(required_field(conversation, f"{key}_date_time", str))
            for index, turn in enumerate(turns):
                at = f"{where}.{key}[{index}]"
                # LoCoMo has a time only for the whole session. Each turn gets a time 1 s after the previous turn, so
                # that sorting messages by time keeps the order of the turns.
                sessions.add(space, key, _message(turn, began + timedelta(seconds=index)))
        except OverflowError:
            raise file_error(path, at, "its time is beyond the year 9999") from None
        except InvalidInput as error:
            raise file_error(path, at, error.message) from None


def _message(turn: object, occurred_at: datetime) -> Message:
    text, author, id = (
        required_field(turn, "text", str),
        required_field(turn, "speaker", str),
        required_field(turn, "dia_id", str),
    )
    caption = field(cast("dict[str, Any]", turn), "blip_caption", str)
    content = " ".join(filter(None, (text.strip(), f"[image: {caption}]" if caption else "")))
    return Message(content=content, author=author, id=id, occurred_at=occurred_at)


def _time(text: str) -> datetime:
    """Parse a time such as "1:56 pm on 8 May, 2023" as UTC.

    This function does not use ``strptime``, whose month names depend on the locale.
    """
    match = _TIME.fullmatch(text.strip())
    try:
        if match is None or int(match[1]) > 12:
            raise ValueError
        hour, minute, half, day, month, year = match.groups()
        hours = int(hour) % 12 + 12 * (half.lower() == "p")
        return datetime(int(year), _MONTHS.index(month.lower()) + 1, int(day), hours, int(minute), tzinfo=UTC)
    except ValueError:
        raise InvalidInput(f"{shorten(text, 40)!r} is not a time such as '1:56 pm on 8 May, 2023'") from None
