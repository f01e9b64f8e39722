"""The page of limits says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from nexus_tasks import limits

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"


def test_the_table_is_the_module() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([\d,]+) \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(name, f"{value:,}") for name, value in vars(limits).items() if name.isupper()]
