"""Every limit from every entry: what one refuses, no other stores. Streams leave out and count what they refuse."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import typing
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from nexus_tasks import Message, Nexus, limits
from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers import read
from nexus_tasks.integrations.mcp.server import server
from nexus_tasks.services import arguments, buffer_flush
from nexus_tasks.types import SessionDetails
from tests.commandline import nexus
from tests.integration.test_nonsense import COMMANDS, METHODS
from tests.sandbox import Sandbox

NAMESPACE, SESSION = "limits", "s"
LONG_NAME = "n" * (limits.NAME_CHARACTERS + 1)
HALF = limits.MESSAGE_CHARACTERS // 2 + 1

# What exceeds one limit: the fields of a message, or of the call that stores it.
EXCESS: dict[str, dict[str, Any]] = {
    "content": {"content": "x" * (limits.MESSAGE_CHARACTERS + 1)},
    "content and tool calls": {"content": "x" * HALF, "tool_calls": [{"name": "w", "input": {"text": "x" * HALF}}]},
    "tool calls": {"content": "x", "tool_calls": [{"name": "w", "input": {"text": "x" * 2 * HALF}}]},
    "author": {"content": "x", "author": LONG_NAME},
    "id": {"content": "x", "id": LONG_NAME},
    "session": {"session": LONG_NAME},
    "observers": {"observers": [f"o{number}" for number in range(limits.OBSERVERS_PER_CALL + 1)]},
    "observer": {"observers": [LONG_NAME]},
}
_CALL = ("session", "observers")


def parts(excess: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message's fields, and the call's."""
    given = EXCESS[excess]
    message = {key: value for key, value in given.items() if key not in _CALL} or {"content": "x"}
    return message, {key: value for key, value in given.items() if key in _CALL}


# --- entries that raise -----------------------------------------------------------------------------------------------
def by_ingest(message: dict[str, Any], call: dict[str, Any], _folder: Path) -> None:
    Nexus().ingest(NAMESPACE, call.get("session", SESSION), [message], observers=call.get("observers"))


def by_aingest(message: dict[str, Any], call: dict[str, Any], _folder: Path) -> None:
    session, observers = call.get("session", SESSION), call.get("observers")
    asyncio.run(Nexus().aingest(NAMESPACE, session, [Message(**message)], observers=observers))


def by_remember(message: dict[str, Any], call: dict[str, Any], _folder: Path) -> None:
    author = message.get("author", "ann")
    Nexus().remember(NAMESPACE, message["content"], author=author, session_key=call.get("session", SESSION))


