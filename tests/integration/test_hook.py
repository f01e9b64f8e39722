"""The hook, as the agent calls it: into the buffer whatever is down, and from there into memory exactly once."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Message, Nexus, file_locks, files
from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.buffer import session as buffer_session
from nexus_tasks.cognition import erasure as forgetting
from nexus_tasks.deployment import default_deployment
from nexus_tasks.integrations import importers
from nexus_tasks.integrations.anthropic import turns
from nexus_tasks.integrations.coding_agents import hook, store
from nexus_tasks.services import buffer_flush, context_cache, erasure, hook_events
from nexus_tasks.storage import namespaces
from nexus_tasks.transcripts import context_file, position
from nexus_tasks.transcripts.project import project_namespace
from tests.integration.inline import dump, work
from tests.sandbox import Sandbox, eventually
from tests.standin import StandIn
from tests.transcripts import planted
from tests.transcripts.generate import Transcript, day_at_work

NS = "shop"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_store_in_background", lambda: None)
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)


def call(
    capsys: pytest.CaptureFixture[str], name: str, transcript: Path | None = None, namespace: str = NS, **fields: Any
) -> str:
    """Call the hook in this process; returns what it prints."""
    event = {
        "hook_event_name": name,
        "session_id": "0b9d3c5e",
        "transcript_path": str(transcript or "/nowhere/t.jsonl"),
        "cwd": "/home/ann/shop",
        "permission_mode": "default",
        "a_field_of_tomorrow": [1],
        **fields,
    }
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(json.dumps(event).encode()))
    try:
        assert hook.main(["--namespace", namespace]) == 0
    finally:
        sys.stdin = before
    return capsys.readouterr().out


def said(here: Sandbox, role: str | None = None) -> list[str]:
    rows = here.sql("SELECT content, role FROM memories WHERE level = 'raw' ORDER BY seq")
    return [content.split("\n")[0] for content, whose in rows if role in (None, whose)]


def test_a_session_is_stored_once_however_often_it_is_told(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made, path = day_at_work(datetime.now(UTC)), tmp_path / "t.jsonl"
    first = made.lines[:]
    out = call(capsys, "UserPromptSubmit", path, prompt="Please fix the failing test in the cart.")
    assert out == ""
    out += call(capsys, "PostToolUse", path, tool_name="Bash", tool_input={}, tool_use_id="toolu_0b9d3c5e_0001")
    made.lines = first[:10]
    made.write(path)
    out += call(capsys, "Stop", path)
    assert buffer_flush.store_buffer(default_deployment()).waiting == 0
    some = said(here)
    assert some[0] == "Please fix the failing test in the cart."
    made.lines = first
    made.write(path)
    out += call(capsys, "PreCompact", path) + call(capsys, "SubagentStop", path) + call(capsys, "Stop", path)
    assert out == ""
    buffer_flush.store_buffer(default_deployment())
    assert len(said(here)) == len(set(said(here))) == 16
    made.lines = made.lines[-3:]  # compacted: written anew without what came before
    made.prompt("And now the checkout.")
    made.write(path)
    call(capsys, "SessionEnd", path, reason="exit")
    buffer_flush.store_buffer(default_deployment())
    assert said(here)[16:] == ["And now the checkout."]
    assert here.sql("SELECT ended_at IS NOT NULL FROM sessions") == [(True,)]
    assert not SessionBuffer(here.folder / "buffer").pending()


def test_two_hooks_with_two_namespaces_each_store_the_whole_session(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The hook is in the user's settings and in the project's, and the agent runs both."""
    made, path = Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    prompts = ("one", "two", "three")
    for number, prompt in enumerate(prompts):
        made.prompt(prompt)
        made.answer(f"{prompt} is done")
        made.write(path)
        for namespace in (NS, "ann") if number % 2 else ("ann", NS):
            call(capsys, "UserPromptSubmit", path, namespace, prompt=prompt)
            call(capsys, "Stop", path, namespace)
            buffer_flush.store_buffer(default_deployment())
    for namespace in (NS, "ann"):
        rows = here.sql(
            "SELECT content FROM memories JOIN namespaces ON namespaces.id = namespace_id"
            f" WHERE level = 'raw' AND name = '{namespace}' ORDER BY seq"
        )
        whole = [text for prompt in prompts for text in (prompt, f"{prompt} is done")]
        assert [content for (content,) in rows] == whole


