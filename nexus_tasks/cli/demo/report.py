"""The demo's report, printed at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from nexus_tasks.cli import words
from nexus_tasks.cli.demo.story import Change, Digest, Fact, Figures, Source, Story
from nexus_tasks.cli.layout import paragraph
from nexus_tasks.cli.memories import print_hit
from nexus_tasks.cli.output import PAGE_WIDTH, page
from nexus_tasks.text import shorten
from nexus_tasks.types import ContextBlock, Receipt

_DIGEST_LINES, _LONGEST_LINE, _LONGEST_TITLE = 5, 150, 50
_CITED = 2  # sources named per fact
_NUMBER, _LABEL = 7, 13


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Rule(Text(text, style="bold"), align="left", style="dim"))


def print_opening(home: Path, data: Path | None) -> None:
    """Print what the demo does, and that it does not touch the user's memory."""
    console = page()
    console.print(Text.assemble(("nexus demo", "bold"), " with the ", ("offline", "bold green"), " model"))
    paragraph(
        console,
        "Postgres, Redis and the Celery worker are real; a small extractive model does the thinking:"
        " no network, no key, no cost. Your own memory is not touched.",
    )
    console.print(f"data: {data or 'a conversation that ships with nexus-tasks'}", style="dim", soft_wrap=True)
    console.print(f"home: {home}", style="dim", soft_wrap=True)


def print_stored(receipt: Receipt, sessions: int, seconds: float) -> None:
    """Print how many messages were stored, and after how many seconds all jobs were done."""
    console = page()
    _title(console, "Stored")
    known = f", {receipt.duplicates:,} were known" if receipt.duplicates else ""
    spaces = f" in {len(receipt.namespaces)} namespaces (the first is shown)" if len(receipt.namespaces) > 1 else ""
    paragraph(
        console,
        f"{words.count(receipt.messages, 'message')} of {words.count(sessions, 'session')}{spaces}:"
        f" {receipt.stored:,} stored{known}. After {seconds:.1f} s nothing was left to do.",
    )


def print_story(story: Story) -> None:
    """Print memories of a namespace: facts, a resolved contradiction, a digest, a search and a context block.

    The queue's figures follow.
    """
    console = page()
    counts = words.memory_counts(story.memories)
    paragraph(console, f"{story.observer} remembers in namespace {story.namespace}: {counts}.")
    if story.facts:
        _title(console, "Facts, and who said so when")
    for fact in story.facts:
        _fact(console, fact)
    if story.change:
        _change(console, story.change)
    if story.digest:
        _digest(console, story.digest)
    _title(console, f"Search: {shorten(story.query, _LONGEST_TITLE)}")
    for result in story.results:
        print_hit(console, result)
    _context(console, story.context)
    _figures(console, story.figures)


def _fact(console: Console, fact: Fact, indent: int = _NUMBER, head: Text | None = None, style: str = "") -> None:
    first = (head or Text()).append(f"m{fact.id}", style="cyan")
    content = shorten(fact.content, 2 * (PAGE_WIDTH - indent))
    paragraph(console, Text(content, style=style), indent=indent, first=first)
    kind = "" if fact.category == "other" else f"{fact.category} "
    paragraph(console, Text(f"{kind}about {fact.subject}{_cited(fact.sources)}", style="dim"), indent=indent)


def _cited(sources: Sequence[Source]) -> str:
    named = [
        f"{source.author} on {source.at:%Y-%m-%d} ({source.external_id or f'm{source.id}'})"
        for source in sources[:_CITED]
    ]
    more = f" and {words.count(len(sources) - _CITED, 'other')}" if len(sources) > _CITED else ""
    return f", said by {', '.join(named)}{more}" if named else ""


def _change(console: Console, change: Change) -> None:
    _title(console, "A contradiction, resolved")
    indent = len("earlier  ") + _NUMBER
    _fact(console, change.earlier, indent, Text("earlier  ", style="yellow"), "strike")
    _fact(console, change.now, indent, Text("now      ", style="green"), "bold")
    said = f"m{change.id} cites both; the earlier one stays in the history, for --as-of."
    paragraph(console, Text(said, style="dim"), indent=indent)


def _digest(console: Console, digest: Digest) -> None:
    _title(console, f"Digest of session {shorten(digest.session_key, _LONGEST_TITLE)} (m{digest.id})")
    lines = digest.content.splitlines()
    for line in lines[:_DIGEST_LINES]:
        paragraph(console, shorten(line, _LONGEST_LINE), indent=2)
    if len(lines) > _DIGEST_LINES:
        paragraph(console, Text(f"… and {words.count(len(lines) - _DIGEST_LINES, 'more line')}", style="dim"), indent=2)


def _context(console: Console, block: ContextBlock) -> None:
    _title(console, f"Context for an agent: {block.tokens} of {block.max_tokens} tokens, every line cited")
    for line in block.text.splitlines():
        if line.startswith("- "):
            paragraph(console, line[2:], indent=4, first=Text("  - "))
        else:
            paragraph(console, Text(line, style="bold"), indent=2)


def _figures(console: Console, figures: Figures) -> None:
    _title(console, "The queue")
    jobs = ", ".join(f"{number:,} {kind}" for kind, number in sorted(figures.jobs.items()))
    latency = figures.median_queued_ms
    for name, value in {
        "jobs run": jobs,
        "p50 latency": "" if latency is None else f"{latency:,.0f} ms from queued to started",
        "model calls": f"{figures.model_calls:,} today, all offline",
        "spent": words.money(figures.spend_usd),
    }.items():
        paragraph(console, value, indent=_LABEL, first=Text(name, style="dim"))


def print_closing(home: Path, namespace: str) -> None:
    """Print the commands to try next."""
    console = page()
    _title(console, "Next")
    look = f"NEXUS_HOME={quote(str(home))} nexus status --namespace {namespace}"
    for purpose, command in (
        ("look around", look),
        ("start yours", "nexus up"),
        ("fill it", "nexus ingest FILE --namespace NS --wait"),
    ):
        head = Text(purpose.ljust(_LABEL), style="dim")
        console.print(head.append(command, style="cyan"), soft_wrap=True)
