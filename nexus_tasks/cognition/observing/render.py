"""A message as a reader of an observed session sees it, and what it weighs. Every bound here is measured in this."""

from __future__ import annotations

import json
import re

from nexus_tasks.storage.models import Memory
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import to_utc

MOST_OF_A_CALL = 400  # characters of a tool call's arguments that are shown
_REASONING = re.compile(r"<(thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_ATTACHED = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,[A-Za-z0-9+/=\s]{64,}")


def said(message: Memory) -> str:
    """What a message says, its tool calls included; reasoning is left out, an attachment is a marker.

    Empty for a system message, which is the agent's own and in no log.
    """
    if message.role == "system":
        return ""
    text = _ATTACHED.sub(r"[attachment: \1]", _REASONING.sub("", message.content)).strip()
    calls = (_called(call) for call in message.tool_calls or ())
    return "\n".join(part for part in (text, *calls) if part)


def _called(call: object) -> str:
    if not isinstance(call, dict) or call.get("type") in ("thinking", "reasoning"):
        return ""
    name = call.get("name") or "tool"
    given = call.get("input", call.get("arguments"))
    shown = given if isinstance(given, str) else "" if given is None else json.dumps(given, ensure_ascii=False)
    return f"[calls {name}: {shorten(' '.join(shown.split()), MOST_OF_A_CALL)}]" if shown else f"[calls {name}]"


def line(message: Memory) -> str:
    """The message with its citation, time and author; later lines are indented. Empty when it says nothing."""
    text = said(message)
    if not text:
        return ""
    when = to_utc(message.occurred_at)
    return f"[m{message.id}] {when:%Y-%m-%d %H:%M} {message.author}: " + "\n    ".join(text.splitlines())


def weight(message: Memory) -> int:
    """Tokens of :func:`line` with its line break, estimated as characters / 4, rounded up; 0 when it says nothing."""
    shown = line(message)
    return estimate_tokens(shown + "\n") if shown else 0
