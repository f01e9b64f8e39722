"""Memories for people: lists, search results, one memory with its evidence."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from nexus_tasks.cli.output import iso, out
from nexus_tasks.cli.show import words
from nexus_tasks.cli.show.paragraph import paragraph
from nexus_tasks.cli.show.table import table
from nexus_tasks.text import shorten
from nexus_tasks.types import Recall

LONGEST = 240  # characters of a memory in a list on a terminal
_INDENT = 7


def listed(memories: Sequence[Mapping[str, Any]]) -> None:
    """Each memory with what it is, about whom and from when; a line of tab-separated values each in a pipe."""
    if not sys.stdout.isatty():
        fields = ("id", "level", "observer", "subject", "session_key", "occurred_at", "content")
        table(fields, [[memory[field] for field in fields] for memory in memories], elastic="content", empty="")
        return
    console = out()
    if not memories:
        console.print("No memories fit.", style="dim")
    for memory in memories:
        about = memory["subject"] or memory["author"] or memory["session_key"]
        block(console, memory["id"], [memory["level"], about, words.ago(memory["occurred_at"])], memory["content"])


def found(results: Sequence[Recall], missing_embeddings: int) -> None:
    """Search hits, best first, with their scores and why they were found."""
    if not sys.stdout.isatty():
        rows = [[r.id, r.score, r.level, r.subject, r.occurred_at, r.content] for r in results]
        table(("id", "score", "level", "about", "when", "content"), rows, elastic="content", empty="")
        return
    console = out()
    if not results:
        console.print("Nothing was found.", style="dim")
    for result in results:
        hit(console, result)
    if missing_embeddings:
        said = f"{words.count(missing_embeddings, 'memory has', 'memories have')} no vector yet: found by words only."
        console.print(said, style="dim")


def hit(console: Console, result: Recall) -> None:
    """One search hit: what it is, its score and the parts of it, and its evidence."""
    about = [result.level, result.subject or result.session_key, words.ago(result.occurred_at)]
    why = " + ".join(f"{arm} {score:.2f}" for arm, score in result.why.items())
    cited = ", ".join(f"m{edge.id}" for edge in result.evidence[:5])
    more = f" and {len(result.evidence) - 5} more" if len(result.evidence) > 5 else ""
    rests = f"; rests on {cited}{more}" if cited else ""
    block(console, result.id, about, result.content, f"score {result.score:.2f}: {why}{rests}")


def block(console: Console, memory_id: int, about: Sequence[str | None], content: str, footer: str = "") -> None:
    """A memory as an indented block under its number."""
    head = Text.assemble((f"m{memory_id}".ljust(_INDENT), "cyan"), (" · ".join(filter(None, about)), "dim"))
    console.print(head, no_wrap=True, overflow="ellipsis")
    paragraph(console, shorten(words.line(content), LONGEST), indent=_INDENT)
    if footer:
        paragraph(console, Text(footer, style="dim"), indent=_INDENT)


def one(memory: Mapping[str, Any]) -> None:
    """One memory, whole: its figures, what it rests on, what rests on it and its history."""
    console = out()
    console.print(Text.assemble((f"m{memory['id']} ", "cyan"), (memory["level"], "bold")))
    console.print(Text(memory["content"]))
    console.print()
    for name, value in _figures(memory):
        paragraph(console, value, indent=14, first=Text(name, style="dim"))


def _figures(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    held = f"{memory['observer']} about {memory['subject']}" if memory["observer"] else None
    until = f" until {iso(memory['valid_to'])}" if memory["valid_to"] else ""
    valid = f"{iso(memory['valid_from'])}{until}" if memory["valid_from"] else None
    named = {
        "held by": held,
        "said by": f"{memory['author']} ({memory['role']})" if memory["role"] else None,
        "session": memory["session_key"],
        "external id": memory["external_id"],
        "occurred": iso(memory["occurred_at"]),
        "valid from": valid,
        "confidence": f"{memory['confidence']:.2f}, reinforced {words.count(memory['times_reinforced'], 'time')}",
        "category": memory["category"],
        "labels": ", ".join(memory["labels"]),
        "made by": memory["made_by"],
        "reflection": str(memory["reflection"] or ""),
        "rests on": _edges(memory["evidence"]),
        "supports": _edges(memory["supports"]),
        "superseded": ", ".join(f"m{old}" for old in memory["superseded"]),
        "superseded by": f"m{memory['superseded_by']}" if memory["superseded_by"] else None,
    }
    return [(name, value) for name, value in named.items() if value]


def _edges(edges: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"m{edge['id']} ({edge['role']})" for edge in edges)
