"""The tool calls of messages, in whatever form a program has stored them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nexus_tasks.cognition.extraction.tool_calls import count_calls, has_unanswered_calls, memory_writing_messages


def message(*calls: dict[str, Any]) -> Any:
    return SimpleNamespace(id=1, role="assistant", content="", tool_calls=list(calls))


@pytest.mark.parametrize("odd", [["Write"], {"name": "Write"}, 7, 1.5, True, None, "", [[]]], ids=str)
def test_a_call_with_an_odd_name_writes_no_memory(odd: Any) -> None:
    calls = (
        {"name": odd, "input": {"file_path": "/memories/a.md", "command": odd}},
        {"name": odd, "input": odd, "id": odd},
        {"tool": odd, "arguments": "/memories/a.md"},
        {"function": {"name": odd, "arguments": '{"path": "/memories/a.md"}'}},
        {"function": odd},
    )
    assert memory_writing_messages([message(*calls)]) == set()
    assert count_calls([message(*calls)]) == 5
    assert has_unanswered_calls([message(*calls)])
    assert memory_writing_messages([message(*calls, {"name": "Write", "input": {"path": "/memories/a.md"}})]) == {1}
