"""The instructions of each purpose, one file each, and how messages are laid out for a model.

What varies least comes first: the instructions are the same bytes for every call of a purpose, so that a provider can
cache them together with a transcript that several observers share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from importlib import resources

from nexus_tasks.llm.answers import Line
from nexus_tasks.llm.base import Purpose
from nexus_tasks.types import to_utc

_CLOSING = re.compile(r"</(?=\s*(?:transcript|facts|previous|notes|observation-log)\b)", re.IGNORECASE)


@lru_cache
def instructions(purpose: Purpose) -> str:
    """The stable part of every prompt of ``purpose``."""
    return (resources.files(__name__) / f"{purpose}.md").read_text(encoding="utf-8")


def transcript(lines: Iterable[Line]) -> str:
    """Messages as delimited data, one per line: ``[id] time author (role): text``; context-only ones say so.

    Line breaks inside a message are indented, so that no content can pass for a line of the transcript.
    """
    rendered = (
        f"{'(context) ' if line.context_only else ''}[{line.id}] {moment(line.occurred_at)} "
        f"{line.author} ({line.role}): {_indented(line.content)}"
        for line in lines
    )
    return "\n".join(("<transcript>", *rendered, "</transcript>"))


def moment(when: datetime) -> str:
    """A time to the second in UTC, as the prompts show it, whatever zone the database speaks."""
    return to_utc(when).strftime("%Y-%m-%dT%H:%M:%SZ")


def inert(text: str) -> str:
    """``text`` with the tags that delimit data in our prompts broken, so that none ends early."""
    return _CLOSING.sub("< /", text)


def _indented(text: str) -> str:
    return "\n    ".join(inert(text).splitlines())
