"""Sessions for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from nexus_tasks.cli.output import out
from nexus_tasks.cli.show import words
from nexus_tasks.cli.show.paragraph import paragraph
from nexus_tasks.cli.show.table import table


def listed(sessions: Sequence[Mapping[str, Any]]) -> None:
    """One line per session."""
    rows = [
        (
            session["session_key"],
            session["messages"],
            session["underived"],
            session["digested_through"],
            "open" if session["open"] else "ended",
            session["created_at"],
        )
        for session in sessions
    ]
    titles = ("session", "messages", "underived", "digested to", "state", "since")
    table(titles, rows, elastic="session", empty="There are no sessions yet.")


def one(session: Mapping[str, Any]) -> None:
    """A session with its digest and its messages."""
    console = out()
    state = "open" if session["open"] else f"ended {words.ago(session['ended_at'])}"
    said = f"{words.count(session['messages'], 'message')}, {session['underived']:,} not derived yet, {state}"
    console.print(Text.assemble((session["session_key"], "bold"), (f"  {said}", "dim")))
    if session["observation"]:
        console.print(Text(f"observed: {words.observation(session['observation'])}", style="dim"))
    digest = session["digests"].get("summary_long") or session["digests"].get("summary_short")
    if digest:
        console.print(Text.assemble("\n", (f"digest m{digest['id']}", "cyan")))
        paragraph(console, digest["content"], indent=2)
    for message in session["said"]:
        head = f"\nm{message['id']} ", "cyan"
        console.print(
            Text.assemble(head, (message["author"], "bold"), (f"  {message['occurred_at']:%Y-%m-%d %H:%M}", "dim"))
        )
        paragraph(console, message["content"], indent=2)
