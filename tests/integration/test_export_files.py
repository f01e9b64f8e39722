"""An export harms nothing: devices, links and files of others stay as they are."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import InvalidInput
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, say
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


# --- Markdown ---------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("spoken")
def test_markdown_replaces_only_what_an_export_has_written(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    Nexus().export_markdown(NAMESPACE, folder)
    Nexus().export_markdown(NAMESPACE, folder)  # its own files are replaced
    (folder / "facts.md").write_text("my own notes")
    with pytest.raises(InvalidInput, match=r"did not write: facts\.md"):
        Nexus().export_markdown(NAMESPACE, folder)
    assert (folder / "facts.md").read_text() == "my own notes"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "MEMORY.md").write_text("of another tool")
    told = nexus("export", "--markdown", str(mine), "--namespace", NAMESPACE, "--force")
    assert told.returncode == 1
    assert [(found.name, found.read_text()) for found in mine.iterdir()] == [("MEMORY.md", "of another tool")]


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
