"""Pages of the docs, executed: each is one program, a worker runs between its blocks, and it prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.inline import time_passes, waiting, work, work_as_asked
from tests.sandbox import Sandbox

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def worker(here: Sandbox) -> None:
    """Do everything that was asked for, as a worker that has all the time in the world."""
    work()
    for _ in range(5):
        if waiting():
            time_passes(here)
            work()


def patient_worker(here: Sandbox) -> None:
    """The same, but as live or patient as it was asked for: what a dream asks for goes through a batch."""
    work_as_asked()
    for _ in range(5):
        here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
        time_passes(here)
        work_as_asked()


@pytest.mark.parametrize(
    ("page", "blocks"), [("cognition.md", 10), ("embeddings.md", 1), ("search.md", 4), ("extraction.md", 2)]
)
def test_the_page_prints_what_it_says(here: Sandbox, page: str, blocks: int) -> None:
    execute(page, blocks, lambda: worker(here))


def test_the_page_on_cost_prints_what_it_says(claude: Callable[..., Sandbox]) -> None:
    here = claude(NEXUS_BATCH_THRESHOLD="1")
    execute("cost.md", 3, lambda: patient_worker(here))


def execute(page: str, blocks: int, work: Callable[[], None]) -> None:
    """Execute a page's Python, with ``work`` after each block, and compare what it prints with its text blocks."""
    program: dict[str, Any] = {}
    printed = ""
    shown = 0
    for language, block in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if language == "text":
            assert printed == block
            printed, shown = "", shown + 1
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block, page, "exec"), program)
        printed += output.getvalue()
        work()
    assert (printed, shown) == ("", blocks)
