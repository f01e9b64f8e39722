"""Makes transcripts as Claude Code writes them, line by line."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

MONDAY = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)


@dataclass
class Transcript:
    """A transcript that is being written. Ids and times follow from its name, so that it is the same every time."""

    name: str = "0b9d3c5e"
    lines: list[str] = field(default_factory=list)
    began: datetime = MONDAY
    calls: int = 0

    def line(self, kind: str, **fields: Any) -> str:
        """One line with everything that the agent writes beside what matters; returns its ``uuid``."""
        number = len(self.lines)
        id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.name}/{number}"))
        record = {
            "parentUuid": None,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/home/ann/shop",
            "sessionId": self.name,
            "version": "2.9.1",
            "gitBranch": "main",
            "type": kind,
            "uuid": id,
            "timestamp": (self.began + timedelta(seconds=number)).isoformat().replace("+00:00", "Z"),
            "aFieldOfTomorrow": {"nested": [1, None]},
            **fields,
        }
        self.lines.append(json.dumps(record))
        return id

    def prompt(self, text: str, **fields: Any) -> str:
        """What the user typed."""
        return self.line("user", message={"role": "user", "content": text}, **fields)

    def answer(self, text: str, **fields: Any) -> str:
        """What the agent said, after some thinking."""
        self.line(
            "assistant", message=self._message([{"type": "thinking", "thinking": "Hm.", "signature": "x"}]), **fields
        )
        return self.line("assistant", message=self._message([{"type": "text", "text": text}]), **fields)

    def call(self, tool: str, result: Any, *, error: bool = False, aside: bool = False, **given: Any) -> str:
        """A tool call and its result; returns the call's id."""
        self.calls += 1
        id = f"toolu_{self.name}_{self.calls:04d}"
        block = {"type": "tool_use", "id": id, "name": tool, "input": given, "caller": {"type": "direct"}}
        self.line("assistant", message=self._message([block]), isSidechain=aside)
        answer = {"type": "tool_result", "tool_use_id": id, "content": result} | ({"is_error": True} if error else {})
        self.line("user", message={"role": "user", "content": [answer]}, toolUseResult=result, isSidechain=aside)
        return id

    def noise(self) -> None:
        """Lines that say nothing: titles, snapshots, the program's own."""
        self.line("summary", summary="A title", leafUuid="x")
        self.line("file-history-snapshot", snapshot={"files": {}}, messageId="x")
        self.line("system", subtype="informational", content="Running hooks")
        self.line("user", message={"role": "user", "content": "Caveat: The messages below were generated"}, isMeta=True)
        self.line("user", message={"role": "user", "content": "<local-command-stdout>ok</local-command-stdout>"})
        self.line("progress-of-tomorrow", data=[1, 2])

    def compact(self, summary: str = "This session continues an earlier one.") -> None:
        """What compaction appends."""
        self.line("system", subtype="compact_boundary", content="Conversation compacted")
        self.line("user", message={"role": "user", "content": summary}, isCompactSummary=True)

    def text(self) -> str:
        """The file's text."""
        return "".join(f"{line}\n" for line in self.lines)

    def write(self, path: Path) -> Path:
        """Write the file anew."""
        path.write_text(self.text(), encoding="utf-8")
        return path

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        id = f"msg_{len(self.lines)}"
        return {
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": content,
            "usage": {"output_tokens": 3},
        }


def day_at_work(began: datetime = MONDAY) -> Transcript:
    """A session with everything in it."""
    made = Transcript(began=began)
    made.noise()
    made.prompt("Please fix the failing test in the cart.")
    made.answer("I will look at the test first.")
    made.call("Bash", "FAILED tests/test_cart.py", error=True, command="pytest -q", description="Run tests")
    made.call("Edit", "The file has been updated.", file_path="/home/ann/shop/cart.py", old_string="a", new_string="b")
    made.call(
        "Read", [{"type": "text", "text": "line\n" * 400_000}, {"type": "image", "source": {}}], file_path="/x.log"
    )
    made.call("Task", "done", description="Search", prompt="Find every use of the cart", subagent_type="Explore")
    made.prompt("Find every use of the cart", isSidechain=True)
    made.call("Grep", "cart.py:1", aside=True, pattern="cart")
    made.answer("There are three uses of it.", isSidechain=True)
    made.compact()
    made.prompt("We deploy on Tuesdays, remember that.")
    made.answer("Noted.")
    made.prompt("<command-name>/review</command-name>\n<command-args>cart.py</command-args>")
    return made
