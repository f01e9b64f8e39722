"""``nexus memories``: list memories, show one with its evidence, and correct them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import paragraph, table
from nexus_tasks.cli.options import (
    AsOf,
    EraseExpired,
    ExpiresAt,
    Json,
    Levels,
    Namespace,
    Observer,
    Offset,
    PageLimit,
    Session,
    Subject,
)
from nexus_tasks.cli.output import emit, out
from nexus_tasks.text import shorten
from nexus_tasks.types import Citation, MemoryDetails, MemoryInfo, Recall, SupportedMemory, iso

app = typer.Typer(help="List, show, correct and pin memories.", no_args_is_help=True)


@app.command("list")
def list_(
    namespace: Namespace,
    observer: Observer = None,
    subject: Subject = None,
    session: Session = None,
    level: Levels = None,
    as_of: AsOf = None,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Also list superseded and expired memories.")
    ] = False,
    limit: PageLimit = 100,
    offset: Offset = 0,
    json: Json = False,
) -> None:
    """List memories, newest first."""
    found = connect().memories(
        namespace,
        observer=observer,
        subject=subject,
        session_key=session,
        levels=level,
        as_of=as_of,
        superseded=superseded,
        limit=limit,
        offset=offset,
    )
    if json:
        emit({"namespace": namespace, "memories": found})
    else:
        _print_memories(found)


@app.command()
def perspectives(namespace: Namespace, limit: PageLimit = 100, offset: Offset = 0, json: Json = False) -> None:
    """List who holds memories about whom, and how many."""
    found = connect().perspectives(namespace, limit=limit, offset=offset)
    if json:
        emit({"namespace": namespace, "perspectives": found})
        return
    rows = [(one.observer, one.subject, one.memories, one.unreflected) for one in found]
    titles = ("observer", "subject", "memories", "unreflected")
    table(titles, rows, elastic="subject", empty="There are no perspectives yet.")


@app.command()
def show(
    memory: Annotated[str, typer.Argument(metavar="ID", help="A memory's number: 17 or m17.")],
    namespace: Namespace,
    json: Json = False,
) -> None:
    """Show a memory with its evidence, the memories that rest on it, and the memories that it superseded."""
    found = connect().memory(namespace, _number(memory))
    if json:
        emit({"namespace": namespace} | found.to_dict())
    else:
        _print_memory(found)


# --- output for people -----------------------------------------------------------------------------------------------
_LONGEST = 240  # characters of a memory in a list on a terminal
_INDENT = 7


@app.command()
def revise(
    memory: Annotated[str, typer.Argument(metavar="ID", help="A fact's number: 17 or m17.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The corrected fact.")],
    namespace: Namespace,
    author: Annotated[str, typer.Option("--author", metavar="A", help="Who corrects it.")] = "user",
    expires_at: ExpiresAt = None,
    erase_expired: EraseExpired = False,
    json: Json = False,
) -> None:
    """Replace a fact by a corrected fact. The old one stays as history. `nexus undo REFLECTION` reverses it."""
    made = connect().revise(
        namespace, _number(memory), text, author=author, expires_at=expires_at, erase_expired=erase_expired
    )
    if json:
        emit({"namespace": namespace} | made.to_dict())
        return
    undo = f" Undo it with `nexus undo {made.reflection} --namespace {namespace}`." if made.reflection else ""
    print(f"m{_number(memory)} is superseded by m{made.id}.{undo}")


@app.command()
def pin(
    memory: Annotated[str, typer.Argument(metavar="ID", help="A fact's number: 17 or m17.")],
    namespace: Namespace,
    json: Json = False,
) -> None:
    """Pin a fact: it comes first in its subject's profile, and no reflection ends it."""
    _pinned(connect().pin(namespace, _number(memory)), namespace, json=json)


@app.command()
def unpin(
    memory: Annotated[str, typer.Argument(metavar="ID", help="A fact's number: 17 or m17.")],
    namespace: Namespace,
    json: Json = False,
) -> None:
    """Take back a pin."""
    _pinned(connect().unpin(namespace, _number(memory)), namespace, json=json)


def _pinned(found: MemoryDetails, namespace: str, *, json: bool) -> None:
    if json:
        emit({"namespace": namespace} | found.to_dict())
    else:
        print(f"m{found.id} is {'pinned' if found.pinned else 'not pinned'}.")


def _number(memory: str) -> int:
    number = memory.removeprefix("m")
    if not is_number(number):
        raise typer.BadParameter(f"{memory!r:.40} is not a memory's number such as 17 or m17.", param_hint="ID")
    return int(number)


def is_number(text: str) -> bool:
    """Whether ``text`` is a number that a row of Postgres may have."""
    return text.isdecimal() and len(text) <= 19 and int(text) < 2**63


