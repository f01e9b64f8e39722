"""Makes transcripts as Codex writes them, line by line, and the events of its hook and of Cursor's."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SESSION = "019f2a71-5c0e-7a3b-9d54-0c1f6f3f9b21"
TURN = {"turn_id": "019f2a71-5c11", "model": "gpt-5.3-codex", "permission_mode": "default"}


@dataclass
class Rollout:
    """A transcript that is being written, with the lines that say nothing between the others."""

    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    lines: list[str] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        meta = {"id": SESSION, "cwd": "/home/ann/shop", "originator": "codex_cli_rs", "cli_version": "0.153.4"}
        self.line("session_meta", **meta, base_instructions={"text": "You are Codex."}, git={"branch": "main"})
        self.item("message", role="developer", content=[{"type": "input_text", "text": "<permissions>…"}])
        self.item("message", role="user", content=[{"type": "input_text", "text": "<environment_context>…"}])

    def line(self, kind: str, /, **payload: Any) -> None:
        """One line."""
        when = (self.began + timedelta(milliseconds=10 * len(self.lines))).isoformat().replace("+00:00", "Z")
        self.lines.append(json.dumps({"timestamp": when, "type": kind, "payload": payload}))

    def item(self, kind: str, /, **payload: Any) -> None:
        """A line of the log that the model sees."""
        self.line("response_item", type=kind, **payload)

    def prompt(self, text: str, **more: Any) -> None:
        """What the user typed. Codex writes it twice."""
        self.line("event_msg", type="task_started", turn_id=TURN["turn_id"])
        self.line("turn_context", cwd="/home/ann/shop", model=TURN["model"], approval_policy="on-request")
        self.item("message", role="user", content=[{"type": "input_text", "text": text}])
        self.line("event_msg", type="user_message", message=text, images=[], local_images=[], **more)

    def answer(self, text: str) -> None:
        """What the agent said, after some thinking. Codex writes it twice."""
        self.item("reasoning", summary=[], content=None, encrypted_content="gAAAA")
        self.line("event_msg", type="agent_message", message=text, phase="final_answer")
        self.item("message", role="assistant", content=[{"type": "output_text", "text": text}], phase="final_answer")
        self.line("event_msg", type="token_count", info=None, rate_limits={})

    def call(self, tool: str, output: Any, **arguments: Any) -> str:
        """A call of a function, and its result; returns the call's id."""
        self.calls += 1
        id = f"call_{self.calls:04d}"
        self.item("function_call", name=tool, arguments=json.dumps(arguments), call_id=id)
        self.item("function_call_output", call_id=id, output=output)
        return id

    def patch(self, text: str) -> str:
        """A call of `apply_patch`; returns its id."""
        self.calls += 1
        id = f"call_{self.calls:04d}"
        self.item("custom_tool_call", status="completed", name="apply_patch", input=text, call_id=id)
        self.item("custom_tool_call_output", call_id=id, output="Exit code: 0\nWall time: 0 seconds\nOutput:\nSuccess.")
        return id

    def write(self, path: Path) -> Path:
        """Write the lines."""
        path.write_text("".join(f"{line}\n" for line in self.lines), encoding="utf-8")
        return path


def of_codex(name: str, transcript: Path | None = None, **fields: Any) -> dict[str, Any]:
    """An event as Codex sends it."""
    common = {"session_id": SESSION, "transcript_path": str(transcript) if transcript else None}
    more = {"model": TURN["model"], "permission_mode": "default"} if name == "SessionStart" else TURN
    end = {"reason": "other"}
    return (
        common | {"cwd": "/home/ann/shop", "hook_event_name": name} | (end if name == "SessionEnd" else more) | fields
    )


def of_cursor(name: str, **fields: Any) -> dict[str, Any]:
    """An event as Cursor sends it."""
    id = "668320d2-2fd8-4888-b33c-2a466fec86e7"
    common = {
        "conversation_id": id,
        "generation_id": "490b90b7-a2ce-4c2c-bb76-cb77b125df2f",
        "model": "composer-2",
        "hook_event_name": name,
        "cursor_version": "3.12.17",
        "workspace_roots": ["/home/ann/shop"],
        "user_email": "ann@example.com",
        "transcript_path": "/home/ann/.cursor/projects/shop/agent-transcripts/668320d2/668320d2.jsonl",
    }
    return common | ({"session_id": id} if name.startswith("session") else {}) | fields