@pytest.mark.parametrize("how", ["memory", "session", "everything"])
@pytest.mark.parametrize("read_before", ["by the hook", "by an import"])
def test_a_transcript_that_is_read_again_brings_back_no_erased_message(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path, how: str, read_before: str
) -> None:
    nexus, made, path = Nexus(), Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    made.prompt("The door code is on the calendar.")
    made.write(path)
    if read_before == "by the hook":
        call(capsys, "Stop", path)
        buffer_flush.store_buffer(default_deployment())
    else:
        for one in importers.read(path, "claude-code", namespace=NS):
            nexus.ingest(NS, "0b9d3c5e", one.messages)
    [message] = nexus.session(NS, "0b9d3c5e").said
    erased: dict[str, dict[str, Any]] = {
        "memory": {"memory_id": message.id},
        "session": {"session_key": "0b9d3c5e"},
        "everything": {"everything": True},
    }
    nexus.forget(NS, **erased[how])
    made.lines = ['{"type": "summary", "summary": "A day at work."}', *made.lines]  # the agent has rewritten the file
    made.prompt("And now the checkout.")
    made.write(path)
    call(capsys, "Stop", path)
    buffer_flush.store_buffer(default_deployment())
    assert said(here) == ["And now the checkout."]
    hashes = [row for (row,) in here.sql("SELECT id_hash FROM erased_ids")]
    assert [len(one) for one in hashes] == [64, 64]  # of the id, and of the session's key and the id


@pytest.mark.parametrize("how", ["memory", "session", "everything"])
@pytest.mark.parametrize("asks", ["hook", "program"])
def test_a_transcript_that_is_read_during_an_erasure_brings_back_no_erased_message(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path, how: str, asks: str
) -> None:
    nexus, made, path = Nexus(), Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    made.prompt("The door code is on the calendar.")
    made.write(path)
    for one in importers.read(path, "claude-code", namespace=NS):
        nexus.ingest(NS, "0b9d3c5e", one.messages)
    [message] = nexus.session(NS, "0b9d3c5e").said
    made.prompt("And now the checkout.")
    made.write(path)
    call(capsys, "Stop", path)
    deployment = default_deployment()
    read: Callable[[], Any] = {
        "hook": lambda: buffer_flush.store_buffer(deployment),
        "program": lambda: erasure.erased_ids(deployment, NS, "0b9d3c5e", [message.external_id]),
    }[asks]
    waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor() as pool:
        with deployment.database.transaction() as tx:
            namespace_id = namespaces.get(tx, NS).id
            if how == "memory":
                forgetting.forget_memory(tx, namespace_id, message.id)
            elif how == "session":
                forgetting.forget_session(tx, namespace_id, "0b9d3c5e")
            else:
                forgetting.forget_namespace(tx, namespace_id)
            reading = pool.submit(read)
            eventually(lambda: reading.done() or here.sql(waits), within=5)
        found = reading.result()
    if asks == "hook":
        assert said(here) == ["And now the checkout."]
    else:
        assert found == {message.external_id}


def test_what_is_told_anew_after_an_erasure_is_stored(here: Sandbox) -> None:
    nexus = Nexus()
    for _ in range(2):
        nexus.ingest(NS, "chat", [Message(id="m1", author="ann", content="I like rye bread.")])
        nexus.ingest(NS, "chat", [Message(author="ann", content="I like rice.")])
        assert len(nexus.session(NS, "chat").said) == 2
        nexus.forget(NS, session_key="chat")
    # Of a message without an id, no hash of its text is kept.
    assert here.sql("SELECT count(*) FROM erased_ids") == [(2,)]


def test_no_hash_of_an_erased_text_is_kept(here: Sandbox) -> None:
    """A person who reads Postgres and guesses the text, such as a PIN, would know that the guess is right."""
    said = [{"type": "text", "text": "My PIN is 4711."}, {"type": "tool_result", "tool_use_id": "1", "content": "Yes."}]
    Nexus().ingest(NS, "chat", turns.new_turns([{"role": "user", "content": said}], "ann"))
    Nexus().forget(NS, session_key="chat")
    assert here.sql("SELECT count(*) FROM erased_ids") == [(0,)]
    Nexus().ingest(NS, "chat", [Message(author="ann", content="I like figs.", id="turn:1")])
    Nexus().forget(NS, session_key="chat")
    assert here.sql("SELECT count(*) FROM erased_ids") == [(2,)]


