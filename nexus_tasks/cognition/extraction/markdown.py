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
from nexus_tasks.storage.memories import FactLine
from nexus_tasks.storage.models import Topic
from nexus_tasks.storage.topics import TopicDraft
from nexus_tasks.text import shorten
from nexus_tasks.types import TopicType, clean_text, to_utc

INDEX, FACTS = "MEMORY.md", "facts.md"
# An export writes between these lines. What stands outside of them is written by hand, and stays.
BEGIN, END = "<!-- nexus:begin -->", "<!-- nexus:end -->"
MOST_LINES, LONGEST_LINE = 200, 150  # the most lines of the index, and the most characters of a line
TYPES: tuple[str, ...] = get_args(TopicType)
# Only a line feed ends a line here. `splitlines` would also split at others, such as U+2028 in a line of a topic.
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
# The blank lines at the beginning. The indentation of the first other line is no part of them.
_BLANK = re.compile(r"\A(?:\s*\n)?")
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


def head(topic: Topic) -> str:
    """The frontmatter of a topic file: name, description and type."""
    fields = [f"{field}: {json.dumps(getattr(topic, field), ensure_ascii=False)}" for field in ("name", "description")]
    return "\n".join(("---", *fields, f"type: {topic.type}", "---", "", ""))


def section(body: str) -> str:
    """``body`` between the lines that mark what an export writes."""
    body = body.strip("\n")
    return f"{BEGIN}\n{body}\n{END}\n" if body else f"{BEGIN}\n{END}\n"


def parts(filename: str, text: str) -> tuple[str, str | None, str]:
    """A file's text before the marked section, the section, and the text after it. ``None``: there is no section.

    Raises:
        InvalidInput: one of the two marks is missing.
    """
    lines = _LINE.findall(text)
    begin = next((n for n, line in enumerate(lines) if line.strip() == BEGIN), None)
    end = next((n for n in range(len(lines) - 1, -1, -1) if lines[n].strip() == END), None)
    if begin is None and end is None:
        return text, None, ""
    if begin is None or end is None or end < begin:
        raise InvalidInput(
            f"{filename} has only one of the lines {BEGIN} and {END}.", remedy="Add the other line, or delete both."
        )
    return "".join(lines[:begin]), "".join(lines[begin + 1 : end]).strip("\n"), "".join(lines[end + 1 :])


def merged(filename: str, text: str, body: str) -> str:
    """The text of a file with a new section. The rest of the file stays as it is.

    What stands outside of the section, apart from the frontmatter, is left out of ``body``, so that no line stands
    twice. A file without a section gets one at its end, unless no line is left for it.
    """
    before, old, after = parts(filename, text)
    lines = body.split("\n")
    for by_hand in (_parted(before)[1], after):
        lines = _without(lines, [line.strip() for line in by_hand.strip().split("\n")])
    new = "\n".join(lines).strip("\n")
    if old is not None:
        return f"{before}{section(new)}{after}"
    return f"{before.rstrip()}\n\n{section(new)}" if new else text


def _without(lines: list[str], others: list[str]) -> list[str]:
    """``lines`` without the block of ``others``, and without each of ``others`` that has a word.

    A line without a word, such as a rule or the fence of a block of code, often stands in both by chance. So outside of
    the block it stays.
    """
    kept, bare = list(lines), [line.strip() for line in lines]
    at = "\n".join(("", *bare, "")).find("\n".join(("", *others, "")))
    if at >= 0 and any(others):
        first = "\n".join(("", *bare, "")).count("\n", 0, at)
        block = slice(first, first + len(others))
        del kept[block], bare[block]
    told = {line for line in others if any(map(str.isalnum, line))}
    return [line for line, shown in zip(kept, bare, strict=True) if shown not in told]


def read(filename: str, text: str) -> TopicDraft:
    """Read a topic from the text of a topic file, which an export or a person has written.

    The marks of the section that an export wrote are left out.

    Raises:
        InvalidInput: the file name or the type is not valid, or the file has no content.
    """
    name = checked(filename)
    if name is None:
        raise InvalidInput(f"{filename!r} cannot be the name of a topic's file.")
    before, ours, after = parts(filename, clean_text(text))
    pieces = (before.rstrip(), ours, after.strip())
    fields, content = _parted(before if ours is None else "\n\n".join(piece for piece in pieces if piece))
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
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[0].rstrip() != "---":
        return {}, _unframed(text)
    end = next((n for n, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"), None)
    if end is None:
        return {}, _unframed(text)
    found = (_FIELD.fullmatch(line.strip()) for line in lines[1:end])
    return {match[1]: _plain(match[2]) for match in found if match}, _unframed("\n".join(lines[end + 1 :]))


def _unframed(text: str) -> str:
    """``text`` without blank lines and spaces around it, and with the indentation of its first line."""
    return _BLANK.sub("", text.rstrip())


def _plain(value: str) -> str:
    if value.startswith('"'):
        try:
            return str(json.loads(value))
        except ValueError:
            return value.strip('"')
    return value.strip("'")


def facts(found: Sequence[FactLine]) -> str:
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


_FACT = re.compile(r"- \w{1,50} \(\d\.\d\d\), (.{1,2000}) \[m(\d{1,18})\]")


def edited_facts(text: str, found: Sequence[FactLine]) -> list[tuple[FactLine, str]]:
    """The facts of which the text of ``facts.md`` has another wording, with that wording.

    A line tells its fact by its citation (``[m17]``) and subject. Facts without a line, and lines without a fact, are
    left out. So is a fact with two lines of different wordings: a person has copied its line to write a new one.
    """
    by_id = {fact.id: fact for fact in found}
    edited = []
    for number, wordings in _fact_lines(text).items():
        fact = by_id.get(number)
        [wording, *others] = wordings
        if fact is None or others or not wording.startswith(f"{fact.subject}: "):
            continue
        content = " ".join(wording.removeprefix(f"{fact.subject}: ").split())
        if content and content != " ".join(fact.content.split()):
            edited.append((fact, content))
    return edited


def cited_facts(text: str) -> set[int]:
    """The ids of the facts that the text of ``facts.md`` has lines of."""
    return set(_fact_lines(text))


def _fact_lines(text: str) -> dict[int, list[str]]:
    """The different wordings of each fact in ``facts.md``, each with the subject before it.

    Only the marked section is read, if there is one. The text around it is a person's own.
    """
    _, section, _ = parts(FACTS, text)
    lines = (text if section is None else section).splitlines()
    found = dict[int, list[str]]()
    for match in filter(None, map(_FACT.fullmatch, map(str.strip, lines))):
        wordings = found.setdefault(int(match[2]), [])
        if match[1] not in wordings:
            wordings.append(match[1])
    return found


def has_new_lines(text: str) -> bool:
    """Whether the marked section of ``facts.md`` has lines that are neither a fact's only line nor a date."""
    if any(len(wordings) > 1 for wordings in _fact_lines(text).values()):
        return True
    _, section, _ = parts(FACTS, text)
    lines = (line.strip() for line in (section or "").splitlines())
    return any(line and not line.startswith("## ") and not _FACT.fullmatch(line) for line in lines)


def _date(fact: FactLine) -> str:
    return to_utc(fact.occurred_at).date().isoformat()
