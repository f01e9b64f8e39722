"""``nexus namespaces``: the namespaces (tenants) and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import paragraph, table
from nexus_tasks.cli.options import Json, Offset, PageLimit
from nexus_tasks.cli.output import emit, out
from nexus_tasks.types import NamespaceDetails, NamespaceInfo

app = typer.Typer(help="List namespaces (tenants), make them and change their settings.", no_args_is_help=True)

# The names that `--unset` takes, each with the setting that the name resets.
_UNSETTABLE = {"budget": "budget_usd_per_day", "concurrency": "concurrency", "language": "language"}


def _unset(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        if value not in _UNSETTABLE:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(_UNSETTABLE)}.")
    return values


Name = Annotated[str, typer.Argument(metavar="NS", help="The namespace's name.")]
Observers = Annotated[
    list[str] | None,
    typer.Option(
        "--observer",
        metavar="O",
        help="An observer, for whom memories of its own are made; repeat for several. Default: assistant.",
    ),
]
Budget = Annotated[
    float | None, typer.Option("--budget", metavar="USD", min=0, help="At most this many US dollars a day (UTC).")
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", metavar="N", min=1, help="At most this many jobs at a time.")
]

Scrub = Annotated[
    bool | None,
    typer.Option("--scrub/--no-scrub", help="Replace secrets in messages before they are stored. Default: yes."),
]

TimeZone = Annotated[
    str | None,
    typer.Option(
        "--time-zone", metavar="TZ", help="Time zone of the speakers, such as Europe/Lisbon or +05:30. Default: UTC."
    ),
]

Language = Annotated[
    str | None,
    typer.Option(
        "--language", metavar="L", help="Language of all texts, such as german. Default: guessed for each text."
    ),
]

Instructions = Annotated[
    str | None,
    typer.Option(
        "--instructions",
        metavar="TEXT",
        help='What models should keep or leave out: "remember allergies, ignore small talk". "" removes them.',
    ),
]

Observe = Annotated[
    bool | None,
    typer.Option("--observe/--no-observe", help="Observe long conversations: notes replace their old messages."),
]


@app.command("list")
def list_(limit: PageLimit = 100, offset: Offset = 0, json: Json = False) -> None:
    """List namespaces with their settings, sorted by name."""
    found = connect().namespaces(limit=limit, offset=offset)
    if json:
        emit({"namespaces": found})
    else:
        _print_namespaces(found)


@app.command()
def show(namespace: Name, json: Json = False) -> None:
    """Show a namespace's settings, and the number of its memories."""
    _emit_or_print(connect().namespace(namespace), json)


@app.command("set")
def set_(
    namespace: Name,
    observer: Observers = None,
    budget: Budget = None,
    concurrency: Concurrency = None,
    observe: Observe = None,
    scrub: Scrub = None,
    time_zone: TimeZone = None,
    language: Language = None,
    instructions: Instructions = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="S",
            help="Reset a setting to its default: budget, concurrency or language.",
            callback=_unset,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Change the given settings of a namespace. A new observer gets memories from new messages only."""
    client = connect()
    client.set_namespace(
        namespace,
        observers=observer or None,
        budget_usd_per_day=budget,
        concurrency=concurrency,
        observe=observe,
        scrub=scrub,
        time_zone=time_zone,
        language=language,
        instructions=instructions,
        unset=[_UNSETTABLE[name] for name in unset or ()],
    )
    _emit_or_print(client.namespace(namespace), json)


@app.command()
def create(
    namespace: Name,
    observer: Observers = None,
    budget: Budget = None,
    concurrency: Concurrency = None,
    observe: Observe = None,
    scrub: Scrub = None,
    time_zone: TimeZone = None,
    language: Language = None,
    instructions: Instructions = None,
    json: Json = False,
) -> None:
    """Make a namespace, or change the settings of one that exists. (The first ingest makes a namespace too.)"""
    client = connect()
    client.create_namespace(
        namespace,
        observers=observer or None,
        budget_usd_per_day=budget,
        concurrency=concurrency,
        observe=observe,
        scrub=scrub,
        time_zone=time_zone,
        language=language,
        instructions=instructions,
    )
    _emit_or_print(client.namespace(namespace), json)


def _emit_or_print(found: NamespaceDetails, json: bool) -> None:
    if json:
        emit(found)
    else:
        _print_namespace(found)


# --- output for people -----------------------------------------------------------------------------------------------
def _print_namespaces(namespaces: Sequence[NamespaceInfo]) -> None:
    rows = [(found.namespace, ", ".join(found.observers), _budget(found), _runs(found)) for found in namespaces]
    table(
        ("namespace", "observers", "budget", "concurrency"),
        rows,
        elastic="observers",
        empty="There are no namespaces yet.",
    )


def _print_namespace(found: NamespaceDetails) -> None:
    console = out()
    console.print(Text(found.namespace, style="bold"))
    named = {
        "observers": ", ".join(found.observers),
        "budget": _budget(found),
        "concurrency": _runs(found),
        "observe": "long conversations" if found.observe else "no",
        "secrets": "scrubbed" if found.scrub else "stored as they are",
        "time zone": found.time_zone,
        "language": found.language or "guessed for each text",
        "instructions": found.instructions or "none",
        "memories": words.memory_counts(found.memories),
    }
    for name, value in named.items():
        paragraph(console, value, indent=13, first=Text(name, style="dim"))


def _budget(found: NamespaceInfo) -> str:
    budget = found.budget_usd_per_day
    return "no limit" if budget is None else f"{words.money(budget)} a day"


def _runs(found: NamespaceInfo) -> str:
    return "default" if found.concurrency is None else words.count(found.concurrency, "run")