def test_a_session_may_use_the_ids_of_erased_messages_of_another(here: Sandbox) -> None:  # noqa: ARG001
    nexus, deployment = Nexus(), default_deployment()
    for key in ("ann", "bob"):
        nexus.ingest(NS, key, [Message(id="1", author=key, content="I like rye bread.")])
    nexus.forget(NS, session_key="ann")
    assert erasure.erased_ids(deployment, NS, "ann", ["1", "2", None]) == {"1"}
    assert erasure.erased_ids(deployment, NS, "bob", ["1"]) == set()
    nexus.forget(NS, everything=True)
    assert erasure.erased_ids(deployment, NS, "bob", ["1"]) == {"1"}
    assert erasure.erased_ids(deployment, "another", "bob", ["1"]) == set()


def test_a_replaced_message_is_not_remembered_as_erased(here: Sandbox) -> None:
    nexus = Nexus()
    for liked in ("rye bread", "rice"):
        nexus.ingest(NS, "chat", [Message(id="m1", author="ann", content=f"I like {liked}.")], replace=True)
    assert said(here) == ["I like rice."]
    assert here.sql("SELECT count(*) FROM erased_ids") == [(0,)]


def test_an_event_that_the_transcript_lacks_waits_for_it_and_then_stands_in(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path = Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    path.touch()
    call(capsys, "UserPromptSubmit", path, prompt="now")
    assert buffer_flush.store_buffer(default_deployment()).waiting == 1  # a worker that looks in the middle of a turn
    assert said(here) == []
    made.prompt("now")
    made.write(path)
    assert buffer_flush.store_buffer(default_deployment()).waiting == 0
    assert said(here) == ["now"]
    call(capsys, "UserPromptSubmit", path, prompt="never written down")
    call(capsys, "PostToolUse", path, tool_name="Bash", tool_input={"command": "ls"}, tool_response={"stdout": "a b"})
    monkeypatch.setattr(hook_events, "PATIENCE", 0.0)
    buffer_flush.store_buffer(default_deployment())
    assert said(here) == ["now", "never written down", "Bash: a b"]


IMAGE = {"type": "image", "source": {}}
NOTE = "<system-reminder>Be nice.</system-reminder>"
OPENED = "<ide_opened_file>The user opened cart.py.</ide_opened_file>"


def texts(*given: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": one} for one in given]


@pytest.mark.parametrize(
    ("prompt", "content", "stored"),
    [
        ("word " * 30_000, None, ("word " * 30_000).strip()),
        ("Look at it.", [IMAGE, *texts("Look at it.")], "[image]\nLook at it."),
        ("Look at it.", [*texts("Look at it."), IMAGE], "Look at it.\n[image]"),
        ("one\ntwo", texts("one", "two"), "one\ntwo"),
        ("Fix it.", texts(NOTE, "Fix it."), "Fix it."),
        ("Fix it.", f"{OPENED}\nFix it.\n\n{NOTE}", "Fix it."),
        ("!ls", "<bash-input>ls</bash-input>", "!ls"),
        ("Go on.", "[Request interrupted by user]", "Go on."),
        ("Go on.", "[Request interrupted by user for tool use]", "Go on."),
        ("Go on.", "<bash-stdout>a b</bash-stdout><bash-stderr></bash-stderr>", "Go on."),
        ("What is <system-reminder>?", None, "What is <system-reminder>?"),
        ("Caf\u0065\u0301 \0 is open\r\n now", None, None),
    ],
)
def test_a_prompt_is_stored_once_and_without_notes_of_the_program(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path, prompt: str, content: Any, stored: str | None
) -> None:
    made, path = Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    path.touch()
    call(capsys, "UserPromptSubmit", path, prompt=prompt)
    made.line("user", message={"role": "user", "content": content or prompt})
    made.write(path)
    call(capsys, "Stop", path)
    buffer_flush.store_buffer(default_deployment())
    [(found,)] = here.sql("SELECT content FROM memories WHERE level = 'raw'")
    assert stored is None or found == stored


def test_an_odd_time_or_number_does_not_cost_a_message(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    lines = [
        {"type": "user", "uuid": "a", "timestamp": "soon", "message": {"content": "Fix it."}},
        {
            "type": "assistant",
            "uuid": "b",
            "message": {"content": [{"type": "tool_use", "id": "c", "name": "Wait", "input": {"for": float("inf")}}]},
        },
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    call(capsys, "Stop", path)
    buffer_flush.store_buffer(default_deployment())
    assert said(here) == ["Fix it.", "Wait"]


def test_without_its_transcript_the_events_are_stored(here: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "UserPromptSubmit", prompt="We deploy on Tuesdays.")
    call(capsys, "PostToolUse", tool_name="Edit", tool_input={"file_path": "cart.py"}, tool_response={"x": 1})
    call(capsys, "Stop")
    buffer_flush.store_buffer(default_deployment())
    assert said(here) == ["We deploy on Tuesdays.", "Edit: (no output)"]
    assert here.sql("SELECT tool_calls->0->'input' FROM memories WHERE role = 'tool'") == [({"file_path": "cart.py"},)]


@pytest.mark.parametrize("error", [TypeError("None"), RecursionError(), MemoryError()], ids=repr)
def test_a_transcript_that_no_reader_foresaw_costs_only_itself(
    here: Sandbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def read_on(*_: object) -> None:
        raise error

    monkeypatch.setattr(hook_events.position, "read_on", read_on)
    for number in (1, 2):
        call(capsys, "UserPromptSubmit", session_id=f"s{number}", prompt=f"Prompt {number}.")
        call(capsys, "SessionEnd", session_id=f"s{number}")
    buffer_flush.store_buffer(default_deployment())
    assert sorted(said(here)) == ["Prompt 1.", "Prompt 2."]


def test_a_file_that_has_nothing_to_read_now_is_no_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        """A file such as /proc/kmsg: its reading would wait."""

        def __enter__(self) -> Silent:
            return self

        def __exit__(self, *_: object) -> None: ...

        def seek(self, _: int) -> None: ...

        def read(self, size: int) -> bytes | None:
            return None if size else b""

    monkeypatch.setattr(position, "_open_regular", lambda _: Silent())
    with pytest.raises(BlockingIOError):
        position.read_on("claude-code", str(tmp_path), position.Position())


def test_a_session_begins_with_what_is_known_of_the_project(here: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "SessionStart", source="startup") == ""  # nothing is known yet, and nothing kept of it
    assert context_cache.refresh(default_deployment()) == 0
    Nexus().ingest(NS, "earlier", [Message(author="ann", content="We deploy on Tuesdays.")], end=True)
    work("derive_memory")
    assert context_cache.refresh(default_deployment()) == 1
    assert context_cache.refresh(default_deployment()) == 0
    answer = json.loads(call(capsys, "SessionStart", source="resume"))["hookSpecificOutput"]
    assert answer["hookEventName"] == "SessionStart"
    assert "We deploy on Tuesdays." in answer["additionalContext"]
    assert len(answer["additionalContext"]) <= 4 * 1_500
    [file] = (here.folder / "context").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_no_secret_reaches_disk_postgres_redis_or_a_prompt(
    claude: Any, standin: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    here = claude()
    made, path = Transcript(), tmp_path / "t.jsonl"
    secrets = [*planted.tokens().values(), *(secret for _, secret in planted.in_context().values())]
    texts = [f"use {secret} now" for secret in planted.tokens().values()]
    texts += [text for text, _ in planted.in_context().values()]
    for text in texts:
        made.prompt(text)
        made.call("Bash", text, command=text)
        call(capsys, "UserPromptSubmit", path, prompt=text)
    call(
        capsys,
        "PostToolUse",
        path,
        tool_name="Bash",
        tool_input={"command": "\n".join(texts)},
        tool_response={"stdout": "\n".join(texts)},
    )
    call(capsys, "UserPromptSubmit", path, prompt="\n".join(texts))
    made.write(path)
    call(capsys, "Stop", path)
    on_disk = [file.read_bytes() for file in here.folder.rglob("*") if file.is_file()]
    buffer_flush.store_buffer(default_deployment())
    Nexus().end_session(NS, "0b9d3c5e")
    work()
    context_cache.refresh(default_deployment())
    on_disk += [file.read_bytes() for file in here.folder.rglob("*") if file.is_file()]
    everything = b"\n".join(on_disk).decode(errors="replace")
    everything += str(dump(here))
    prompts = [call.text for call in standin.counters.requests]
    assert {call.purpose for call in standin.counters.requests} >= {"derive", "digest"}
    assert sum(prompt.count("[scrubbed: ") for prompt in prompts) > len(secrets)
    everything += "".join(prompts)
    client = here.redis()
    everything += str([(key, client.dump(key)) for key in client.scan_iter(f"{here.name}:*")])
    assert len(secrets) > 60
    assert [secret for secret in secrets if secret in everything] == []
    assert everything.count("[scrubbed: ") > len(secrets)


@pytest.mark.parametrize(
    "stdin", [b"", b"garbage", b"[]", b"{}", b"\xff\xfe", b'{"hook_event_name": 3, "session_id": null}']
)
def test_whatever_comes_in_the_agent_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stdin: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert hook.main() == 0
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "home" / "buffer").exists()


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (b"", "JSONDecodeError The standard input is not JSON: Expecting value at character 0."),
        (b'{"secret": "hunter2"}', "KeyError The event has no hook_event_name."),
        (b'{"hook_event_name": "Stop", "secret": "hunter2"}', "KeyError The event has no session_id."),
        (b'["hunter2"]', "TypeError in _handle, line "),
    ],
)
def test_the_log_says_why_the_hook_stopped(tmp_path: Path, event: bytes, why: str) -> None:
    command = [sys.executable, "-m", "nexus_tasks.cli.entry", "hook", "claude-code"]
    env = {**os.environ, "NEXUS_HOME": str(tmp_path)}
    done = subprocess.run(command, input=event, env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    log = (tmp_path / "logs" / "hook.log").read_text()
    assert why in log
    assert "hunter2" not in log


def test_with_a_full_disk_the_agent_goes_on_and_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))

    def full(_fd: int, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", full)
    assert call(capsys, "UserPromptSubmit", prompt="hello") == ""
    assert "is full" in (tmp_path / "logs" / "hook.log").read_text()


def hook_process(home: Path, event: dict[str, Any], **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEXUS_", "CLAUDE_"))}
    return subprocess.run(
        [sys.executable, "-m", "nexus_tasks.cli.entry", "hook", "claude-code"],
        input=json.dumps(event),
        env={**kept, "NEXUS_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_event_in_a_deleted_folder_is_kept(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": str(gone), "prompt": "hello"}
    line = f'rmdir "{gone}" && exec {sys.executable} -m nexus_tasks.cli.entry hook claude-code'
    env = {**os.environ, "NEXUS_HOME": str(tmp_path / "home")}
    told = subprocess.run(
        ["sh", "-c", line], cwd=gone, env=env, input=json.dumps(event).encode(), capture_output=True, check=False
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, b"", b"")
    assert [session for _, session in SessionBuffer(tmp_path / "home" / "buffer").list()] == ["s"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="This system has no /dev/full.")
def test_a_context_that_nobody_takes_fails_no_hook(tmp_path: Path) -> None:
    environment = {"NEXUS_HOME": str(tmp_path), "NEXUS_HOOK_NAMESPACE": "acme"}
    event = {"hook_event_name": "SessionStart", "session_id": "s", "cwd": str(tmp_path), "source": "startup"}
    context_file.put(str(tmp_path), "acme", "Ann lives in Lisbon.\n")
    with open("/dev/full", "w") as full:
        told = subprocess.run(
            [sys.executable, "-m", "nexus_tasks.cli.entry", "hook", "claude-code"],
            input=json.dumps(event).encode(),
            env={**os.environ, **environment},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (told.returncode, told.stderr) == (0, b"")
    assert "No space left on device" in (tmp_path / "logs" / "hook.log").read_text()


def test_a_namespace_of_no_text_and_a_wrong_limit_fail_no_hook(tmp_path: Path) -> None:
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": str(tmp_path), "prompt": "hello"}
    done = hook_process(tmp_path, event, NEXUS_HOOK_NAMESPACE=os.fsdecode(b"\xff"), NEXUS_NAMESPACES="acme")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = hook_process(tmp_path, event, NEXUS_BUFFER_MAX_BYTES="1 GB")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    log = (tmp_path / "logs" / "hook.log").read_text()
    assert "does not have the namespace \\udcff" in log
    assert "NEXUS_BUFFER_MAX_BYTES=1 GB is no number of bytes." in log


def test_as_a_process_without_any_server(tmp_path: Path) -> None:
    project = tmp_path / "my shop"
    project.mkdir()
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": str(project), "prompt": "hello"}
    nowhere = {"NEXUS_DATABASE_URL": "postgresql://u@127.0.0.1:1/x", "NEXUS_REDIS_URL": "redis://127.0.0.1:1/0"}
    done = hook_process(tmp_path / "home", event, **nowhere)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    buffer = SessionBuffer(tmp_path / "home" / "buffer", deployment="127.0.0.1:1/x")
    [(agent, session)] = buffer.list()
    assert (agent, session) == (project_namespace(str(project)), "s")
    assert agent.startswith("my-shop-")


def test_the_hook_reads_the_environment_file(tmp_path: Path) -> None:
    """Else its messages would be of another deployment than the one whose worker stores them."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "environment").write_text("NEXUS_DATABASE_URL=postgresql://u@127.0.0.1:1/x\nNEXUS_HOOK_NAMESPACE=team\n")
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": str(tmp_path), "prompt": "hello"}
    assert hook_process(home, event).returncode == 0
    assert hook_process(home, event, NEXUS_HOOK_NAMESPACE="mine").returncode == 0
    assert set(SessionBuffer(home / "buffer", deployment="127.0.0.1:1/x").list()) == {("team", "s"), ("mine", "s")}


def test_a_stop_leaves_a_process_that_stores(here: Sandbox, tmp_path: Path) -> None:
    made = Transcript()
    made.prompt("We deploy on Tuesdays.")
    path = made.write(tmp_path / "t.jsonl")
    (tmp_path / "redis.py").write_text("raise SystemExit('a module of the project')")
    event = {"hook_event_name": "Stop", "session_id": "s", "cwd": str(tmp_path), "transcript_path": str(path)}
    ours = {key: value for key, value in here.environment.items() if key.startswith("NEXUS_")}
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        done = hook_process(here.folder, event, **{key: value for key, value in ours.items() if key != "NEXUS_HOME"})
    finally:
        os.chdir(before)
    assert (done.returncode, done.stdout) == (0, "")
    eventually(lambda: said(here) == ["We deploy on Tuesdays."], within=90)
    buffer = SessionBuffer(here.folder / "buffer")
    eventually(lambda: not buffer.pending(), within=60)
    with buffer.storing(wait=True):  # it is done with the folder, so that this can be deleted
        pass


def test_one_process_at_a_time_waits_to_store_what_many_hooks_have_left(here: Sandbox, tmp_path: Path) -> None:
    """Before, forty subagents that stopped at a time left forty processes, with 4.4 GB together."""
    program = [sys.executable, "-m", "nexus_tasks.integrations.coding_agents.store"]
    environment = {**os.environ, **here.environment}
    buffer = SessionBuffer(here.folder / "buffer")
    with buffer.storing(wait=True):
        buffer.append(NS, "one", "before")
        waiting = subprocess.Popen(program, env=environment, cwd=tmp_path)
        eventually(lambda: any(file_locks.has_open(waiting.pid, one) for one in here.folder.glob("buffer/waiting-*")))
        buffer.append(NS, "two", "meanwhile")
        subprocess.run(program, env=environment, cwd=tmp_path, check=True, timeout=60)  # it does not wait
        assert waiting.poll() is None
        other = buffer.of("elsewhere/nexus").try_waiting()
        assert other is not None, "the first process does not store what belongs to another deployment"
        other.release()
    assert waiting.wait(60) == 0
    assert said(here) == ["before", "meanwhile"]


def test_what_the_hook_leaves_running_starts_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LAST_LINES", 0.0)
    for name in ("NEXUS_DATABASE_URL", "NEXUS_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))
    SessionBuffer(tmp_path / "buffer").append(NS, "s", "kept")
    store.main()
    assert {path.name for path in tmp_path.iterdir()} == {"buffer"}
    assert SessionBuffer(tmp_path / "buffer").has(NS, "s")


ODD_INPUTS = {
    "NUL": {"command": "printf '\0'"},
    "half a surrogate pair": {"command": "echo \ud83d"},
    "thousands of values": {"values": [list(range(100))] * 100},
}


@pytest.mark.parametrize("given", ODD_INPUTS.values(), ids=list(ODD_INPUTS))
def test_what_no_database_stores_of_a_tool_call_does_not_cost_its_message(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path, given: dict[str, Any]
) -> None:
    """Before, the agent's message was lost: its text too, because the tool call stood in the same line."""
    made, path = Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    used = {"type": "tool_use", "id": "toolu_1", "name": "Odd", "input": given}
    made.line("assistant", message={"role": "assistant", "content": [{"type": "text", "text": "I look."}, used]})
    made.write(path)
    call(capsys, "Stop", path)
    call(capsys, "PostToolUse", tool_name="Odd", tool_input=given, tool_use_id="toolu_2", tool_response={"stdout": "a"})
    call(capsys, "Stop")
    report = buffer_flush.store_buffer(default_deployment())
    assert report.damages == []
    assert said(here) == ["I look.", "Odd: a"]
    assert here.sql("SELECT tool_calls->0->>'name' FROM memories ORDER BY seq") == [("Odd",), ("Odd",)]


def test_a_prompt_that_is_longer_than_a_message_is_shortened(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made, path = Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    made.prompt("begin " + "word " * 220_000 + "end")
    made.write(path)
    call(capsys, "Stop", path)
    buffer_flush.store_buffer(default_deployment())
    [(found,)] = here.sql("SELECT content FROM memories WHERE level = 'raw'")
    assert found.startswith("begin ")
    assert "characters left out" in found
    assert found.endswith("end")


def test_the_context_loses_what_expires_and_shows_first_what_is_pinned(
    here: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, the file of an idle project told an expired fact until something else changed."""
    when = datetime.now(UTC) + timedelta(days=1)
    said = [Message(author="ann", content="We deploy on Tuesdays.", expires_at=when)]
    said.append(Message(author="ann", content="We write tests in Python."))
    Nexus().ingest(NS, "earlier", said, end=True)
    work("derive_memory")
    call(capsys, "SessionStart", source="startup")
    assert context_cache.refresh(default_deployment()) == 1
    assert "Tuesdays" in call(capsys, "SessionStart", source="startup")
    here.sql("UPDATE memories SET expires_at = now() - interval '1 minute' WHERE expires_at IS NOT NULL")
    assert context_cache.refresh(default_deployment()) == 1
    told = call(capsys, "SessionStart", source="startup")
    assert "Python" in told
    assert "Tuesdays" not in told
    [kept] = Nexus().memories(NS, levels=["explicit"])
    Nexus().pin(NS, kept.id)
    assert context_cache.refresh(default_deployment()) == 1
    assert context_cache.refresh(default_deployment()) == 0


@pytest.mark.parametrize("agent", ["claude-code", "codex", "cursor"])
@pytest.mark.parametrize("cwd", [3, "/a\0b", "/\ud83d", ["/a"], None], ids=ascii)
def test_an_odd_folder_does_not_cost_an_event(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, agent: str, cwd: Any
) -> None:
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": "We deploy on Tuesdays.", "cwd": cwd}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(event).encode())))
    assert hook.main([], agent=agent) == 0
    [segment] = SessionBuffer(tmp_path / "buffer").recover().segments
    assert segment.entries[0].payload["prompt"] == "We deploy on Tuesdays."


def test_a_prompt_is_stored_once_although_the_clock_was_ahead(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The clock of the machine was ahead when the agent and its hook wrote, and is right when the buffer is stored."""
    ahead = datetime.now(UTC) + timedelta(days=400)
    made, path = Transcript(began=ahead), tmp_path / "t.jsonl"
    made.prompt("We deploy on Tuesdays.")
    made.write(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer_session, "time", lambda: ahead.timestamp() + 1.0)
        call(capsys, "UserPromptSubmit", path, prompt="We deploy on Tuesdays.")
        call(capsys, "Stop", path)
    assert buffer_flush.store_buffer(default_deployment()).waiting == 0
    assert said(here) == ["We deploy on Tuesdays."]


def test_an_event_of_a_clock_that_was_ahead_does_not_wait_for_its_time(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = Transcript().write(tmp_path / "t.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer_session, "time", (datetime.now(UTC) + timedelta(days=400)).timestamp)
        call(capsys, "UserPromptSubmit", path, prompt="never written down")
    assert buffer_flush.store_buffer(default_deployment()).waiting == 0
    assert said(here) == ["never written down"]
