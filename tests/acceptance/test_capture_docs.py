"""The pages about the buffer and coding agents: their commands and code, executed as written, in their order."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.acceptance.test_first_pages import folder, run
from tests.transcripts.generate import day_at_work

__all__ = ["folder"]  # the fixture: a user's folder whose servers end with it

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def execute(page: str, folder: Path) -> dict[str, str]:
    """The output of each command and each piece of code (by its first line) of a page."""
    said = {}
    text = (DOCS / page).read_text(encoding="utf-8")
    for number, (language, block) in enumerate(re.findall(r"^```(python|console)\n(.*?)^```", text, re.M | re.S)):
        if language == "python":
            (folder / f"example{number}.py").write_text(block, encoding="utf-8")
            said[f"example {number}"] = run(f"{sys.executable} example{number}.py", folder)
            continue
        for line in block.splitlines():
            command = line.removeprefix("$ ").split("  #")[0].strip()
            said[command] = run(command, folder)
    return said


@pytest.mark.long
def test_the_page_about_the_buffer_works_as_written(folder: Path) -> None:
    said = execute("buffer.md", folder)
    assert said["example 0"] == "3\nkiosk chat-42 3 True\n"
    assert "3 entries of 1 session" in said["nexus buffer status"]
    assert "Stored 2 messages" in said["nexus buffer flush"]
    assert "Lisbon" in said['nexus search "Lisbon" --namespace kiosk']
    assert said["example 2"] == "chat-43 1 mine {'anything': ['JSON', 1]}\nFalse []\n"


@pytest.mark.long
def test_the_page_about_coding_agents_works_as_written(folder: Path) -> None:
    day_at_work().write(folder / "transcript.jsonl")
    said = execute("coding-agents.md", folder)
    assert "MCP entry of Codex" in said["nexus init --undo"]
    for agent in ("codex", "cursor"):
        assert agent in (folder / f".{agent}" / "hooks.json").read_text()
        run(f"nexus hook uninstall {agent}", folder)
    assert not [path for path in folder.glob(".c[ou]*") if any(path.iterdir())]
    settings = json.loads((folder / ".claude" / "settings.json").read_text())
    assert len(settings["hooks"]) == 7
    assert [text for command, text in said.items() if "UserPromptSubmit" in command] == [""]
    assert "Tuesdays" in said['nexus search "when do we deploy?" --namespace shop']
    assert "Stored 16 messages" in said["nexus ingest transcript.jsonl --namespace shop --format claude-code"]
    assert "swordfish" not in "".join(
        path.read_text(errors="replace")
        for path in (folder / "home").rglob("*")
        if path.is_file() and "log" in path.name
    )
    skill = (ROOT / "nexus_tasks/integrations/setup/skill/SKILL.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```bash\n(.*?)^```", skill, re.M | re.S):
        for line in block.splitlines():
            assert run(line.replace(" NS", " shop"), folder), line
    run("nexus hook uninstall claude-code", folder)
    assert not (folder / ".claude" / "settings.json").exists()
