"""An export harms nothing: devices, links and files of others stay as they are."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Nexus, files
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.files import write_atomic
from nexus_tasks.storage import statistics, topics
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, facts, say, work
from tests.sandbox import Sandbox


def link_to_a_file(path: Path) -> None:
    (path.parent / "target").write_text("mine")
    path.symlink_to(path.parent / "target")


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def device(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root makes devices")
    try:
        os.mknod(path, 0o20666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices can be made here")


IRREGULAR: tuple[Callable[[Path], None], ...] = (link_to_a_file, link_to_nothing, device, os.mkfifo, Path.mkdir)


@pytest.fixture
def spoken(here: Sandbox) -> Sandbox:
    """A namespace with a message."""
    say("I moved to Lisbon.")
    return here


@pytest.mark.usefixtures("spoken")
@pytest.mark.parametrize("make", IRREGULAR)
def test_only_a_regular_file_is_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "memory.jsonl"
    make(path)
    before = path.lstat()
    for arguments in ((), ("--force",)):
        told = nexus("export", str(path), "--namespace", NAMESPACE, *arguments)
        assert told.returncode == 1
        assert "not a regular file" in told.stderr
    with pytest.raises(InvalidInput, match="not a regular file"):
        Nexus().export(NAMESPACE, path)
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)
    if make is link_to_a_file:
        assert (tmp_path / "target").read_text() == "mine"
    assert {found.name for found in tmp_path.iterdir()} <= {"memory.jsonl", "target"}, "no draft stays"


@pytest.mark.usefixtures("spoken")
def test_a_file_that_exists_is_replaced_only_when_it_is_wished(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    path.write_text("mine")
    told = nexus("export", str(path), "--namespace", NAMESPACE, "--json")
    assert told.returncode == 1
    assert "--force" in json.loads(told.stdout)["error"]["remedy"]
    with pytest.raises(InvalidInput, match="exists"):
        Nexus().export(NAMESPACE, path, overwrite=False)
    assert path.read_text() == "mine"
    assert nexus("export", str(path), "--namespace", NAMESPACE, "--force").returncode == 0
    assert '"end"' in path.read_text()


def test_a_terminal_is_asked(spoken: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    path.write_text("mine")
    for answer, code in (("n\n", 1), ("y\n", 0)):
        ours, theirs = pty.openpty()
        os.write(ours, answer.encode())
        told = subprocess.run(
            [sys.executable, "-m", "nexus_tasks.cli.main", "export", str(path), "--namespace", NAMESPACE],
            stdin=theirs,
            capture_output=True,
            text=True,
            env=spoken.environment,
            check=False,
            timeout=60,
        )
        os.close(ours)
        os.close(theirs)
        assert told.returncode == code, told.stderr
        assert "Replace it?" in told.stderr
        assert (path.read_text() == "mine") == (code == 1)


@pytest.mark.parametrize("encoding", ["iso8859-1", "ascii", "cp1252"])
def test_an_export_through_a_pipe_loses_no_character_in_any_locale(
    here: Sandbox, tmp_path: Path, encoding: str
) -> None:
    told = "Grüße aus 東京 😀"
    say(told)
    settings = here.environment | {"PYTHONIOENCODING": encoding}

    def run(*line: str, given: bytes = b"") -> bytes:
        command = [sys.executable, "-P", "-m", "nexus_tasks.cli.main", *line]
        ran = subprocess.run(command, input=given, capture_output=True, env=settings, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    written = run("export", "-", "--namespace", NAMESPACE)
    assert told in [json.loads(line).get("content") for line in written.splitlines()]
    in_utf8 = tmp_path / "memory.jsonl"
    Nexus().export(NAMESPACE, in_utf8)
    run("import", "-", "--namespace", "again", given=in_utf8.read_bytes())
    assert [one.content for one in Nexus().session("again", "chat").said] == [told]
    prompt = run("context", "--namespace", "again", "--session", "chat", "--format", "openai")
    assert told in json.dumps(json.loads(prompt), ensure_ascii=False)


def test_a_dash_is_the_standard_output_and_input(
    spoken: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = nexus("export", "-", "--namespace", NAMESPACE)
    assert told.returncode == 0, told.stderr
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert lines[-1] == {"end": len(lines) - 2}
    assert "rows written to the standard output" in told.stderr
    assert list(tmp_path.iterdir()) == []
    assert nexus("export", "-", "--namespace", NAMESPACE, "--json").returncode == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO(told.stdout))
    assert nexus("import", "-", "--namespace", "copy").returncode == 0
    assert spoken.sql("SELECT content FROM memories ORDER BY id") == [("I moved to Lisbon.",)] * 2


@pytest.mark.usefixtures("spoken")
def test_an_import_that_is_interrupted_after_its_commit_does_not_deny_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.jsonl"
    assert nexus("export", str(path), "--namespace", NAMESPACE).returncode == 0

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(statistics, "MANY", 1)
    monkeypatch.setattr(statistics, "analyze", interrupted)
    told = nexus("import", str(path), "--namespace", "copy")
    assert told.returncode == 130
    assert Nexus().sessions("copy")
    assert "Interrupted. Either all" in told.stderr
    assert "nexus sessions list --namespace copy" in told.stderr


# --- Markdown ---------------------------------------------------------------------------------------------------------
HAND = "# My notes\n\n- The kiln is in the cellar.\n"


def known(content: str, filename: str = "kiln.md", name: str = "Kiln") -> None:
    """Store a topic as extraction does."""
    space = default_deployment().namespace(NAMESPACE)
    assert space is not None
    made = topics.TopicDraft(
        filename=filename, name=name, description="About it.", type="project", content=content, made_by="x"
    )
    with default_deployment().database.transaction() as tx:
        topics.overwrite(tx, space.id, [made])


def fact_lines(folder: Path) -> list[str]:
    return [line for line in (folder / "facts.md").read_text().splitlines() if line.startswith("- ")]


@pytest.mark.usefixtures("spoken")
def test_an_export_keeps_what_is_written_by_hand(tmp_path: Path) -> None:
    known("- The kiln is in the cellar.\n- It is fired on Mondays.")
    for name in ("MEMORY.md", "kiln.md", "facts.md"):
        (tmp_path / name).write_text(HAND)
    (tmp_path / "kiln.md").chmod(0o640)
    for _ in range(2):
        Nexus().export_markdown(NAMESPACE, tmp_path)
        for name in ("MEMORY.md", "kiln.md", "facts.md"):
            assert (tmp_path / name).read_text().startswith(HAND), name
    written = (tmp_path / "kiln.md").read_text()
    assert written == f"{HAND}\n<!-- nexus:begin -->\n- It is fired on Mondays.\n<!-- nexus:end -->\n"
    assert (tmp_path / "kiln.md").stat().st_mode & 0o777 == 0o640
    assert "[Kiln](kiln.md)" in (tmp_path / "MEMORY.md").read_text()
    (tmp_path / "kiln.md").write_text(written.replace("# My notes", "# My own notes") + "\nAt the end.\n")
    known("- It is fired on Tuesdays.")
    Nexus().export_markdown(NAMESPACE, tmp_path)
    assert (tmp_path / "kiln.md").read_text() == (
        f"{HAND.replace('My notes', 'My own notes')}\n<!-- nexus:begin -->\n- It is fired on Tuesdays.\n"
        "<!-- nexus:end -->\n\nAt the end.\n"
    )


@pytest.mark.usefixtures("spoken")
def test_edits_of_the_section_are_kept_until_they_are_read(tmp_path: Path) -> None:
    known("- It is fired on Mondays.\n- It is hot.")
    Nexus().export_markdown(NAMESPACE, tmp_path)
    path = tmp_path / "kiln.md"
    path.write_text(
        path.read_text().replace("Mondays", "Fridays").replace("<!-- nexus:begin", "By hand.\n<!-- nexus:begin")
    )
    edited = {found.name: found.read_text() for found in tmp_path.iterdir()}
    told = nexus("export", "--markdown", str(tmp_path), "--namespace", NAMESPACE)
    assert (told.returncode, "kiln.md" in told.stderr, "nexus import --markdown" in told.stderr) == (1, True, True)
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == edited
    read = Nexus().import_markdown(NAMESPACE, tmp_path)
    assert (read.topics, read.changed, read.revised) == (1, 1, 0)
    assert Nexus().topic(NAMESPACE, "kiln.md").content == "By hand.\n\n- It is fired on Fridays.\n- It is hot."
    known("- It is fired on Fridays.\n- It is cold.")
    Nexus().export_markdown(NAMESPACE, tmp_path)
    assert "By hand.\n<!-- nexus:begin -->\n- It is fired on Fridays.\n- It is cold." in path.read_text()


@pytest.mark.usefixtures("spoken")
@pytest.mark.parametrize("inside", [False, True])
def test_what_a_person_writes_during_an_export_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """An editor saves ``MEMORY.md`` after the export has read it and before the export writes it."""
    known("- It is hot.")
    Nexus().export_markdown(NAMESPACE, tmp_path)
    index = tmp_path / "MEMORY.md"

    def write(path: str, content: bytes, **options: Any) -> None:
        if path.endswith("kiln.md"):
            old = index.read_text()
            index.write_text(old.replace("About it.", "Mine!") if inside else f"Mine!\n{old}")
        write_atomic(path, content, **options)

    known("- It is cold.")
    known("- other", "other.md", "Other")
    monkeypatch.setattr(files, "write_atomic", write)
    if inside:
        with pytest.raises(InvalidInput, match=r"MEMORY\.md"):
            Nexus().export_markdown(NAMESPACE, tmp_path)
    else:
        Nexus().export_markdown(NAMESPACE, tmp_path)
        assert "[Other](other.md)" in index.read_text()
    assert "Mine!" in index.read_text()
    assert "It is cold." in (tmp_path / "kiln.md").read_text()
    monkeypatch.undo()
    Nexus().import_markdown(NAMESPACE, tmp_path)
    if not inside:  # an import does not read the section of MEMORY.md
        Nexus().export_markdown(NAMESPACE, tmp_path)
        assert "Mine!" in index.read_text()


@pytest.mark.usefixtures("spoken")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("MEMORY.md", "About it.", "Mine!"), ("facts.md", "\n<!-- nexus:end", "\n- Mine!\n<!-- nexus:end")],
)
def test_lines_that_no_import_reads_stay_until_a_person_moves_them(
    tmp_path: Path, name: str, old: str, new: str
) -> None:
    known("- It is hot.")
    Nexus().export_markdown(NAMESPACE, tmp_path)
    path = tmp_path / name
    exported = path.read_text()
    path.write_text(exported.replace(old, new))
    for _ in range(2):
        with pytest.raises(InvalidInput) as refused:
            Nexus().export_markdown(NAMESPACE, tmp_path)
        assert name in refused.value.message
        assert "move these out of the section" in (refused.value.remedy or "")
        Nexus().import_markdown(NAMESPACE, tmp_path)
    assert "Mine!" in path.read_text()
    path.write_text("Mine!\n")  # the section is deleted
    Nexus().export_markdown(NAMESPACE, tmp_path)
    assert path.read_text().startswith("Mine!\n")


@pytest.mark.usefixtures("spoken")
def test_an_old_folder_does_not_undo_what_was_learned_since(tmp_path: Path) -> None:
    known("- one\n- two")
    known("- other", "other.md", "Other")
    Nexus().export_markdown(NAMESPACE, tmp_path)
    known("- one\n- two\n- three")
    known("- other, learned later", "other.md", "Other")
    path = tmp_path / "kiln.md"
    path.write_text(path.read_text().replace("- two", "- two\n- by hand"))
    assert Nexus().import_markdown(NAMESPACE, tmp_path).changed == 1
    assert Nexus().topic(NAMESPACE, "kiln.md").content == "- one\n- two\n- three\n- by hand"
    assert Nexus().topic(NAMESPACE, "other.md").content == "- other, learned later"
    assert Nexus().import_markdown("copy", tmp_path).changed == 2  # another namespace reads the whole folder


@pytest.mark.usefixtures("spoken")
def test_what_was_learned_since_an_export_outlives_each_import_of_its_folder(tmp_path: Path) -> None:
    known("- one\n- two")
    known("- other", "other.md", "Other")
    Nexus().export_markdown(NAMESPACE, tmp_path)
    known("- one\n- two\n- three")
    known("- other\n- learned later", "other.md", "Other")
    kiln, other = tmp_path / "kiln.md", tmp_path / "other.md"
    kiln.write_text(kiln.read_text().replace("- two", "- two\n- by hand"))
    for _ in range(2):
        Nexus().import_markdown(NAMESPACE, tmp_path)
        assert Nexus().topic(NAMESPACE, "kiln.md").content == "- one\n- two\n- three\n- by hand"
    other.write_text(other.read_text().replace("- other", "- other\n- mine"))
    Nexus().import_markdown(NAMESPACE, tmp_path)
    assert Nexus().topic(NAMESPACE, "other.md").content == "- other\n- learned later\n- mine"
    Nexus().export_markdown(NAMESPACE, tmp_path)
    for gone, left in (("- one\n", "- two\n- three\n- by hand"), ("- two\n", "- three\n- by hand")):
        kiln.write_text(kiln.read_text().replace(gone, ""))  # nothing was learned meanwhile, so the file decides
        Nexus().import_markdown(NAMESPACE, tmp_path)
        assert Nexus().topic(NAMESPACE, "kiln.md").content == left


@pytest.mark.usefixtures("spoken")
def test_the_files_of_erased_topics_go_and_edited_ones_stay_and_are_named(here: Sandbox, tmp_path: Path) -> None:
    names = ("plain.md", "edited.md", "framed.md", "link.md", "stays.md")
    for name in names:
        known(f"- The secret of {name} is tea.", name, name)
    (tmp_path / "own.md").write_text(HAND)
    Nexus().export_markdown(NAMESPACE, tmp_path)
    edited, framed, link = (tmp_path / name for name in names[1:4])
    edited.write_text(edited.read_text().replace("is tea", "is mine"))
    framed.write_text(HAND + framed.read_text().partition("---\n\n")[2])
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    before = {name: (tmp_path / name).read_text() for name in names}
    here.sql("DELETE FROM topics WHERE filename <> 'stays.md'")
    for _ in range(2):  # the second export finds the folder as the first has left it
        told = nexus("export", "--markdown", str(tmp_path), "--namespace", NAMESPACE)
        assert told.returncode == 0, told.stderr
        assert not (tmp_path / "plain.md").exists()
        assert edited.read_text() == before["edited.md"]
        assert framed.read_text() == HAND
        assert link.is_symlink()
        assert link.read_text() == before["link.md"]
        assert (tmp_path / "stays.md").read_text() == before["stays.md"]
        assert (tmp_path / "own.md").read_text() == HAND
        assert "edited.md" in told.stderr
        assert "link.md" in told.stderr
        assert "own.md" not in told.stderr
    assert "framed.md" not in told.stderr  # nothing of ours is left in it
    outside = tmp_path.parent / "outside.md"
    outside.write_text("mine")
    listed = json.loads((tmp_path / ".nexus-export.json").read_text())
    listed["revisions"]["../outside.md"] = 1
    listed["files"]["../outside.md"] = [hashlib.sha256(b"mine").hexdigest()]
    (tmp_path / ".nexus-export.json").write_text(json.dumps(listed))
    Nexus().export_markdown(NAMESPACE, tmp_path)
    assert outside.read_text() == "mine"
    Nexus().create_namespace("copy")
    Nexus().export_markdown("copy", tmp_path)
    assert edited.read_text() == before["edited.md"]  # another namespace's export deletes nothing


@pytest.mark.usefixtures("spoken")
def test_an_edited_line_of_facts_revises_the_fact(tmp_path: Path) -> None:
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"])
    say("I prefer tea to coffee.", "I live in Lisbon.", session="facts")
    work()
    Nexus().export_markdown(NAMESPACE, tmp_path)
    path = tmp_path / "facts.md"
    assert "Lisbon" in path.read_text()
    lines = len(fact_lines(tmp_path))
    path.write_text(path.read_text().replace("I live in Lisbon.", "I live in Porto.") + "\nMine: [m1].\n")
    with pytest.raises(InvalidInput, match=r"facts\.md"):
        Nexus().export_markdown(NAMESPACE, tmp_path)
    assert Nexus().import_markdown(NAMESPACE, tmp_path).revised == 1
    assert {(one.observer, one.content) for one in facts() if "live in" in one.content} == {
        ("assistant", "I live in Porto."),
        ("coach", "I live in Porto."),
    }
    assert Nexus().import_markdown(NAMESPACE, tmp_path).revised == 0  # again: nothing is left to revise
    Nexus().export_markdown(NAMESPACE, tmp_path)
    assert len(fact_lines(tmp_path)) == lines
    assert path.read_text().endswith("\nMine: [m1].\n")


@pytest.mark.usefixtures("spoken")
def test_an_edited_line_of_a_fact_that_holds_no_longer_is_named_and_not_replaced(tmp_path: Path) -> None:
    say("I prefer tea to coffee.", "I live in Lisbon.", session="facts")
    work()
    Nexus().export_markdown(NAMESPACE, tmp_path)
    path = tmp_path / "facts.md"
    [old] = [one for one in facts() if "live in" in one.content]
    Nexus().revise(NAMESPACE, old.id, "I live in Braga.")
    path.write_text(path.read_text().replace("I live in Lisbon.", "I live in Porto.").replace("tea to", "mate to"))
    read = nexus("import", "--markdown", str(tmp_path), "--namespace", NAMESPACE)
    assert "1 fact revised" in read.stdout
    assert f"m{old.id}" in read.stderr
    with pytest.raises(InvalidInput, match=r"facts\.md"):
        Nexus().export_markdown(NAMESPACE, tmp_path)
    assert "I live in Porto." in path.read_text()
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "Porto" not in line))
    assert Nexus().import_markdown(NAMESPACE, tmp_path).revised == 0
    Nexus().export_markdown(NAMESPACE, tmp_path)
    assert "I live in Braga." in path.read_text()


@pytest.mark.usefixtures("spoken")
def test_a_copied_line_of_facts_is_a_new_line_and_does_not_end_the_fact(tmp_path: Path) -> None:
    say("I live in Lisbon.", session="facts")
    work()
    Nexus().export_markdown(NAMESPACE, tmp_path)
    path = tmp_path / "facts.md"
    [line] = [line for line in path.read_text().splitlines(keepends=True) if "live in" in line]
    path.write_text(path.read_text().replace(line, line + line.replace("I live in Lisbon.", "I work in Sintra.")))
    assert Nexus().import_markdown(NAMESPACE, tmp_path).revised == 0
    assert [one.content for one in facts() if "live in" in one.content] == ["I live in Lisbon."]
    with pytest.raises(InvalidInput, match=r"facts\.md"):
        Nexus().export_markdown(NAMESPACE, tmp_path)
    assert "Sintra" in path.read_text()
    copied = line.replace("I live in Lisbon.", "I work in Sintra.")
    path.write_text(copied + path.read_text().replace(copied, ""))  # moved out of the section, as the error says
    assert Nexus().import_markdown(NAMESPACE, tmp_path).revised == 0
    Nexus().export_markdown(NAMESPACE, tmp_path)
    assert path.read_text().startswith(copied)


def test_a_namespace_of_the_same_name_elsewhere_is_another_namespace(spoken: Sandbox, tmp_path: Path) -> None:
    """The folder is imported on another machine. Facts there have the same numbers and the same subject."""
    known("- one")
    known("- gone", "gone.md", "Gone")
    say("I live in Lisbon.", session="facts")
    work()
    [told] = [one for one in facts() if "live in" in one.content]
    Nexus().export_markdown(NAMESPACE, tmp_path)
    spoken.sql("UPDATE namespaces SET name = 'elsewhere'")
    default_deployment().forget_namespace(NAMESPACE)
    say("I drink green tea.", session="facts")
    work()
    [other] = [one for one in facts() if "green tea" in one.content]
    path = tmp_path / "facts.md"
    path.write_text(path.read_text().replace(f"[m{told.id}]", f"[m{other.id}]"))
    read = Nexus().import_markdown(NAMESPACE, tmp_path)
    assert (read.topics, read.changed, read.revised) == (2, 2, 0)
    assert Nexus().topic(NAMESPACE, "kiln.md").content == "- one"
    assert Nexus().memory(NAMESPACE, other.id).superseded_by is None
    path.write_text(path.read_text().replace(f"[m{other.id}]", f"[m{told.id}]"))
    spoken.sql("DELETE FROM topics WHERE filename = 'gone.md'")
    assert Nexus().export_markdown(NAMESPACE, tmp_path).removed == 0
    assert "- gone" in (tmp_path / "gone.md").read_text()


@pytest.mark.usefixtures("spoken")
def test_a_folder_of_an_earlier_release_is_taken_over(tmp_path: Path) -> None:
    known("- one")
    old = {
        "MEMORY.md": "- [Kiln](kiln.md) - About it.\n",
        "kiln.md": '---\nname: "Kiln"\n---\n\n- none\n',
        "facts.md": "",
    }
    sums = {}
    for name, text in old.items():
        (tmp_path / name).write_text(text)
        sums[name] = [hashlib.sha256(text.encode()).hexdigest()]
    (tmp_path / ".nexus-export.json").write_text(json.dumps({"files": sums}))
    Nexus().export_markdown(NAMESPACE, tmp_path)
    assert (tmp_path / "kiln.md").read_text().endswith("---\n\n<!-- nexus:begin -->\n- one\n<!-- nexus:end -->\n")
    assert (tmp_path / "MEMORY.md").read_text().count("Kiln") == 1


@pytest.mark.usefixtures("spoken")
def test_an_export_that_is_killed_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known("- one")
    (tmp_path / "MEMORY.md").write_text(HAND)
    Nexus().export_markdown(NAMESPACE, tmp_path)
    known("- two")
    for left in range(5):
        writes = iter(range(left))

        def dying(*given: Any, writes: Any = writes, **options: Any) -> None:
            if next(writes, None) is None:
                raise KeyboardInterrupt
            write_atomic(*given, **options)

        with monkeypatch.context() as killed:
            killed.setattr(files, "write_atomic", dying)
            with pytest.raises(KeyboardInterrupt):
                Nexus().export_markdown(NAMESPACE, tmp_path)
    Nexus().export_markdown(NAMESPACE, tmp_path)
    assert "\n- two\n" in (tmp_path / "kiln.md").read_text()
    assert (tmp_path / "MEMORY.md").read_text().startswith(HAND)


@pytest.mark.usefixtures("spoken")
@pytest.mark.parametrize("name", ["MEMORY.md", "facts.md", ".nexus-export.json"])
@pytest.mark.parametrize("make", IRREGULAR)
def test_markdown_follows_no_link_and_touches_no_device(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    make(folder / name)
    before = (folder / name).lstat()
    with pytest.raises(InvalidInput):
        Nexus().export_markdown(NAMESPACE, folder)
    after = (folder / name).lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert {found.name for found in folder.iterdir()} <= {name, "target"}, "nothing was written"
    if make is link_to_a_file:
        assert (folder / "target").read_text() == "mine"


@pytest.mark.usefixtures("spoken")
def test_markdown_goes_to_a_folder_and_not_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(InvalidInput, match="symbolic link"):
        Nexus().export_markdown(NAMESPACE, tmp_path / "link")
    assert list((tmp_path / "real").iterdir()) == []
