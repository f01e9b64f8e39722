"""The hooks of Codex and Cursor: their events, as these agents send them, become messages exactly once."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Message, Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.integrations.coding_agents import hook
from nexus_tasks.services import buffer_flush, context_cache, idle_sessions
from nexus_tasks.transcripts.project import project_namespace
from tests.integration.inline import work
from tests.integration.test_clocks import clock_is
from tests.sandbox import Sandbox
from tests.transcripts.codex import SESSION, Rollout, of_codex, of_cursor

NS = "shop"
PATCH = "*** Begin Patch\n*** Update File: cart.py\n@@\n-x\n+y\n*** Add File: tax.py\n+z\n*** End Patch"
FAILED = "Chunk ID: 4f\nWall time: 1.2 seconds\nProcess exited with code 1\nOutput:\nFAILED test_cart.py"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_store_in_background", lambda: None)
    for name in ("CLAUDE_PROJECT_DIR", "NEXUS_HOOK_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)


def call(agent: str, event: dict[str, Any], *arguments: str) -> Any:
    """Call the hook in this process; the document that it prints."""
    before = sys.stdin, sys.stdout
    sys.stdin, sys.stdout = io.TextIOWrapper(io.BytesIO(json.dumps(event).encode())), io.StringIO()
    try:
        assert hook.main(arguments or ["--namespace", NS], agent=agent) == 0
        printed = sys.stdout.getvalue()
    finally:
        sys.stdin, sys.stdout = before
    return json.loads(printed) if printed else None


def store() -> buffer_flush.StoreReport:
    return buffer_flush.store_buffer(default_deployment())


def said(here: Sandbox) -> list[tuple[str, str]]:
    rows = here.sql("SELECT role, content FROM memories WHERE level = 'raw' ORDER BY seq")
    return [(role, content.split("\n")[0]) for role, content in rows]


def ended(here: Sandbox) -> bool:
    [(found,)] = here.sql("SELECT ended_at IS NOT NULL FROM sessions")
    return bool(found)


def test_a_session_of_codex_is_stored_once_from_its_transcript(here: Sandbox, tmp_path: Path) -> None:
    made, path = Rollout(), tmp_path / "rollout-2026-11-25T09-00-00.jsonl"
    prompt = (
        "# Context from my IDE setup:\n\n## Open tabs:\n- cart.py\n\n## My request for Codex:\nFix the cart's test."
    )
    assert call("codex", of_codex("SessionStart", path, source="startup")) is None
    assert call("codex", of_codex("UserPromptSubmit", path, prompt=prompt)) is None
    made.prompt(prompt)
    ran = made.call("exec_command", FAILED, cmd="pytest -q", workdir="/home/ann/shop")
    asked = {"tool_name": "Bash", "tool_input": {"command": "pytest -q"}, "tool_response": FAILED, "tool_use_id": ran}
    assert call("codex", of_codex("PostToolUse", path, **asked)) is None
    aside = asked | {"tool_use_id": "call_of_a_subagent", "agent_id": "a1", "agent_type": "explorer"}
    assert call("codex", of_codex("PostToolUse", path, **aside)) is None
    made.patch(PATCH)
    made.call("shell", json.dumps({"output": "ok", "metadata": {"exit_code": 0}}), command=["bash", "-lc", "ls"])
    made.answer("It passes now.")
    made.write(path)
    stop = of_codex("Stop", path, stop_hook_active=False, last_assistant_message="It passes now.")
    assert call("codex", stop) is None
    assert store().waiting == 0
    wanted = [
        ("user", "Fix the cart's test."),
        ("assistant", "Ran: pytest -q"),
        ("tool", "Error: Chunk ID: 4f"),
        ("assistant", "Edited cart.py, tax.py"),
        ("tool", "Exit code: 0"),
        ("assistant", "Ran: ls"),
        ("tool", "ok"),
        ("assistant", "It passes now."),
    ]
    assert said(here) == wanted
    assert here.sql("SELECT session_key FROM sessions") == [(SESSION,)]
    made.prompt("Thanks.")
    made.write(path)
    call("codex", of_codex("UserPromptSubmit", path, prompt="Thanks."))
    call("codex", of_codex("SessionEnd", path))
    store()
    assert said(here) == [*wanted, ("user", "Thanks.")]
    assert ended(here)


def test_without_its_transcript_the_events_of_codex_are_stored(here: Sandbox) -> None:
    call("codex", of_codex("UserPromptSubmit", prompt="We deploy on Tuesdays."))
    call("codex", of_codex("Stop", stop_hook_active=False, last_assistant_message="Noted."))
    store()
    assert said(here) == [("user", "We deploy on Tuesdays."), ("assistant", "Noted.")]
    assert not ended(here)


def test_a_session_of_cursor_is_stored_once_from_its_events(here: Sandbox) -> None:
    for number in range(2):  # the same words twice are two turns
        turn_id = {"generation_id": f"490b90b7-a2ce-4c2c-bb76-cb77b125df2{number}"}
        call("cursor", of_cursor("beforeSubmitPrompt", prompt="Go on.", attachments=[], **turn_id))
        shell = {"tool_name": "Shell", "tool_input": {"command": "ls"}, "tool_use_id": "a", "duration": 12} | turn_id
        call("cursor", of_cursor("postToolUse", tool_output='{"output": "cart.py", "exitCode": 0}', **shell))
        call("cursor", of_cursor("postToolUseFailure", error_message="timed out", failure_type="timeout", **shell))
        call("cursor", of_cursor("afterAgentThought", text="Hm.", duration_ms=5))
        call("cursor", of_cursor("afterAgentResponse", text="There is one file.", **turn_id))
        call("cursor", of_cursor("stop", status="completed", loop_count=0, **turn_id))
        assert store().waiting == 0
    turn = [("user", "Go on."), ("tool", "Shell: cart.py"), ("tool", "Shell: Error: timed out")]
    turn.append(("assistant", "There is one file."))
    assert said(here) == turn * 2
    assert not ended(here)
    call("cursor", of_cursor("sessionEnd", reason="user_close", duration_ms=9, final_status="completed"))
    store()
    assert ended(here)


def test_a_hook_in_the_settings_of_the_user_and_of_the_project_stores_each_message_of_cursor_once(
    here: Sandbox,
) -> None:
    """Cursor then runs the hook twice for each event. The buffer may be stored between the two."""
    shell = {"tool_name": "Shell", "tool_input": {"command": "ls"}, "tool_use_id": "a", "tool_output": "cart.py"}
    for event in (
        of_cursor("beforeSubmitPrompt", prompt="Which files are there?"),
        of_cursor("postToolUse", **shell),
        of_cursor("postToolUse", **shell | {"tool_use_id": "b"}),
        of_cursor("postToolUse", **shell | {"tool_use_id": None}),  # nothing says that it is the same call
        of_cursor("afterAgentResponse", text="There is one file."),
    ):
        for _ in range(2):
            call("cursor", event)
            store()
    call("cursor", of_cursor("stop", status="completed"))
    store()
    calls = [("tool", "Shell: cart.py")] * 4
    assert said(here) == [("user", "Which files are there?"), *calls, ("assistant", "There is one file.")]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("agent", ["codex", "cursor"])
def test_a_session_begins_with_what_is_known_of_the_project(agent: str) -> None:
    start = of_codex("SessionStart", source="startup") if agent == "codex" else of_cursor("sessionStart")
    assert call(agent, start) is None
    Nexus().ingest(NS, "earlier", [Message(author="ann", content="We deploy on Tuesdays.")], end=True)
    work("derive_memory")
    context_cache.refresh(default_deployment())
    told = call(agent, start)
    text = told["additional_context"] if agent == "cursor" else told["hookSpecificOutput"]["additionalContext"]
    assert "We deploy on Tuesdays." in text
    assert set(told) == {"additional_context"} if agent == "cursor" else {"hookSpecificOutput"}


def test_cursor_also_runs_the_hook_of_claude_code_and_nothing_is_stored_twice(here: Sandbox) -> None:
    event = of_cursor("UserPromptSubmit", prompt="We deploy on Tuesdays.", session_id="s", cwd="/home/ann/shop")
    call("claude-code", event)
    call("cursor", of_cursor("beforeSubmitPrompt", prompt="We deploy on Tuesdays."))
    store()
    assert said(here) == [("user", "We deploy on Tuesdays.")]


def test_all_agents_share_the_memory_of_a_project(
    here: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "my shop"
    (project / "src").mkdir(parents=True)
    (project / ".git").mkdir()
    event = {"session_id": "c", "cwd": str(project / "src"), "prompt": "hi"}
    for name in ("UserPromptSubmit", "Stop"):
        call("codex", of_codex(name, prompt="hi", cwd=str(project / "src")), "--x")
    call("cursor", of_cursor("beforeSubmitPrompt", prompt="hi", workspace_roots=[str(project)]), "--x")
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", str(project))
    for name in ("UserPromptSubmit", "Stop"):
        call("claude-code", event | {"hook_event_name": name}, "--x")
    store()
    assert here.sql("SELECT DISTINCT name FROM namespaces") == [(project_namespace(str(project)),)]
    assert said(here) == [("user", "hi")] * 3
    assert len(here.sql("SELECT 1 FROM sessions")) == 3


def test_a_session_without_an_end_is_ended_after_four_hours(here: Sandbox) -> None:
    call("codex", of_codex("SessionStart", source="startup"))
    call("codex", of_codex("UserPromptSubmit", prompt="We deploy on Tuesdays."))
    call("codex", of_codex("Stop", stop_hook_active=False, last_assistant_message="Noted."))
    store()
    assert idle_sessions.end(default_deployment()) == 0
    assert not ended(here)
    here.sql("UPDATE memories SET created_at = created_at - interval '4 hours 1 minute'")
    assert idle_sessions.end(default_deployment()) == 1
    assert ended(here)
    assert here.sql("SELECT count(*) FROM digest_requests") == [(1,)]
    assert idle_sessions.end(default_deployment()) == 0
    call("codex", of_codex("UserPromptSubmit", prompt="And on Fridays."))
    call("codex", of_codex("Stop", stop_hook_active=False, last_assistant_message=None))
    store()
    assert not ended(here)


def test_a_session_in_use_is_not_ended(here: Sandbox) -> None:
    """Before, it was ended when its last message was erased, or when the clock of the worker was hours ahead."""
    call("codex", of_codex("SessionStart", source="startup"))
    call("codex", of_codex("UserPromptSubmit", prompt="We deploy on Tuesdays."))
    call("codex", of_codex("Stop", stop_hook_active=False, last_assistant_message="Noted."))
    store()
    here.sql("UPDATE sessions SET created_at = created_at - interval '1 day'")
    with pytest.MonkeyPatch.context() as patch:
        clock_is(patch, 86_400.0)
        assert idle_sessions.end(default_deployment()) == 0
    [(last,)] = here.sql("SELECT max(id) FROM memories WHERE level = 'raw'")
    Nexus().forget(NS, memory_id=last)
    assert idle_sessions.end(default_deployment()) == 0
    assert not ended(here)


@pytest.mark.parametrize("agent", ["codex", "cursor"])
@pytest.mark.parametrize("event", [{"hook_event_name": 3}, {"hook_event_name": "sessionStart"}, [], {}])
def test_whatever_comes_in_the_agent_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, event: Any
) -> None:
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path / "home"))
    assert call(agent, event) is None
    assert not (tmp_path / "home" / "buffer").exists()
