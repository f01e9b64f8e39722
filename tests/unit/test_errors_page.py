"""The page on errors says what the classes say, and llms.txt and the site's index name every page."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from nexus_tasks import errors
from nexus_tasks.errors import NexusError

DOCS = Path(__file__).parents[2] / "docs"


def rows() -> list[str]:
    """The table: each class, its base class, its meaning and its remedy."""
    found = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, NexusError)]
    return [
        f"| `{one.__name__}` | `{one.__mro__[1].__name__}` | {_summary(one)} | {one.default_remedy} |" for one in found
    ]


def _summary(one: type) -> str:
    return " ".join((inspect.getdoc(one) or "").partition("\n\n")[0].split())


def test_the_page_on_errors_is_the_module_of_errors() -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `.*\|$", page, re.MULTILINE) == rows()


def test_llms_txt_names_every_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+)\.md\)", (DOCS / "llms.txt").read_text(encoding="utf-8")))
    assert named == {page.stem for page in DOCS.glob("*.md")} - {"index"}


def test_the_sites_index_names_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    named = {page for tree in re.findall(r"```{toctree}\n(.*?)```", index, re.DOTALL) for page in tree.split()}
    assert {page.stem for page in DOCS.glob("*.md")} - {"index"} <= named
