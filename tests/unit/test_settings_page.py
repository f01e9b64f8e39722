"""The page on settings says what the class says."""

from __future__ import annotations

import re
from pathlib import Path

from nexus_tasks.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_settings_table_is_the_settings_class() -> None:
    rows = re.findall(r"^\| `NEXUS_(\w+)` \| (.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    expected = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "the user's data folder" if name == "home" else "" if default in (None, {}) else f"`{default}`"
        expected.append((name.upper(), shown, field.description))
    assert rows == expected
