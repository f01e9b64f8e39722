"""Find echoes: text from search or context that is said again. No facts are derived from an echo.

An agent's line with a citation such as [m17] is an echo. A person may paste such a line too, or write a list of their
own that looks like it. So a person's line is an echo only when it says what the cited memory says. An agent may also
say again what it remembers, in plain words: ``retelling`` recognises that by its content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from nexus_tasks.storage import memories
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.text import content_words

# Matches a line that context() rendered, even when the agent quotes the line. The line may be a bullet with a citation
# id such as [m17], a heading, or the whole block as JSON. The MCP tool `recall` also puts citation ids before its hits.
_CITED = re.compile(
    r"^[\s>]*(?:"
    r"[\"']?(?:[-*]\s*)?\[m\d+\]"
    r"|## (?:Profile|Digest|Contradictions|Reflections|Facts|Messages|Not yet derived|Recent messages)\s*$"
    r"|\{\"namespace\":.*(?:\[m\d+\]|<observation-log>)"
    r"|\"(?:text|cited|short|long)\":.*(?:\[m\d+\]|<observation-log>)"
    r")"
)
_ID = re.compile(r"\[m(\d{1,18})\]")
_NO_WORD = re.compile(r"[\W_]+")
_COMPARED = 80  # characters of a memory that a line must contain (chosen by hand, not measured)
_READ = 1_000  # characters of a memory in which its first 80 characters without punctuation are
_MOST_CITED = 10_000  # cited memories that are read, the newest ones; together they have at most 10 MB
_MOST_IN_A_LINE = 20  # known memories that a line cites and is compared with; a line that was rendered cites one
_SAYING = frozenset(
    content_words("assistant user say said says tell told know known remember mention note noted confirm")
)
# The tags of a rendered observation log. The lines of a log have no citation ids.
_LOG, _END_OF_LOG = "<observation-log>", "</observation-log>"

_MARKS = ("[m", "## ", _LOG)  # a text without one of them has no echo


def cited_ids(text: str) -> set[int]:
    """The ids of the memories that ``text`` cites."""
    return {int(number) for number in _ID.findall(text)}


def told_by(tx: Transaction, namespace_id: int, said: Iterable[tuple[str, str]]) -> Mapping[int, str]:
    """The beginnings of the memories that people's messages cite: memory id → text.

    Args:
        said: the role and the text of each message.
    """
    ids = {number for role, text in said if role == "user" for number in cited_ids(text)}
    newest = sorted(ids)[-_MOST_CITED:]
    return memories.contents(tx, namespace_id, newest, characters=_READ) if newest else {}


def without_echo(text: str, role: str, told: Mapping[int, str]) -> str:
    """``text`` without its echoed lines. The result is empty when all lines are echoes.

    Args:
        role: the role of the message. A line of a person (the role ``user``) is an echo only when a memory that it
            cites says the same, or when it is a heading above such a line.
        told: the result of :func:`told_by`.
    """
    if not any(mark in text for mark in _MARKS):
        return "\n".join(text.splitlines()).strip()
    lines = _without_logs(text).splitlines()
    marks = [bool(_CITED.match(line)) for line in lines]
    if role == "user":
        repeated = [mark and _repeats(line, told) for mark, line in zip(marks, lines, strict=True)]
        quoted = any(repeated)
        marks = [
            again or (quoted and mark and not cited_ids(line))
            for again, mark, line in zip(repeated, marks, lines, strict=True)
        ]
    kept, echo = list[str](), False
    for line, mark in zip(lines, marks, strict=True):
        # context() indents the later lines of a message by four spaces. Such a line after an echo is an echo too.
        echo = mark or (echo and line.startswith("    "))
        if not echo:
            kept.append(line)
    return "\n".join(kept).strip()


def retelling(known: Iterable[str], names: Iterable[str]) -> Callable[[str], bool]:
    """A function that tells whether a text adds no word to one of the facts ``known``.

    Args:
        names: the names of the people and agents. They and words such as "said" add nothing.
    """
    nothing = {word for name in names for word in content_words(name)} | _SAYING
    facts = [frozenset(content_words(fact)) for fact in known]  # once: a derivation compares many texts with 500 facts

    def tells(content: str) -> bool:
        added = set(content_words(content)) - nothing
        return bool(added) and any(added <= fact for fact in facts)

    return tells


def _repeats(line: str, told: Mapping[int, str]) -> bool:
    shown = _plain(line)
    cited = (number for found in _ID.finditer(line) if (number := int(found[1])) in told)
    starts = (_plain(told[number])[:_COMPARED] for number in islice(cited, _MOST_IN_A_LINE))
    return any(start and start in shown for start in starts)


def _plain(text: str) -> str:
    """``text`` in lower case with single spaces for all other characters than letters and digits."""
    return " ".join(_NO_WORD.sub(" ", text.replace("\\n", " ").casefold()).split())


def _without_logs(text: str) -> str:
    """``text`` without its observation logs. A regular expression would search for the end of each unended log."""
    parts, done = list[str](), 0
    while (start := text.find(_LOG, done)) >= 0 and (end := text.find(_END_OF_LOG, start)) >= 0:
        parts.append(text[done:start])
        done = end + len(_END_OF_LOG)
    return "".join((*parts, text[done:]))


def is_echo(text: str) -> bool:
    """Whether ``text`` begins like a line that search or context rendered."""
    return bool(_CITED.match(text))