def by_command(message: dict[str, Any], call: dict[str, Any], folder: Path) -> None:
    file = folder / "talk.jsonl"
    lines = [{"content": "fine", "session": "first"}, message | {"session": call.get("session", SESSION)}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    raise_as_printed(nexus("ingest", str(file), "--namespace", NAMESPACE, "--json"))


def by_mcp(message: dict[str, Any], call: dict[str, Any], _folder: Path) -> None:
    memory = server(NAMESPACE).memory
    try:
        memory.remember(message["content"], message.get("author", "user"), call.get("session", SESSION))
    except ToolError as error:
        raise error.__cause__ or error from None


def by_import(message: dict[str, Any], call: dict[str, Any], folder: Path) -> None:
    source, file = f"source-{next(NUMBERS)}", folder / "export.jsonl"
    Nexus().ingest(source, SESSION, [{"content": "x", "id": "1"}])
    Nexus().export(source, file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line.get("level") == "raw":
            line |= {"external_id" if key == "id" else key: value for key, value in message.items()}
        if "session_key" in line:
            line["session_key"] = call.get("session", line["session_key"])
        if "settings" in line and "observers" in call:
            line["settings"]["observers"] = call["observers"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    Nexus().import_(NAMESPACE, file)


def raise_as_printed(done: Any) -> None:
    if done.returncode:
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["type"]) == (1, "InvalidInput"), done.stdout
        raise InvalidInput(error["message"], remedy=error["remedy"])


NUMBERS = itertools.count()
MESSAGE = ("content", "content and tool calls", "tool calls", "author", "id")
RAISING: dict[Callable[..., None], tuple[str, ...]] = {
    by_ingest: tuple(EXCESS),
    by_aingest: tuple(EXCESS),
    by_remember: ("content", "author", "session"),
    by_command: (*MESSAGE, "session"),
    by_mcp: ("content", "author", "session"),
    by_import: tuple(EXCESS),
}


@pytest.mark.parametrize(
    ("entry", "excess"), [(entry, excess) for entry, several in RAISING.items() for excess in several]
)
def test_an_entry_refuses_and_stores_nothing(
    here: Sandbox, tmp_path: Path, entry: Callable[..., None], excess: str
) -> None:
    message, call = parts(excess)
    with pytest.raises(InvalidInput, match=r"at most [\d,]+ |more than [\d,]+ ") as caught:
        entry(message, call, tmp_path)
    assert caught.value.remedy
    assert len(caught.value.message) < 1_000
    assert here.sql("SELECT content FROM memories WHERE content NOT IN ('x', 'fine')") == []
    assert here.sql("SELECT 1 FROM memories m JOIN namespaces n ON n.id = namespace_id WHERE name = 'limits'") == []
    entry({"content": "x"}, {}, tmp_path)  # what is within the limits is stored


# --- streams: what exceeds a limit is left out and counted -----------------------------------------------------------
@pytest.mark.parametrize("kind", ["message", "ingest"])
@pytest.mark.parametrize("excess", EXCESS)
def test_the_buffer_quarantines_what_exceeds_a_limit(here: Sandbox, kind: str, excess: str) -> None:
    message, call = parts(excess)
    if (kind == "message" and "observers" in call) or "session" in call:
        pytest.skip("another entry of the buffer has no such field")
    buffer = here.deployment.buffer
    payload: Any = message if kind == "message" else {"messages": [message], **call}
    buffer.append(NAMESPACE, SESSION, payload, kind)
    buffer.append(NAMESPACE, SESSION, {"content": "fine"}, "message")
    report = buffer_flush.store_buffer(here.deployment)
    assert len(report.damages) == 1
    assert "at most" in report.damages[0].reason
    assert here.sql("SELECT content FROM memories") == [("fine",)]
    assert not buffer.pending()


def test_the_buffer_quarantines_a_session_with_too_long_a_name(here: Sandbox) -> None:
    buffer = here.deployment.buffer
    buffer.append(NAMESPACE, LONG_NAME, {"content": "x"}, "message")
    report = buffer_flush.store_buffer(here.deployment)
    assert len(report.damages) == 1
    assert here.sql("SELECT content FROM memories") == []


def transcript(folder: Path, *texts: str) -> Path:
    file = folder / "transcript.jsonl"
    lines = [
        {
            "type": "user",
            "sessionId": "abc",
            "uuid": f"u{number}",
            "timestamp": "2026-01-01T10:00:00Z",
            "message": {"role": "user", "content": text},
        }
        for number, text in enumerate(texts)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_transcript_never_stores_more_than_a_limit(here: Sandbox, tmp_path: Path) -> None:
    """The reader shortens long texts, so the fine lines are stored and nothing exceeds the limit."""
    file = transcript(tmp_path, "fine", "x " * limits.MESSAGE_CHARACTERS, "fine too")
    [conversation] = read(file, "claude-code", namespace=NAMESPACE)
    sizes = [len(one.content) for one in conversation.messages]
    assert (sizes[0], sizes[-1]) == (4, 8)
    assert max(sizes) <= limits.MESSAGE_CHARACTERS
    SessionBuffer.append(
        here.deployment.buffer, NAMESPACE, "abc", {"event": "Stop", "transcript_path": str(file)}, "claude-code"
    )
    report = buffer_flush.store_buffer(here.deployment)
    assert report.damages == []
    assert here.sql("SELECT max(length(content)) <= 1000000, count(*) >= 2 FROM memories") == [(True, True)]


def test_a_hook_s_event_that_exceeds_a_limit_loses_the_input_of_its_tool_call(here: Sandbox) -> None:
    """The hook shortens its events. Another process that writes the buffer may not."""
    call = {"name": "Write", "input": {"text": "x" * 2 * HALF}, "id": "1"}
    buffer = here.deployment.buffer
    buffer.append(NAMESPACE, "abc", {"event": "PostToolUse", "call": call, "result": "done"}, "claude-code")
    buffer.append(NAMESPACE, "abc", {"event": "UserPromptSubmit", "prompt": "fine"}, "claude-code")
    buffer.append(NAMESPACE, "abc", {"event": "SessionEnd"}, "claude-code")
    report = buffer_flush.store_buffer(here.deployment)
    assert report.damages == []
    [(calls,)] = here.sql("SELECT tool_calls FROM memories WHERE tool_calls IS NOT NULL AND level = 'raw'")
    assert calls[0]["name"] == "Write"
    assert "x" * 100 not in json.dumps(calls)


def test_a_file_whose_last_session_is_too_long_stores_nothing(
    here: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MESSAGES_PER_CALL", 10)
    file = tmp_path / "talk.jsonl"
    sessions = ["a", *["b"] * 11]
    file.write_text("".join(json.dumps({"session": s, "content": f"{n}"}) + "\n" for n, s in enumerate(sessions)))
    with pytest.raises(InvalidInput, match=r"line 12.*at most 10 "):
        raise_as_printed(nexus("ingest", str(file), "--namespace", NAMESPACE, "--json"))
    assert here.sql("SELECT 1 FROM memories") == []


def test_a_folder_of_topics_has_limits(here: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPIC_FILES", 3)
    monkeypatch.setattr(limits, "TOPIC_BYTES", 1_000)
    for number in range(3):
        text = f"---\nname: t{number}\ndescription: d\nmetadata:\n  type: user\n---\nText.\n"
        (tmp_path / f"t{number}.md").write_text(text)
    (tmp_path / "t3.md").write_text("x" * 1_001)
    with pytest.raises(InvalidInput, match="at most 3 "):
        Nexus().import_markdown(NAMESPACE, tmp_path)
    (tmp_path / "t0.md").unlink()
    with pytest.raises(InvalidInput, match="more than 1,000 bytes"):
        Nexus().import_markdown(NAMESPACE, tmp_path)
    assert here.sql("SELECT 1 FROM topics") == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["con.md", "deploy.md", "a b.md"])  # a name that no topic may have is no way around
def test_a_pipe_or_a_device_in_a_folder_of_topics_holds_up_nothing(here: Sandbox, tmp_path: Path, name: str) -> None:
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir):
        (folder := tmp_path / uuid.uuid4().hex).mkdir()
        make(folder / name)
        with pytest.raises(InvalidInput, match="not a plain file"):
            Nexus().import_markdown(NAMESPACE, folder)
    assert here.sql("SELECT 1 FROM topics") == []


# --- arguments: every public method, every kind of job, every command -------------------------------------------------
TEXT = "x" * (limits.MESSAGE_CHARACTERS + 1)
BEYOND: Mapping[arguments.Check, Callable[[], Any]] = {
    arguments.CHECKS["namespace"]: lambda: "x" * (limits.WORD_CHARACTERS + 1),
    arguments.CHECKS["kind"]: lambda: "x" * (limits.WORD_CHARACTERS + 1),
    arguments.CHECKS["job_id"]: lambda: "x" * (limits.JOB_ID_CHARACTERS + 1),
    arguments.CHECKS["reflection"]: lambda: "x" * (limits.JOB_ID_CHARACTERS + 1),
    arguments.CHECKS["text"]: lambda: TEXT,
    arguments.CHECKS["query"]: lambda: "x" * (limits.QUERY_CHARACTERS + 1),
    arguments.CHECKS["levels"]: lambda: itertools.repeat("raw"),
    arguments.CHECKS["messages"]: lambda: [{"content": TEXT}],
    arguments.CHECKS["limit"]: lambda: limits.PAGE_ROWS + 1,
    arguments.CHECKS["offset"]: lambda: limits.PAGE_OFFSET + 1,
    arguments.CHECKS["folder"]: lambda: "x" * (limits.PATH_BYTES + 1),
    arguments.CHECKS["path"]: lambda: "x" * (limits.PATH_BYTES + 1),
    arguments.CHECKS["memory_id"]: lambda: 2**63,
    arguments.CHECKS["max_tokens"]: lambda: 2**63,
    arguments.CHECKS["after"]: lambda: 2**63,
    arguments.CHECKS["concurrency"]: lambda: 2**31,
    arguments.CHECKS["grace"]: lambda: 1e13,
}
# Of these no value is too large.
UNBOUNDED = {arguments.CHECKS["end"], arguments.CHECKS["since"], arguments.CHECKS["on_sentence"]}
SOUND = {"namespace": NAMESPACE, "session_key": SESSION, "query": "tea", "messages": [{"content": "x"}], "text": "x"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("here")
def test_every_argument_of_every_method_has_a_limit(method: str, tmp_path: Path) -> None:
    client = Nexus()
    client.ingest(NAMESPACE, SESSION, [{"content": "kept", "id": "1"}])
    parameters = list(inspect.signature(getattr(Nexus, method)).parameters.values())[1:]
    sound = {
        one.name: tmp_path if one.name in ("path", "folder") else SOUND.get(one.name, "sound")
        for one in parameters
        if one.default is one.empty
    }
    for one in parameters:
        check = arguments.CHECKS[one.name]
        if check in UNBOUNDED:
            continue
        with pytest.raises(InvalidInput) as caught:
            getattr(client, method)(**sound | {one.name: BEYOND[check]()})
        assert caught.value.remedy, one.name
        assert len(caught.value.message) < 1_000, one.name
    assert [said.content for said in details(client).said] == ["kept"]


def details(client: Nexus) -> SessionDetails:
    return client.session(NAMESPACE, SESSION)


@pytest.mark.usefixtures("here")
def test_every_text_of_a_job_s_arguments_has_a_limit() -> None:
    tried = 0
    for kind in default_deployment().engine.kinds().values():
        if not kind.arguments.__module__.startswith("nexus_tasks."):
            continue  # a kind of another test
        fields = kind.arguments.model_fields
        sound = {
            name: NAMESPACE if name == "namespace" else 1 if int in flat(field.annotation) else "sound"
            for name, field in fields.items()
            if field.is_required()
        }
        for name, field in fields.items():
            if str in flat(field.annotation):
                tried += 1
                with pytest.raises(InvalidInput) as caught:
                    kind.parse((), sound | {name: "x" * 100_000})
                assert len(caught.value.message) < 2_000, (kind.name, name)
    assert tried > 10


def flat(annotation: Any) -> set[Any]:
    several = typing.get_args(annotation)
    return {annotation} if not several else {each for one in several for each in flat(one)}


@pytest.mark.parametrize(("path", "leaf"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
@pytest.mark.usefixtures("here")
def test_every_text_of_a_command_has_a_limit(path: tuple[str, ...], leaf: Any) -> None:
    texts = [one for one in leaf.params if one.type_descriptor.annotation in (str, list[str], Path)]
    for one in texts:
        line = list(path)
        for other in leaf.params:
            if other is not one and not other.required:
                continue
            value = TEXT if other is one else NAMESPACE
            line += [value] if other.param_type_name == "argument" else [f"{other.opts[0]}={value}"]
        done = nexus(*line)
        assert done.returncode in (1, 2), (line[:4], one.name, done.stdout[:500])
        assert "Traceback" not in done.stderr
