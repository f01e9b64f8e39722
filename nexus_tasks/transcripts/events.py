"""Prepare an event of the hook for the session buffer: replace secrets, and shorten long texts."""

from __future__ import annotations

from typing import Any

from nexus_tasks.transcripts.claude_code import shortened
from nexus_tasks.transcripts.excerpt import excerpt
from nexus_tasks.transcripts.scrubbing import scrub

CONTEXT_TYPE = "claude-code"
STORE_AFTER = frozenset(("Stop", "SubagentStop", "PreCompact", "SessionEnd"))
_KNOWN = STORE_AFTER | {"SessionStart", "UserPromptSubmit", "PostToolUse"}
_MOST_PROMPT, _MOST_RESULT = 100_000, 2_000  # characters


def payload(event: dict[str, Any]) -> dict[str, Any] | None:
    """The part of an event that goes into the buffer. ``None`` for the event ``SessionStart`` and unknown events."""
    name = event["hook_event_name"]
    if name not in _KNOWN or name == "SessionStart":
        return None
    kept: dict[str, Any] = {"event": name}
    for field in ("transcript_path", "agent_transcript_path"):
        if isinstance(event.get(field), str):
            kept[field] = event[field]
    if name == "UserPromptSubmit":
        kept["prompt"] = excerpt(str(event.get("prompt", "")), _MOST_PROMPT, scrub)
    if name == "PostToolUse":
        given = event.get("tool_input")
        kept["call"] = {"name": scrub(str(event.get("tool_name", "tool"))), "input": shortened(given or {})}
        if isinstance(event.get("tool_use_id"), str):
            kept["call"]["id"] = event["tool_use_id"]
        kept["result"] = excerpt(_as_text(event.get("tool_response")), _MOST_RESULT, scrub)
    return kept


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):  # the result of Bash and similar tools
        texts = [value.get(name) for name in ("stdout", "stderr", "content", "error")]
        return "\n".join(text for text in texts if isinstance(text, str) and text)
    return ""
