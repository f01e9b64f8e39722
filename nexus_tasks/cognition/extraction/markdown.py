"""Write topics and facts as Markdown files, and read topic files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import get_args

from nexus_tasks.cognition.extraction.filenames import checked
from nexus_tasks.cognition.extraction.topics import LONGEST_DESCRIPTION, LONGEST_NAME, one_line
from nexus_tasks.errors import InvalidInput
from nexus_tasks.llm.answers import TopicType
from nexus_tasks.storage.models import Topic
from nexus_tasks.storage.topics import TopicDraft
from nexus_tasks.text import shorten
from nexus_tasks.types import MemoryInfo, clean_text, to_utc

INDEX, FACTS = "MEMORY.md", "facts.md"
MOST_LINES, LONGEST_LINE = 200, 150  # the most lines of the index, and the most characters of a line
TYPES: tuple[str, ...] = get_args(TopicType)
_FIELD = re.compile(r"(name|description|type):[ \t]*(.*)")


def index(topics: Sequence[Topic]) -> str:
    """The text of ``MEMORY.md``: a line per topic, in the order given, at most 200 lines.

    When there are more than 200 topics, the first 199 topics have a line, and the last line says how many other topics
    there are.
    """
    lines = [_line(topic) for topic in topics]
    if len(lines) > MOST_LINES:
        left = len(lines) - (MOST_LINES - 1)
        lines = [*lines[: MOST_LINES - 1], f"({left:,} older topics are not listed here; their files are.)"]
    return "".join(f"{line}\n" for line in lines)


def _line(topic: Topic) -> str:
    room = LONGEST_LINE - len(f"- []({topic.filename})")
    name = shorten(re.sub(r"[\[\]]", "", topic.name), room)
    line = f"- [{name}]({topic.filename})"
    return shorten(f"{line} - {topic.description}", LONGEST_LINE) if len(line) + 10 < LONGEST_LINE else line


def file(topic: Topic) -> str:
    """The text of a topic file: frontmatter (name, description, type), then the content."""
    head = [f"{field}: {json.dumps(getattr(topic, field), ensure_ascii=False)}" for field in ("name", "description")]
    return "\n".join(("---", *head, f"type: {topic.type}", "---", "", topic.content, ""))


def read(filename: str, text: str) -> TopicDraft:
    """Read a topic from the text of a topic file, which :func:`file` or a person has written.

    Raises:
        InvalidInput: the file name or the type is not valid, or the file has no content.
    """
    name = checked(filename)
    if name is None:
        raise InvalidInput(f"{filename!r} cannot be the name of a topic's file.")
    fields, content = _parted(clean_text(text))
    if not content:
        raise InvalidInput(f"{filename} has no content.")
    kind = fields.get("type", "reference")
    if kind not in TYPES:
        raise InvalidInput(f"{filename} is of type {kind!r}; the types are {', '.join(TYPES)}.")
    first = content.splitlines()[0].lstrip("# -*")
    return TopicDraft(
        filename=name,
        name=one_line(fields.get("name", ""), LONGEST_NAME) or name.removesuffix(".md"),
        description=one_line(fields.get("description", first), LONGEST_DESCRIPTION),
        type=kind,
        content=content,
        made_by="import",
    )


def _parted(text: str) -> tuple[dict[str, str], str]:
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return {}, text.strip()
    end = next((n for n, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"), None)
    if end is None:
        return {}, text.strip()
    found = (_FIELD.fullmatch(line.strip()) for line in lines[1:end])
    return {match[1]: _plain(match[2]) for match in found if match}, "\n".join(lines[end + 1 :]).strip()


def _plain(value: str) -> str:
    if value.startswith('"'):
        try:
            return str(json.loads(value))
        except ValueError:
            return value.strip('"')
    return value.strip("'")


def facts(found: Sequence[MemoryInfo]) -> str:
    """The text of ``facts.md``: facts under their dates, the newest date first.

    Under a date, facts are sorted by category. Within a category, facts with a higher confidence come first. When two
    observers have the same fact, the fact is listed once.
    """
    once = {(fact.subject, fact.content): fact for fact in reversed(found)}.values()
    ordered = sorted(once, key=lambda fact: (fact.category or "", -fact.confidence, fact.id))
    ordered.sort(key=_date, reverse=True)
    lines = []
    for date, of_day in groupby(ordered, key=_date):
        lines.append(f"## {date}\n")
        lines += [
            f"- {fact.category} ({fact.confidence:.2f}), {fact.subject}: {' '.join(fact.content.split())} [m{fact.id}]"
            for fact in of_day
        ]
        lines.append("")
    return "\n".join(lines)


def _date(fact: MemoryInfo) -> str:
    return f"{to_utc(fact.occurred_at):%Y-%m-%d}"
