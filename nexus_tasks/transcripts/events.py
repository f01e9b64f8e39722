"""Prepare an event of a coding agent's hook for the session buffer: replace secrets, and shorten long texts.

The events of Codex have the names and fields of those of Claude Code. :func:`as_of_claude_code` gives them to the
events of Cursor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nexus_tasks.transcripts.codex import asked
from nexus_tasks.transcripts.excerpt import excerpt
from nexus_tasks.transcripts.reader import shortened
from nexus_tasks.transcripts.scrubbing import scrub

CLAUDE_CODE, CODEX, CURSOR = "claude-code", "codex", "cursor"
AGENTS = (CLAUDE_CODE, CODEX, CURSOR)  # also the context types of the agents' entries in the buffer
STORE_AFTER = frozenset(("Stop", "SubagentStop", "PreCompact", "SessionEnd"))
_KNOWN = STORE_AFTER | {"UserPromptSubmit", "PostToolUse", "AgentResponse"}
_MOST_PROMPT, _MOST_RESULT = 100_000, 2_000  # characters
_OF_CURSOR = {
    "sessionStart": "SessionStart",
    "beforeSubmitPrompt": "UserPromptSubmit",
    "postToolUse": "PostToolUse",
    "postToolUseFailure": "PostToolUse",
    "afterAgentResponse": "AgentResponse",  # Claude Code has no such event: its transcript has the answer
    "preCompact": "PreCompact",
    "stop": "Stop",
    "sessionEnd": "SessionEnd",
}


def is_of_cursor(event: Mapping[str, Any]) -> bool:
    """Whether Cursor sent an event. Cursor also runs the hooks in the settings file of Claude Code."""
    return "cursor_version" in event or "conversation_id" in event


def as_of_claude_code(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event of Cursor with the names and fields of Claude Code.

    The path of Cursor's transcript is left out, because Cursor does not document the transcript's format.
    """
    name, folders = event["hook_event_name"], event.get("workspace_roots")
    result = event.get("tool_output")
    if "error_message" in event:
        result = {"error": f"Error: {event['error_message']}"}
    elif isinstance(result, str) and result.startswith("{"):
        with suppress(ValueError, RecursionError):  # else it is no JSON, but the text itself
            result = json.loads(result)
    found = {
        "hook_event_name": _OF_CURSOR.get(name, name),
        "session_id": event.get("conversation_id") or event["session_id"],
        "cwd": folders[0] if isinstance(folders, list) and folders else event.get("cwd"),
        "tool_response": result,
        "answer": event.get("text"),
        "turn": event.get("generation_id"),  # another one after each prompt
    }
    kept = ("prompt", "tool_name", "tool_input", "tool_use_id")
    return found | {field: event[field] for field in kept if field in event}


def payload(agent: str, event: dict[str, Any]) -> dict[str, Any] | None:
    """The part of an event that goes into the buffer.

    ``None`` for the event ``SessionStart``, for unknown events, and for those of Codex's subagents, whose transcripts
    are not read.
    """
    name = event["hook_event_name"]
    if name not in _KNOWN or (agent == CODEX and event.get("agent_id")):
        return None
    kept: dict[str, Any] = {"event": name}
    for field in ("transcript_path", "agent_transcript_path"):
        if isinstance(event.get(field), str):
            kept[field] = event[field]
    if agent == CURSOR and isinstance(event.get("turn"), str):
        kept["turn"] = event["turn"]
    if name == "UserPromptSubmit":
        prompt = str(event.get("prompt", ""))
        kept["prompt"] = excerpt(asked(prompt) if agent == CODEX else prompt, _MOST_PROMPT, scrub)
    if name == "PostToolUse":
        given = event.get("tool_input")
        kept["call"] = {"name": scrub(str(event.get("tool_name", "tool"))), "input": shortened(given or {})}
        if isinstance(event.get("tool_use_id"), str):
            kept["call"]["id"] = event["tool_use_id"]
        kept["result"] = excerpt(_as_text(event.get("tool_response")), _MOST_RESULT, scrub)
    answer = event.get("last_assistant_message") if agent == CODEX and name == "Stop" else event.get("answer")
    if isinstance(answer, str) and answer:
        kept["answer"] = excerpt(answer, _MOST_PROMPT, scrub)
    return kept


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):  # the result of Bash and similar tools
        texts = [value.get(name) for name in ("output", "stdout", "stderr", "content", "error")]
        return "\n".join(text for text in texts if isinstance(text, str) and text)
    return ""
