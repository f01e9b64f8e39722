"""Topics in and out: from a hook's turn to the next session's beginning, as Markdown, and by the commands."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nexus_tasks import Message, Nexus, limits
from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.cli import progress, transfer
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.services import buffer_flush, context_cache
from nexus_tasks.transcripts import context_file, events
from nexus_tasks.types import MarkdownImport
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, pending, say, work
from tests.sandbox import Sandbox
from tests.transcripts.generate import Transcript

KIND = "extract_session"
SAID = tuple(
    f"We decided on {day} that thing {n} moves to shelf {n}." for n, day in enumerate(("Monday", "Friday") * 2)
)


def event(here: Sandbox, name: str, path: Path) -> None:
    kept = events.payload(events.CLAUDE_CODE, {"hook_event_name": name, "transcript_path": str(path)})
    SessionBuffer(here.folder / "buffer").append(NAMESPACE, "chat", kept, events.CLAUDE_CODE)


def test_a_turn_of_the_hook_is_extracted_and_the_next_session_is_told(here: Sandbox, tmp_path: Path) -> None:
    made, path = Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    for text in SAID:
        made.prompt(text)
    made.write(path)
    event(here, "PreCompact", path)
    buffer_flush.store_buffer(default_deployment())
    assert [claim.kind for claim in pending() if claim.kind == KIND] == []  # not on every ingest
    event(here, "Stop", path)
    buffer_flush.store_buffer(default_deployment())
    assert [claim.kind for claim in pending() if claim.kind == KIND] == [KIND]
    assert here.sql("SELECT state FROM extractions") == [("wanted",)]
    work()
    assert [one.filename for one in Nexus().topics(NAMESPACE)] == ["decisions.md"]
    context_cache.refresh(default_deployment(), NAMESPACE)
    told = context_file.take(str(here.folder), NAMESPACE)
    assert "### Decisions (decisions.md): What was decided, and when\n- We decided on Monday that thing 0" in told
    made.prompt("We decided that thing 9 stays.")
    made.write(path)
    event(here, "SessionEnd", path)
    buffer_flush.store_buffer(default_deployment())
    assert [one["status"] for one in work(KIND)] == ["completed"]  # one message is enough at the end


@pytest.mark.usefixtures("here")
def test_the_end_of_a_session_asks_only_when_it_was_extracted_before() -> None:
    say(*SAID, end=True)
    assert KIND not in {claim.kind for claim in pending()}
    Nexus().extract(NAMESPACE, "chat")
    work()
    Nexus().ingest(NAMESPACE, "chat", [Message(content=f"And {text}") for text in SAID], end=True)
    assert KIND in {claim.kind for claim in pending()}


@pytest.mark.usefixtures("here")
def test_topics_go_to_markdown_and_back(tmp_path: Path) -> None:
    say(*SAID)
    asked = json.loads(nexus("extract", "chat", "--namespace", NAMESPACE, "--json").stdout)
    assert (asked["status"], asked["reasons"]) == ("pending", ["turn"])
    work()
    folder, again = tmp_path / "memory", tmp_path / "again"
    told = nexus("export", "--markdown", str(folder), "--namespace", NAMESPACE, "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["topics"] == 1
    assert {path.name for path in folder.iterdir()} == {
        ".nexus-export.json",
        "MEMORY.md",
        "decisions.md",
        "facts.md",
    }
    assert "](decisions.md)" in (folder / "MEMORY.md").read_text()
    assert "thing 1 moves to shelf 1. [m" in (folder / "facts.md").read_text()
    (folder / "notes.txt").write_text("no topic")
    told = nexus("import", "--markdown", str(folder), "--namespace", "copy", "--json")
    assert json.loads(told.stdout) == {
        "namespace": "copy",
        "folder": str(folder),
        "topics": 1,
        "changed": 1,
        "revised": 0,
    }
    told_again = Nexus().import_markdown("copy", folder)
    assert (told_again.topics, told_again.changed) == (1, 0)
    Nexus().export_markdown("copy", again)
    assert (again / "decisions.md").read_text() == (folder / "decisions.md").read_text()
    assert (again / "MEMORY.md").read_text() == (folder / "MEMORY.md").read_text()
    assert "decisions.md  [project]" in nexus("topics", "list", "--namespace", "copy").stdout
    shown = nexus("topics", "show", "decisions.md", "--namespace", "copy")
    assert shown.stdout.strip() == Nexus().topic("copy", "decisions.md").content
    (folder / "con.md").write_text("x")
    (folder / "decisions.md").write_text("changed")
    with pytest.raises(InvalidInput, match=r"con\.md"):
        Nexus().import_markdown("copy", folder)
    assert Nexus().topic("copy", "decisions.md").content != "changed"
    assert nexus("export", "--namespace", NAMESPACE).returncode == 2


@pytest.mark.usefixtures("here")
def test_a_topic_comes_back_from_markdown_as_it_was(tmp_path: Path) -> None:
    contents = (
        "one\u2028two\u2029three\x85four",
        "    indented\n\ntext",
        "x\u2028<!-- nexus:end -->\u2028y",
        "above\n\n---\n\nbelow\n\n---\n\nend",
        "```\nif (tea) {\n}\n```\n\n- [ ] more",
    )
    by_hand = "By hand:\n\n```\nwhile (tea) {\n}\n```\n\n---"
    for number, content in enumerate(contents):
        Nexus().write_topic(NAMESPACE, f"t{number}", content, name="Kiln")
    Nexus().export_markdown(NAMESPACE, tmp_path)
    Nexus().import_markdown("copy", tmp_path)
    files = [tmp_path / f"t{number}.md" for number in range(len(contents))]
    for path in files:
        path.write_text(f"{path.read_text()}\n{by_hand}\n")
    for _ in range(2):
        Nexus().export_markdown(NAMESPACE, tmp_path)
        Nexus().import_markdown(NAMESPACE, tmp_path)
    for path, content in zip(files, contents, strict=True):
        assert Nexus().topic("copy", path.name).content == content
        assert Nexus().topic(NAMESPACE, path.name).content == f"{content}\n\n{by_hand}"
        assert path.read_text().count("By hand:") == 1


OUTSIDE = (
    "../evil.md",
    "{folder}/evil.md",
    "a/b.md",
    "..",
    "",
    ".bashrc",
    "MEMORY.md",
    "con.md",
    "\x1b[31m.md",
    "a\n.md",
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_topic_s_name_leads_out_of_the_folder_of_an_export(here: Sandbox, tmp_path: Path, name: str) -> None:
    """A forged export could write to any file, such as one that a shell runs."""
    name, topics, forged = name.format(folder=tmp_path), tmp_path / "topics", tmp_path / "forged.jsonl"
    topics.mkdir()
    (topics / "kept.md").write_text("---\nname: kept\ntype: user\ndescription: kept\n---\n\nThings.\n")
    Nexus().import_markdown(NAMESPACE, topics)
    Nexus().export(NAMESPACE, forged)
    lines = [json.loads(line) for line in forged.read_text().splitlines()]
    for line in lines:
        if line.get("table") == "topics":
            line["filename"] = name
    forged.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InvalidInput, match="no name of a topic's file"):
        Nexus().import_("forged", forged)
    # An earlier release stored such a name.
    here.sql("UPDATE topics SET filename = :name", name=name)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert Nexus().export_markdown(NAMESPACE, tmp_path / "out").topics == 0
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.relative_to(tmp_path).as_posix() for path in after.keys() - before.keys()} == {
        "out/.nexus-export.json",
        "out/MEMORY.md",
        "out/facts.md",
    }
    assert all(after[path] == text for path, text in before.items())


@pytest.mark.usefixtures("here")
def test_an_import_of_markdown_reads_a_bounded_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(*SAID)
    folder = tmp_path / "memory"
    Nexus().export_markdown(NAMESPACE, folder)
    with (folder / "facts.md").open("a") as file:
        file.truncate(300_000)
    monkeypatch.setattr(limits, "FILE_BYTES", 200_000)
    with pytest.raises(InvalidInput, match=r"facts\.md has more than 200,000 bytes"):
        Nexus().import_markdown(NAMESPACE, folder)
    with pytest.raises(InvalidInput, match=r"facts\.md has more than 200,000 bytes"):
        Nexus().export_markdown(NAMESPACE, folder)
    (folder / "facts.md").unlink()
    for n in range(3):
        (folder / f"topic-{n}.md").write_text("x" * 90_000)
    with pytest.raises(InvalidInput, match="more than 200,000 bytes together"):
        Nexus().import_markdown(NAMESPACE, folder)
    assert Nexus().topics(NAMESPACE) == []
    (folder / "topic-2.md").unlink()
    assert Nexus().import_markdown(NAMESPACE, folder).topics == 2


@pytest.mark.usefixtures("here")
def test_an_import_of_markdown_shows_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("A topic.")
    monkeypatch.setattr(progress, "LINE_EVERY", 0.05)
    read = Nexus.import_markdown

    def slowly(client: Nexus, namespace: str, folder: Path) -> MarkdownImport:
        time.sleep(0.5)
        return read(client, namespace, folder)

    monkeypatch.setattr(Nexus, "import_markdown", slowly)
    transfer.import_(NAMESPACE, markdown=tmp_path)
    assert f"reading {tmp_path}" in capsys.readouterr().err.replace("\n", "")
