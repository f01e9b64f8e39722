"""Every path, module name and link in the pages exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in ("README.md", "CHANGELOG.md"))]
# A path of the repository, up to a `::test_name`, a space or a mark around it.
FILE = re.compile(r"(?<![\w/.])(?:nexus_tasks|tests|examples|benchmarks|docs)/[\w./-]*[\w/]")
NAME = re.compile(r"(?<![\w/.-])(?:nexus_tasks|benchmarks|tests)(?:\.[A-Za-z_]\w*)+")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)?::(\w+)`|`(tests/[\w/]+\.py)::(\w+)`")
BELOW = re.compile(r"`((?:idempotency|cognition|tasks|storage|services)/[\w./]+)`")  # architecture: below nexus_tasks/
# Names of Celery tasks and beat entries, which are no attributes.
TASKS = {"dream_due", "recover_buffers", "find_embedding_gaps", "keep_search_fast", "prune"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = {path.rstrip(".") for path in FILE.findall(text)} | {f"nexus_tasks/{path}" for path in BELOW.findall(text)}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_dotted_name_exists(page: Path) -> None:
    names = set(NAME.findall(page.read_text(encoding="utf-8")))
    assert [name for name in sorted(names) if name.split(".")[-1] not in TASKS and not resolves(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(prose) if "://" not in link]
    assert [link for link in links if not leads(page, link)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_test_exists(page: Path) -> None:
    file, missing = "", []
    for same, name, other, its in TEST.findall(page.read_text(encoding="utf-8")):
        file = other or same or file
        if f"def {its or name}(" not in (ROOT / file).read_text(encoding="utf-8"):
            missing.append(f"{file}::{its or name}")
    assert missing == []


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            if length == len(parts):
                return True
            found = import_module(".".join(parts[:length]))
            for part in parts[length:]:
                found = getattr(found, part, None)  # type: ignore[assignment]
            return found is not None
    return False


def leads(page: Path, link: str) -> bool:
    """Whether a relative link names a file, and its anchor a heading there."""
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
