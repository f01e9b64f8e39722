"""What the doctor found, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from nexus_tasks.cli.output import page
from nexus_tasks.cli.show import words
from nexus_tasks.cli.show.paragraph import paragraph


def report(document: Mapping[str, Any]) -> None:
    """Each check with what was found and, where something is wrong, what to do."""
    console = page()
    indent = 6 + max(len(check["name"]) for check in document["checks"]) + 2
    for check in document["checks"]:
        mark = ("ok".ljust(6), "green") if check["ok"] else ("FAIL".ljust(6), "bold red")
        paragraph(console, check["found"], indent=indent, first=Text.assemble(mark, check["name"]))
        if check.get("remedy"):
            paragraph(console, Text(f"→ {check['remedy']}", style="yellow"), indent=indent)
    faults = sum(not check["ok"] for check in document["checks"])
    if faults:
        console.print(f"\n{words.count(faults, 'thing has', 'things have')} to be put right.", style="bold red")
    else:
        console.print("\nEverything is in order.", style="green")
