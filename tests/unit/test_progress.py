"""What a person sees of long work while it stands still: a clock, what runs, and what waits and why."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from nexus_tasks.cli import progress, transfer
from nexus_tasks.cli.backlog import Backlog
from nexus_tasks.types import MarkdownExport, RunningJob, WaitingJob
from tests.sandbox import eventually

WAIT = WaitingJob(kind="derive_memory", scope="{}", reason="ripeness", detail="3 of 512 tokens", due_in_seconds=9.0)
RUN = RunningJob(id="j", kind="digest_session", scope="{}", for_seconds=61.0, worker=None)


def backlog(**changed: object) -> Backlog:
    nothing = {"underived": 0, "jobs": 0, "pending": 0, "running": 0, "waiting": 0, "digests": 0}
    return Backlog(**{**nothing, "runs": (), "waits": (), "paused": (), **changed})  # type: ignore[arg-type]


def console(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    shown = io.StringIO()
    made = Console(file=shown, force_terminal=terminal, width=80, highlight=False)
    monkeypatch.setattr(progress, "err", lambda: made)
    return shown


def test_a_log_gets_lines_while_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.01)
    shown = console(monkeypatch, terminal=False)
    with progress.meter("derived") as meter:
        meter.at(1_200, 1_200, "2 jobs left")
        eventually(lambda: shown.getvalue().count("\n") >= 3, within=10)
    assert set(shown.getvalue().splitlines()) == {"derived 1,200 of 1,200, 2 jobs left (0:00:00)"}


def test_work_without_a_count_says_nothing_when_it_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = console(monkeypatch, terminal=False)
    with progress.working("reading file.jsonl"):
        pass
    assert shown.getvalue() == ""


def test_the_bars_clock_goes_on_when_all_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = console(monkeypatch, terminal=True)
    now = 1_000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.meter("derived") as meter:
        meter.at(1_200, 1_200, "digest_session runs for 9 s; derive_memory: 3 of 512 tokens, due in 9 s")
        now = 4_725.0
        meter.progress.refresh()  # type: ignore[attr-defined]
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    assert "1:02:05" in text
    assert "derive_memory: 3 of 512 tokens, due in 9 s" in text, "the note is whole at 80 columns"


@pytest.mark.parametrize(
    ("left", "note"),
    [
        (backlog(), ""),
        (backlog(jobs=1, running=1, runs=(RUN,)), "digest_session runs for 1 min"),
        (backlog(jobs=3, running=2, runs=(RUN, RUN), pending=1), "2 digest_session run for 1 min; 1 job queued"),
        (backlog(jobs=1, waiting=1, waits=(WAIT,)), "derive_memory: 3 of 512 tokens, due in 9 s"),
        (backlog(jobs=3, waiting=3, waits=(WAIT,)), "derive_memory and 2 more jobs: 3 of 512 tokens, due in 9 s"),
        (backlog(digests=1), "waits for a worker to queue the work that is left"),
    ],
)
def test_the_note_says_what_runs_and_what_waits_and_why(left: Backlog, note: str) -> None:
    assert left.note == note


def test_ctrl_c_says_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = console(monkeypatch, terminal=False)
    with pytest.raises(KeyboardInterrupt), progress.explain_interrupt(lambda: "The jobs go on."):
        raise KeyboardInterrupt
    assert shown.getvalue() == "Interrupted. The jobs go on.\n"


def test_an_export_to_markdown_shows_what_it_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = list[str]()

    @contextmanager
    def working(text: str) -> Iterator[None]:
        shown.append(text)
        yield

    written = MarkdownExport(namespace="acme", folder=str(tmp_path), topics=1, facts=2, removed=0, kept=())
    monkeypatch.setattr(transfer, "working", working)
    monkeypatch.setattr(transfer, "connect", lambda: SimpleNamespace(export_markdown=lambda *_: written))
    transfer.export("acme", markdown=tmp_path)
    assert shown == [f"writing {tmp_path}"]
