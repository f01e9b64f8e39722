"""Topics as files: names nobody can misuse, an index within its bounds, and a round trip through Markdown."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_tasks.cognition.extraction import facts, markdown
from nexus_tasks.cognition.extraction.filenames import checked
from nexus_tasks.errors import InvalidInput
from nexus_tasks.storage.models import Topic
from nexus_tasks.types import clean_text

HOSTILE = st.one_of(
    st.text(max_size=140),
    st.tuples(
        st.sampled_from(("con", "NUL", "com1", "Aux.x", "MEMORY", "facts", "a")), st.sampled_from(("", ".md"))
    ).map("".join),
    st.lists(st.sampled_from(["..", "/", "\\", ".", "con", "a", "MEMORY", ".md", ":", "\0", " ", "~", "é"])).map(
        "".join
    ),
)


def topic(filename: str = "a.md", name: str = "A", description: str = "About a.", content: str = "- a") -> Topic:
    return Topic(filename=filename, name=name, description=description, type="project", content=content)


@settings(deadline=None)
@given(HOSTILE)
def test_a_name_that_is_accepted_is_one_plain_file_everywhere(given_: str) -> None:
    name = checked(given_)
    if name is None:
        return
    assert name.isascii()
    assert name == name.lower()
    assert len(name) <= 128
    assert name.endswith(".md")
    assert PurePosixPath("/x", name).parts == ("/", "x", name)
    assert PureWindowsPath("C:/x", name).parts == ("C:\\", "x", name)
    assert not name.startswith((".", "-"))
    assert not re.match(r"(con|prn|aux|nul|com\d|lpt\d)\.", name)
    assert name not in ("memory.md", "facts.md", "agents.md", "claude.md")
    assert checked(name) == name


def test_ordinary_names_are_accepted() -> None:
    assert [checked(name) for name in ("deploy-days.md", "Deploys", "v1.2_notes.md")] == [
        "deploy-days.md",
        "deploys.md",
        "v1.2_notes.md",
    ]


def test_a_full_index_drops_its_oldest_lines_with_a_note() -> None:
    newest_first = [topic(f"t{n}.md", f"Topic {n}", "x" * 300) for n in range(250, 0, -1)]
    lines = markdown.index(newest_first).splitlines()
    assert len(lines) == 200
    assert max(map(len, lines)) <= 150
    assert lines[0].startswith("- [Topic 250](t250.md)")
    assert lines[-2].startswith("- [Topic 52](t52.md)")
    assert lines[-1].startswith("(51 older topics")
    assert len(markdown.index(newest_first[:200]).splitlines()) == 200
    assert markdown.index([]) == ""


@settings(deadline=None)
@given(st.text(), st.text())
def test_a_line_of_the_index_links_its_file_whatever_the_topic_is_called(name: str, description: str) -> None:
    filename = "f" * 125 + ".md"
    [line] = markdown.index([topic(filename, " ".join(name.split()), " ".join(description.split()))]).splitlines()
    assert len(line) <= 150
    assert f"]({filename})" in line


def _file(made: Topic) -> str:
    """The file of a topic, as an export writes it anew."""
    return markdown.head(made) + markdown.section(made.content)


WORDS = st.text(st.characters(codec="utf-8"), max_size=60).map(lambda text: " ".join(clean_text(text).split()))


@settings(deadline=None)
@given(WORDS, WORDS, st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_topic_comes_back_from_its_file_as_it_was(name: str, description: str, content: str) -> None:
    content = "\n".join(clean_text(content).splitlines()).strip()
    if not content:
        return
    back = markdown.read("a.md", _file(topic("a.md", name or "a", description, content)))
    assert (back.name, back.description, back.type, back.content) == (name or "a", description, "project", content)


LINES = st.lists(st.sampled_from(("", "- one", "- two", "# Mine", "three", "  four", "---")), max_size=6).map("\n".join)


@settings(deadline=None)
@given(LINES.filter(lambda text: not text.startswith("---")), LINES, LINES, LINES)
def test_what_is_written_by_hand_stays_and_no_line_stands_twice(before: str, after: str, old: str, new: str) -> None:
    text = f"{before}\n{markdown.section(old)}{after}"
    once = markdown.merged("a.md", text, new)
    assert once.startswith(f"{before}\n{markdown.BEGIN}")
    assert once.endswith(f"{markdown.END}\n{after}")
    assert markdown.merged("a.md", once, new) == once
    outside = {line.strip() for line in f"{before}\n{after}".splitlines() if any(map(str.isalnum, line))}
    _, section, _ = markdown.parts("a.md", once)
    assert section is not None
    assert [line for line in section.splitlines() if line.strip() in outside] == []
    assert {line.strip() for line in new.splitlines()} <= {line.strip() for line in once.splitlines()} | {""}


def test_a_file_with_one_of_the_marks_is_refused() -> None:
    for text in (f"{markdown.BEGIN}\n- a", f"- a\n{markdown.END}", f"{markdown.END}\n{markdown.BEGIN}"):
        with pytest.raises(InvalidInput, match="only one of the lines"):
            markdown.read("a.md", text)


def test_a_file_written_by_hand_is_a_topic() -> None:
    found = markdown.read("Notes.md", "# Where things are\n\n- here\n")
    assert (found.filename, found.name, found.description, found.type) == (
        "notes.md",
        "notes",
        "Where things are",
        "reference",
    )
    plain = markdown.read("a.md", "---\nname: My notes\ntype: user\nmood: good\n---\nHere.")
    assert (plain.name, plain.type, plain.content) == ("My notes", "user", "Here.")
    for name, text in (("a.md", "---\ntype: evil\n---\nx"), ("a.md", " \n"), ("con.md", "x")):
        with pytest.raises(InvalidInput):
            markdown.read(name, text)


@pytest.mark.parametrize(
    ("given_", "category"),
    [
        ("preference", "preference"),
        ("user_preference", "preference"),
        ("UserPreferences", "preference"),
        ("projectfact", "project"),
        ("Project Fact", "project"),
        ("technical-decision", "decision"),
        ("project_constraint", "constraint"),
        ("CodePattern", "pattern"),
        ("code_pattern", "pattern"),
        ("workflow pattern", None),
        ("weather", None),
        ("", None),
    ],
)
def test_categories_have_aliases(given_: str, category: str | None) -> None:
    assert facts.category_of(given_) == category
