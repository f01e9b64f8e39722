"""Transcripts of Claude Code: what becomes a message, and reading on where the last reading ended."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers import read
from nexus_tasks.transcripts import codex, position
from nexus_tasks.transcripts.claude_code import Reader
from nexus_tasks.transcripts.excerpt import excerpt
from nexus_tasks.transcripts.position import Position, read_on
from nexus_tasks.transcripts.reader import shortened
from nexus_tasks.transcripts.scrubbing import scrub
from tests.transcripts import planted
from tests.transcripts.codex import SESSION, Rollout
from tests.transcripts.generate import Transcript, day_at_work


def messages(transcript: Transcript) -> list[tuple[str, str | None, str]]:
    found = Reader().messages(transcript.text().encode().split(b"\n"))
    return [(one["role"], one.get("author"), one["content"].split("\n")[0]) for one in found]


def test_what_was_said_and_done_becomes_messages() -> None:
    assert messages(day_at_work()) == [
        ("user", None, "Please fix the failing test in the cart."),
        ("assistant", None, "I will look at the test first."),
        ("assistant", None, "Ran: pytest -q"),
        ("tool", "Bash", "Error: FAILED tests/test_cart.py"),
        ("assistant", None, "Edited /home/ann/shop/cart.py"),
        ("tool", "Edit", "The file has been updated."),
        ("assistant", None, "Read: /x.log"),
        ("tool", "Read", "line"),
        ("assistant", None, "Task: Search"),
        ("tool", "Task", "done"),
        ("assistant", "subagent", "Grep: cart"),
        ("tool", "Grep", "cart.py:1"),
        ("assistant", "subagent", "There are three uses of it."),
        ("user", None, "We deploy on Tuesdays, remember that."),
        ("assistant", None, "Noted."),
        ("user", None, "/review cart.py"),
    ]


def test_structure_is_kept_and_results_are_cut() -> None:
    found = list(Reader().messages(day_at_work().text().encode().split(b"\n")))
    [ran] = [one for one in found if one["content"].startswith("Ran:")]
    [call] = ran["tool_calls"]
    assert (call["name"], call["input"]["command"]) == ("Bash", "pytest -q")
    failed = found[found.index(ran) + 1]
    assert failed["tool_calls"] == [{"result_of": call["id"], "error": True}]
    assert all(len(one["content"]) < 3_000 for one in found)
    assert any("characters left out" in one["content"] for one in found)
    assert len({one["id"] for one in found}) == len(found)
    assert all(one["occurred_at"].startswith("2026-11-02T09:0") for one in found)


@pytest.mark.parametrize(
    "line",
    [
        b"{broken",
        b"\xff\xfe",
        b"[1]",
        b"null",
        b'{"type": "user", "uuid": 3, "message": {"content": "x"}}',
        b'{"type": "user", "uuid": "u", "message": "x"}',
        b'{"type": "user", "uuid": "u", "message": {"content": {"a": 1}}}',
        b'{"type": "user", "uuid": "u", "message": {"content": [null, 3, {"type": "text"}, {"type": "new"}]}}',
        b'{"type": "assistant", "uuid": "u", "message": {"content": [{"type": "text", "text": 5}]}}',
        b'{"type": "user", "uuid": "u", "message": {"content": ""}}',
        b"[" * 100_000,
        b"",
    ],
)
def test_what_is_no_message_is_left_out(line: bytes) -> None:
    good = Transcript()
    good.prompt("still here")
    found = list(Reader().messages([line, *good.text().encode().split(b"\n"), line]))
    assert [one["content"] for one in found] == ["still here"]


def test_a_line_behind_the_zeros_of_a_power_cut_is_read() -> None:
    made = Transcript()
    made.prompt("before")
    made.prompt("after")
    before, after = (line.encode() for line in made.lines)
    reader = Reader()
    assert [one["content"] for one in reader.messages([before, bytes(4_096) + after])] == ["before", "after"]
    assert reader.broken == 0


def test_reading_goes_on_where_it_ended(tmp_path: Path) -> None:
    made, path = Transcript(), tmp_path / "t.jsonl"
    made.prompt("one")
    made.write(path)
    news = read_on("claude-code", str(path), Position())
    assert [one["content"] for one in news.messages] == ["one"]
    position.save(str(tmp_path), str(path), "shop", news.position)
    assert position.load(str(tmp_path), str(path), "shop") == news.position
    assert position.load(str(tmp_path), str(path), "ann") == Position()
    made.prompt("two")
    path.write_text(made.text() + '{"type": "user", "uuid": "half')
    news = read_on("claude-code", str(path), news.position)
    assert [one["content"] for one in news.messages] == ["two"]  # the line that is being written waits
    assert news.broken == 0
    assert read_on("claude-code", str(path), news.position).messages == []


def test_a_position_of_an_older_release_counts_until_the_namespace_has_its_own(tmp_path: Path) -> None:
    older = tmp_path / f"{hashlib.sha256(b't').hexdigest()[:32]}.json"
    older.write_text('{"offset": 5, "mark": "x", "open_calls": {"a": "Bash"}, "path": "t"}')
    assert position.load(str(tmp_path), "t", "shop") == Position(5, "x", {"a": "Bash"})
    position.save(str(tmp_path), "t", "shop", Position(7, "y", {}))
    assert position.load(str(tmp_path), "t", "shop") == Position(7, "y", {})


def test_a_call_and_its_result_may_be_read_apart(tmp_path: Path) -> None:
    made, path = Transcript(), tmp_path / "t.jsonl"
    made.call("Bash", "ok", command="ls")
    path.write_text(f"{made.lines[0]}\n")
    first = read_on("claude-code", str(path), Position())
    made.write(path)
    [result] = read_on("claude-code", str(path), first.position).messages
    assert result["author"] == "Bash"


def test_a_file_that_was_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    made, path = day_at_work(), tmp_path / "t.jsonl"
    first = read_on("claude-code", str(made.write(path)), Position())
    made.lines = [*made.lines[-4:]]
    made.prompt("after the rewrite")
    news = read_on("claude-code", str(made.write(path)), first.position)
    known = {one["id"] for one in first.messages}
    assert [one["content"] for one in news.messages if one["id"] not in known] == ["after the rewrite"]
    assert len(news.messages) == 4


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        '{"offset": 1e400, "mark": "x", "open_calls": {}}',
        '{"offset": -5, "mark": "x", "open_calls": {}}',
        '{"offset": 99999, "mark": "", "open_calls": {}}',
    ],
    ids=["cut off", "deep", "infinite", "negative", "without a mark"],
)
def test_a_position_that_cannot_be_read_is_the_beginning(tmp_path: Path, text: str) -> None:
    position.save(str(tmp_path), "t", "shop", Position(5, "x", {}))
    [file] = tmp_path.glob("*.json")
    file.write_text(text)
    assert position.load(str(tmp_path), "t", "shop") == Position()


def test_no_secret_comes_out_of_a_transcript_wherever_it_went_in() -> None:
    made = Transcript()
    secrets = list(planted.tokens().values())
    for number, secret in enumerate(secrets):
        made.prompt(f"use {secret} please")
        made.answer(f"I have set it to `{secret}`.")
        made.call("Bash", f"ok {secret} " + "x " * 4_500 * (number % 2), command=f"export X={secret}")
        made.call(
            "Write", {"x": 1}, file_path=f"/tmp/{secret}/a", content="y " * 495 + secret, **{secret: [{secret: secret}]}
        )
        made.call("mcp__x", [{"type": "text", "text": f'{{"a": "{secret}"}}'}], body=f'{{\\"deep\\": \\"{secret}\\"}}')
    made.prompt(planted.private_key())
    context = planted.in_context()
    for text, _ in context.values():
        made.prompt(text)
    found = str(list(Reader().messages(made.text().encode().split(b"\n"))))
    assert [secret for secret in secrets if secret in found or secret[10:] in found] == []
    assert [name for name, (_, secret) in context.items() if secret in found] == []
    assert planted.private_key().splitlines()[3] not in found


def test_an_excerpt_has_no_half_of_a_secret_at_its_edge() -> None:
    secret = planted.tokens()["github"]
    for pad in (960, 985, 1_000, 40_000):
        text = "x " * (pad // 2) + secret + " y" * 30_000
        assert secret[:20] not in excerpt(text, 2_000, lambda part: part.replace(secret, "[gone]"))


HEADS = {
    "CSV": "id,login,password\n",
    "psql": " id | login | password \n----+-------+----------\n",
    "TSV": "id\tlogin\tpassword\n",
}


@pytest.mark.parametrize("kind", HEADS)
def test_the_end_of_a_long_table_is_scrubbed_by_the_head_of_the_table(kind: str) -> None:
    sign = {"CSV": ",", "psql": " | ", "TSV": "\t"}[kind]
    rows = [f"{n}{sign}user{n}{sign}tulip-{n}-meadow" for n in range(2_000)]
    table = HEADS[kind] + "\n".join(rows) + "\n"
    for length in (len(table), 25_000, 19_000, 13_000):
        text = table[:length].rpartition("\n")[0]
        shown = excerpt(text, 2_000, scrub)
        assert "user1" in shown
        assert "meadow" not in shown, length
        [kept] = shortened({"content": text}).values()
        assert "user1" in kept
        assert "meadow" not in kept, length


def test_a_transcript_is_imported_and_told_by_its_content(tmp_path: Path) -> None:
    path = day_at_work().write(tmp_path / "t.jsonl")
    [told] = read(path, "auto", namespace="acme")
    [said] = read(path, "claude-code", namespace="acme", session="mine")
    assert (told.session_key, said.session_key) == ("0b9d3c5e", "mine")
    assert told.messages == said.messages
    assert len(told.messages) == 16


def test_what_is_no_transcript_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"content": "one"}\n')
    with pytest.raises(InvalidInput, match="not a transcript"):
        list(read(path, "claude-code", namespace="acme"))
    [found] = read(path, "auto", namespace="acme")
    assert [one.content for one in found.messages] == ["one"]


ODD = ({"file_path": 5}, {"file_path": ["a"]}, {"notebook_path": {"a": 1}}, {"command": []})


@pytest.mark.parametrize("given", ODD)
def test_odd_arguments_of_a_tool_stop_no_reading(given: dict[str, object]) -> None:
    blocks = [{"type": "tool_use", "name": "Read", "input": given}, {"type": "text", "text": "Done."}]
    lines = [{"type": "assistant", "uuid": f"u{n}", "message": {"content": blocks}} for n in range(2)]
    found = list(Reader().messages(json.dumps(line).encode() for line in lines))
    assert ["Done." in one["content"] for one in found] == [True, True]


def test_a_pipe_and_an_endless_device_are_no_transcripts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            position.read_on("claude-code", str(path), Position())


def test_a_long_transcript_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "LONGEST_READING", 300)
    file = tmp_path / "t.jsonl"
    lines = [json.dumps({"type": "user", "uuid": f"u{n}", "message": {"content": f"Text {n}."}}) for n in range(9)]
    lines.insert(4, "x" * 1_000)
    file.write_text("\n".join(lines) + "\n")
    reached, said = Position(), list[str]()
    for _ in range(12):
        part = position.read_on("claude-code", str(file), reached)
        reached = part.position
        said += [one["content"] for one in part.messages]
    assert said == [f"Text {n}." for n in range(9)]
    assert reached.offset == file.stat().st_size


def test_what_codex_records_becomes_messages() -> None:
    made = Rollout()
    made.prompt("Fix it.", kind="plain")
    made.line("event_msg", type="user_message", message="<environment_context>", kind="environment_context")
    made.line("event_msg", type="user_message", message="", images=["data:image/png;base64,AAAA"])
    made.item("local_shell_call", call_id="a", status="completed", action={"type": "exec", "command": ["ls", "a b"]})
    made.item("function_call_output", call_id="a", output={"content": "no such file", "success": False})
    made.item("function_call", call_id="b", namespace="mcp__nexus__", name="remember", arguments='{"text": "Tuesdays"}')
    made.item("function_call_output", call_id="b", output=[{"type": "input_text", "text": "done"}, {"type": "image"}])
    made.item("function_call", call_id="c", name="odd", arguments="{broken")
    made.item("compaction", encrypted_content="gAAAA")
    made.item("message", role="assistant", content=[])
    made.line("compacted", message="A summary.", replacement_history=[])
    for broken in ({"type": "response_item", "payload": 3}, {"type": "event_msg"}, {"payload": {"type": "message"}}):
        made.lines.append(json.dumps(broken))
    made.lines += ["{broken", "3"]
    reader = codex.Reader()
    found = list(reader.messages([line.encode() for line in made.lines]))
    assert [(one["role"], one.get("author"), one["content"]) for one in found] == [
        ("user", None, "Fix it."),
        ("user", None, "[image]"),
        ("assistant", None, "Ran: ls 'a b'"),
        ("tool", "shell", "Error: no such file"),
        ("assistant", None, "mcp__nexus__remember: Tuesdays"),
        ("tool", "mcp__nexus__remember", "done"),
        ("assistant", None, "odd: {broken"),
    ]
    assert (reader.broken, reader.session_id, reader.open_calls) == (2, SESSION, {"c": "odd"})
    again = list(codex.Reader().messages([line.encode() + b"\r" for line in made.lines]))
    assert [one["id"] for one in again] == [one["id"] for one in found]
    assert len({one["id"] for one in found}) == len(found)
    assert all(one["occurred_at"] for one in found)


def test_a_transcript_of_codex_is_read_on_where_the_last_reading_ended(tmp_path: Path) -> None:
    made, path = Rollout(), tmp_path / "rollout.jsonl"
    made.item("function_call", call_id="a", name="read", arguments="{}")
    first = read_on("codex", str(made.write(path)), Position())
    made.item("function_call_output", call_id="a", output="x")
    [result] = read_on("codex", str(made.write(path)), first.position).messages
    assert result["author"] == "read"
