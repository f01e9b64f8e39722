"""``nexus search``, ``context``, ``ask`` and ``profile``: what memory tells."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.memories import print_hits
from nexus_tasks.cli.options import (
    AsOf,
    Categories,
    HeardOnly,
    Json,
    Levels,
    Limit,
    MinStanding,
    Namespace,
    Observer,
    Session,
    Since,
    Subject,
    Until,
)
from nexus_tasks.cli.output import emit, hint, say, warn


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A question, or words.")],
    namespace: Namespace,
    observer: Observer = None,
    subject: Subject = None,
    session: Session = None,
    level: Levels = None,
    category: Categories = None,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    min_standing: MinStanding = None,
    heard_only: HeardOnly = False,
    limit: Limit = 10,
    collapse: Annotated[
        bool, typer.Option("--collapse/--no-collapse", help="Show memories that say the same as one hit.")
    ] = True,
    json: Json = False,
) -> None:
    """Find the memories that best answer a question, best first."""
    results = connect().search(
        namespace,
        query,
        observer=observer,
        subject=subject,
        session_key=session,
        levels=level,
        categories=category,
        since=since,
        until=until,
        as_of=as_of,
        min_standing=min_standing,
        heard_only=heard_only,
        limit=limit,
        collapse=collapse,
    )
    missing = results.missing_embeddings
    if json:
        emit({"query": query, "namespace": namespace, "results": results, "missing_embeddings": missing})
    else:
        print_hits(results, missing)


def context(
    namespace: Namespace,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="KEY", help="Add this session's digest and its messages that are not derived yet."
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", metavar="Q", help="Choose the facts and messages that fit this question.")
    ] = None,
    observer: Observer = None,
    subject: Subject = None,
    min_standing: MinStanding = None,
    heard_only: HeardOnly = False,
    profile: Annotated[
        bool | None,
        typer.Option(
            "--profile/--no-profile",
            help="Begin with the profile of --subject, or of the user who has said most lately.",
            show_default="with --subject",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            metavar="N",
            min=1,
            max=1_000_000,
            help="The largest number of tokens; with --observe the default is the whole session.",
            show_default="2000",
        ),
    ] = None,
    format: Annotated[
        Literal["text", "anthropic", "openai", "json"],
        typer.Option("--format", help="A text, messages for Claude or for OpenAI's API, or the sections as JSON."),
    ] = "text",
    observe: Annotated[
        bool,
        typer.Option("--observe", help="Show the session itself: notes on old messages, then the newest messages."),
    ] = False,
    count: Annotated[
        Literal["estimate", "anthropic"],
        typer.Option("--count", help="How to count tokens: estimate them (characters / 4), or ask Claude."),
    ] = "estimate",
    json: Json = False,
) -> None:
    """Assemble memories for an agent's prompt, at most --max-tokens tokens. Every line has a citation."""
    block = connect().context(
        namespace,
        session_key=session,
        query=query,
        observer=observer,
        subject=subject,
        min_standing=min_standing,
        heard_only=heard_only,
        profile=profile,
        max_tokens=max_tokens,
        format=format,
        observe=observe,
        count=count,
    )
    if json:
        emit(block)
        return
    if format in ("anthropic", "openai"):
        emit(block.messages)
    else:
        # The text goes into a prompt, so its lines must stay whole. `say` wraps no line.
        say(block.text)
    for note in block.notes:
        warn(note)
    how = "" if block.counted_by == "estimate" else ", counted by Claude"
    hint(f"{block.tokens:,} of {block.max_tokens:,} tokens{how}")


def ask(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.")],
    namespace: Namespace,
    observer: Observer = None,
    subject: Subject = None,
    heard_only: HeardOnly = False,
    json: Json = False,
) -> None:
    """Answer a question from memory: every sentence cites the memories that say it, or nothing is remembered.

    The model may look again up to four times. Its calls count toward the namespace's budget. The offline model answers
    with the best lines, word for word.
    """
    told = connect().ask(
        namespace,
        question,
        observer=observer,
        subject=subject,
        heard_only=heard_only,
        on_sentence=None if json else lambda sentence: say(str(sentence)),
    )
    if json:
        emit(told)
        return
    if not told.remembered:
        say(told.text)
    for note in told.notes:
        hint(note)


def profile(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The person or thing.")],
    namespace: Namespace,
    observer: Observer = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=1, max=1_000_000, help="The largest number of tokens.")
    ] = 500,
    json: Json = False,
) -> None:
    """Show what to know about someone at any time. Every line has a citation."""
    block = connect().profile(namespace, subject, observer=observer, max_tokens=max_tokens)
    if json:
        emit(block)
        return
    say(block.text)
    hint(f"{block.tokens:,} of {block.max_tokens:,} tokens")
