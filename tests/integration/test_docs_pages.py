"""Pages of the docs, executed: each is one program, a worker runs between its blocks, and it prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.deployment import Deployment
from tests.integration.inline import time_passes, waiting, work

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def worker(here: Deployment) -> None:
    """Do everything that was asked for, as a worker that has all the time in the world."""
    work()
    for _ in range(5):
        if waiting():
            time_passes(here)
            work()


@pytest.mark.parametrize(("page", "blocks"), [("cognition.md", 10), ("search.md", 4), ("extraction.md", 2)])
def test_the_page_prints_what_it_says(here: Deployment, page: str, blocks: int) -> None:
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
        worker(here)
    assert (printed, shown) == ("", blocks)
