"""Render one message of an observed session as text, and estimate its tokens.

All token bounds of observation count the tokens that :func:`tokens_of` returns.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from nexus_tasks.cognition import prompts
from nexus_tasks.storage.models import Memory
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import clean_text, to_utc

# Both bounds are chosen by hand, not measured. At most this many characters of a tool call's arguments are shown.
MOST_OF_A_CALL = 400
LONGEST_TASK = 1_000  # the most characters of the current task, and also of the suggested response
_TOKENS = "_tokens_as_shown"  # the name under which a message that was read keeps its tokens
_REASONING_TAG = re.compile(r"<(/?)(thinking|reasoning)>", re.IGNORECASE)
# The lines of a wrapped attachment have 64 or 76 characters. The words behind an attachment are shorter than 32.
_ATTACHED = re.compile(
    r"data:([\w.+-]+/[\w.+-]+);base64,\s{0,20}[A-Za-z0-9+/]{64,}+(?:\s{1,20}[A-Za-z0-9+/]{32,}+)*+"
    r"(?:\s{1,20}[A-Za-z0-9+/]{1,31}(?==))?={0,2}"
)


def text_of(message: Memory) -> str:
    """The text of a message with its tool calls, without reasoning. A marker replaces an attachment.

    A system message gives an empty text, because a system message is the agent's prompt and is not observed. A message
    that has expired gives one too.
    """
    if message.role == "system" or (message.expires_at is not None and message.expires_at <= datetime.now(UTC)):
        return ""
    text = spoken(message.content)
    calls = (_call_text(call) for call in message.tool_calls or ())
    return "\n".join(part for part in (text, *calls) if part)


def spoken(text: str, *, cut: bool = False) -> str:
    """The text of a message without reasoning. A marker replaces an attachment.

    Args:
        cut: ``text`` is the beginning of a longer text. Reasoning that does not end in it goes on behind it.
    """
    return _ATTACHED.sub(r"[attachment: \1]", _without_reasoning(text, cut)).strip()


def _without_reasoning(text: str, cut: bool = False) -> str:
    """``text`` without each part from a tag of reasoning to the next closing tag of that name.

    In a text that is ``cut``, a part without a closing tag lasts until the end.
    """
    tags = [(tag, tag[2].lower()) for tag in _REASONING_TAG.finditer(text)]
    last_end = {name: tag.start() for tag, name in tags if tag[1]}
    parts, done, opened, reasoning = list[str](), 0, 0, ""
    for tag, name in tags:
        if not reasoning and not tag[1] and (cut or last_end.get(name, -1) > tag.start()):
            opened, reasoning = tag.start(), name
        elif tag[1] and name == reasoning:
            parts.append(text[done:opened])
            done, reasoning = tag.end(), ""
    rest = text[done:opened] if reasoning else text[done:]  # reasoning is open at the end of a cut text only
    return "".join((*parts, rest))


def _call_text(call: object) -> str:
    if not isinstance(call, dict) or call.get("type") in ("thinking", "reasoning"):
        return ""
    name = call.get("name") or "tool"
    given = call.get("input", call.get("arguments"))
    shown = given if isinstance(given, str) else "" if given is None else json.dumps(given, ensure_ascii=False)
    return f"[calls {name}: {shorten(' '.join(shown.split()), MOST_OF_A_CALL)}]" if shown else f"[calls {name}]"


def cited_line(message: Memory) -> str:
    """The text of a message, after its citation, time and author. A message without text gives ``""``.

    All lines of the message after the first line are indented by four spaces.
    """
    text = text_of(message)
    if not text:
        return ""
    when = to_utc(message.occurred_at)
    return f"[m{message.id}] {when:%Y-%m-%d %H:%M} {message.author}: " + "\n    ".join(text.splitlines())


def tokens_of(message: Memory) -> int:
    """Tokens of :func:`cited_line` with its line break: characters / 4, rounded up. A message without text has 0."""
    known = message.__dict__.get(_TOKENS)  # one read counts the tokens of a message about four times
    if known is None:
        shown = cited_line(message)
        known = message.__dict__[_TOKENS] = estimate_tokens(shown + "\n") if shown else 0
    return int(known)


def one_line(text: str | None) -> str:
    """The task or response that a model wrote, on one line of at most 1,000 characters. ``None`` gives ``""``."""
    return shorten(prompts.inert(" ".join(clean_text(text or "").split())), LONGEST_TASK)
