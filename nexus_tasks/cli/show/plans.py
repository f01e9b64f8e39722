"""What a dream would do, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from nexus_tasks.cli.output import out
from nexus_tasks.cli.show import words
from nexus_tasks.cli.show.paragraph import paragraph

_INDENT = 14


def plans(found: Mapping[str, Any]) -> None:
    """The sessions that would be digested, then each reflection with what it would relate, supersede and conclude."""
    console = out()
    sessions = ", ".join(found["sessions"]) or "none"
    _line(console, "would digest", sessions)
    if not found["reflections"]:
        _line(console, "would reflect", "on nothing: no facts are new")
    for plan in found["reflections"]:
        console.print()
        _plan(console, plan)


def _plan(console: Console, plan: Mapping[str, Any]) -> None:
    held = "; held for review" if plan["held"] else ""
    about = f"{plan['observer']} about {plan['subject']}"
    console.print(Text.assemble((about, "bold"), f": {words.count(plan['facts'], 'new fact')}{held}"))
    for relation in plan["relations"]:
        new, old = f"m{relation['new_id']} {relation['new']}", f"m{relation['old_id']} {relation['old']}"
        verdict = "" if relation["kind"] != "contradicts" else f" ({_HOLDS[relation['holds']]})"
        _line(console, relation["kind"], f"{new} — {old}{verdict}")
        _line(console, "", relation["rationale"], style="dim")
    for insight in plan["insights"]:
        _line(console, "insight", f"{insight['content']} ({', '.join(f'm{i}' for i in insight['support'])})")
    if plan["supersedes"]:
        _line(console, "supersedes", ", ".join(f"m{i}" for i in plan["supersedes"]))
    if not (plan["relations"] or plan["insights"]):
        _line(console, "", "nothing to relate", style="dim")


_HOLDS = {"new": "the new one holds", "old": "the old one holds", "both": "undecided"}


def _line(console: Console, name: str, value: str, style: str = "") -> None:
    paragraph(console, Text(words.line(value), style=style), indent=_INDENT, first=Text(name, style="dim"))
