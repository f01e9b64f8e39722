"""The Python examples of the pages on observation and MCP, executed as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.inline import work
from tests.sandbox import Sandbox

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("page", "shown"),
    [("observation.md", "## Recent messages\n[m1] "), ("mcp.md", "[m1] ")],
)
def test_the_examples_work_as_written(page: str, shown: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    codes = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert codes
    for code in codes:
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
    assert shown in capfd.readouterr().out


def test_the_commands_are_commands(here: Sandbox) -> None:
    """Each `nexus …` line of the pages is one that the program takes."""
    from typer.testing import CliRunner

    from nexus_tasks import Nexus
    from nexus_tasks.cli.main import app

    Nexus().ingest("acme", "long-chat", [{"content": "I moved to Lisbon.", "author": "ann"}], observe=True)
    work("observe_session")
    lines = re.findall(r"^\$ nexus (.*)$", (DOCS / "observation.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        ran = CliRunner().invoke(app, line.split())
        assert ran.exit_code == 0, ran.output
    assert here.sql("SELECT count(*) FROM observation_logs") == [(1,)]
