"""docs/cognition.md, executed: its blocks are one program, a worker runs between them, and it prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from tests.deployment import Deployment
from tests.integration.inline import time_passes, waiting, work

PAGE = Path(__file__).parents[2] / "docs" / "cognition.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def worker(here: Deployment) -> None:
    """Do everything that was asked for, as a worker that has all the time in the world."""
    work()
    for _ in range(5):
        if waiting():
            time_passes(here)
            work()


def test_the_page_prints_what_it_says(here: Deployment) -> None:
    program: dict[str, Any] = {}
    printed = ""
    shown = 0
    for language, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "text":
            assert printed == block
            printed, shown = "", shown + 1
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block, str(PAGE), "exec"), program)
        printed += output.getvalue()
        worker(here)
    assert (printed, shown) == ("", 10)
