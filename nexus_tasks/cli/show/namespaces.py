"""Namespaces for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from nexus_tasks.cli.output import out
from nexus_tasks.cli.show import words
from nexus_tasks.cli.show.paragraph import paragraph
from nexus_tasks.cli.show.table import table


def listed(namespaces: Sequence[Mapping[str, Any]]) -> None:
    """One line per namespace."""
    rows = [(found["namespace"], ", ".join(found["observers"]), _budget(found), _runs(found)) for found in namespaces]
    table(
        ("namespace", "observers", "budget", "concurrency"),
        rows,
        elastic="observers",
        empty="There are no namespaces yet.",
    )


def one(found: Mapping[str, Any]) -> None:
    """A namespace's settings and its memories by level."""
    console = out()
    console.print(Text(found["namespace"], style="bold"))
    named = {
        "observers": ", ".join(found["observers"]),
        "budget": _budget(found),
        "concurrency": _runs(found),
        "observe": "long conversations" if found["observe"] else "no",
        "memories": memories(found["memories"]),
    }
    for name, value in named.items():
        paragraph(console, value, indent=13, first=Text(name, style="dim"))


def memories(counts: Mapping[str, int]) -> str:
    """How much is remembered: ``70 messages, 67 facts, 1 reflection``; levels without any are left out."""
    return ", ".join(f"{n:,} {words.level(level, n)}" for level, n in counts.items() if n) or "nothing yet"


def _budget(found: Mapping[str, Any]) -> str:
    budget = found["budget_usd_per_day"]
    return "no limit" if budget is None else f"{words.money(budget)} a day"


def _runs(found: Mapping[str, Any]) -> str:
    return "default" if found["concurrency"] is None else words.count(found["concurrency"], "run")