def _print_memories(memories: Sequence[MemoryInfo]) -> None:
    # A terminal shows a block of lines per memory. A pipe gets one line of tab-separated values per memory.
    if not sys.stdout.isatty():
        fields = ("id", "level", "observer", "subject", "session_key", "occurred_at", "content")
        rows = [[getattr(memory, field) for field in fields] for memory in memories]
        table(fields, rows, elastic="content", empty="")
        return
    console = out()
    if not memories:
        console.print("No memories fit.", style="dim")
    for memory in memories:
        about = memory.subject or memory.author or memory.session_key
        _print_block(console, memory.id, [memory.level, about, words.ago(memory.occurred_at)], memory.content)


def print_hits(results: Sequence[Recall], missing_embeddings: int) -> None:
    """Print search hits, best first, with the parts of their scores."""
    if not sys.stdout.isatty():
        rows = [[r.id, r.score, r.level, r.subject, r.occurred_at, r.content] for r in results]
        table(("id", "score", "level", "about", "when", "content"), rows, elastic="content", empty="")
        return
    console = out()
    if not results:
        console.print("Nothing was found.", style="dim")
    for result in results:
        print_hit(console, result)
    if missing_embeddings:
        said = f"{words.count(missing_embeddings, 'memory has', 'memories have')} no vector yet: found by words only."
        console.print(said, style="dim")


def print_hit(console: Console, result: Recall) -> None:
    """Print one search hit with the parts of its score, and its evidence."""
    about = [result.level, result.subject or result.session_key, words.ago(result.occurred_at), _event(result.event)]
    why = " + ".join(f"{arm} {score:.2f}" for arm, score in result.why.items() if not isinstance(score, str))
    said = f"; standing {result.standing}" if result.standing else ""
    cited = ", ".join(f"m{edge.id}" for edge in result.evidence[:5])
    others = len(result.evidence[5:]) + result.more_evidence
    more = f" and {others:,} more" if others else ""
    rests = f"; rests on {cited}{more}" if cited else ""
    _print_block(console, result.id, about, result.content, f"score {result.score:.2f}: {why}{said}{rests}")


def _print_block(console: Console, memory_id: int, about: Sequence[str | None], content: str, footer: str = "") -> None:
    head = Text.assemble((f"m{memory_id}".ljust(_INDENT), "cyan"), (" · ".join(filter(None, about)), "dim"))
    console.print(head, no_wrap=True, overflow="ellipsis")
    paragraph(console, shorten(words.line(content), _LONGEST), indent=_INDENT)
    if footer:
        paragraph(console, Text(footer, style="dim"), indent=_INDENT)


def _print_memory(memory: MemoryDetails) -> None:
    console = out()
    console.print(Text.assemble((f"m{memory.id} ", "cyan"), (memory.level, "bold")))
    console.print(Text(memory.content))
    console.print()
    for name, value in _figures(memory):
        paragraph(console, value, indent=14, first=Text(name, style="dim"))


def _figures(memory: MemoryDetails) -> list[tuple[str, str]]:
    claimed = f" (said to be {iso(memory.claimed_at)}, which was in the future)" if memory.claimed_at else ""
    held = f"{memory.observer} about {memory.subject}" if memory.observer else None
    until = f" until {iso(memory.valid_to)}" if memory.valid_to else ""
    valid = f"{iso(memory.valid_from)}{until}" if memory.valid_from else None
    named = {
        "held by": held,
        "said by": f"{memory.author} ({memory.role})" if memory.role else None,
        "session": memory.session_key,
        "external id": memory.external_id,
        "occurred": f"{iso(memory.occurred_at)}{claimed}",
        "event": memory.event,
        "valid from": valid,
        "confidence": f"{memory.confidence:.2f}, reinforced {words.count(memory.times_reinforced, 'time')}",
        "category": memory.category,
        "pinned": "yes" if memory.pinned else None,
        "expires": f"{iso(memory.expires_at)}{', then erased' * memory.erase_expired}" if memory.expires_at else None,
        "labels": ", ".join(memory.labels),
        "made by": memory.made_by,
        "standing": memory.standing,
        "reflection": str(memory.reflection or ""),
        "rests on": _edges(memory.evidence) + (f" and {memory.more_evidence:,} more" if memory.more_evidence else ""),
        "supports": _edges(memory.supports),
        "superseded": ", ".join(f"m{old}" for old in memory.superseded),
        "superseded by": f"m{memory.superseded_by}" if memory.superseded_by else None,
    }
    return [(name, value) for name, value in named.items() if value]


def _event(event: str | None) -> str | None:
    return event and f"about {event}"


def _edges(edges: Sequence[Citation | SupportedMemory]) -> str:
    return ", ".join(f"m{edge.id} ({edge.role})" for edge in edges)
