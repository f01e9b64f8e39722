"""``nexus namespaces``: tenants and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit

app = typer.Typer(help="See, make and set tenants.", no_args_is_help=True)

# What an option `--unset NAME` means to the client.
_UNSETTABLE = {"budget": "budget_usd_per_day", "concurrency": "concurrency"}


def _unset(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        if value not in _UNSETTABLE:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(_UNSETTABLE)}.")
    return values


Name = Annotated[str, typer.Argument(metavar="NS", help="The namespace's name.")]
Observers = Annotated[
    list[str] | None,
    typer.Option("--observer", metavar="O", help="Who holds memories here; repeat for several. Default: assistant."),
]
Budget = Annotated[float | None, typer.Option("--budget", metavar="USD", min=0, help="Most US dollars a day (UTC).")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", metavar="N", min=1, help="Most runs at a time.")]

Observe = Annotated[
    bool | None,
    typer.Option("--observe/--no-observe", help="Observe long conversations: notes take the place of old messages."),
]


@app.command("list")
def list_(json: Json = False) -> None:
    """List namespaces with their settings."""
    found = connect().namespaces()
    if json:
        emit({"namespaces": found})
        return
    from nexus_tasks.cli.show import namespaces as show

    show.listed(found)


@app.command()
def show(namespace: Name, json: Json = False) -> None:
    """Show a namespace's settings and how much it remembers."""
    _shown(connect().namespace(namespace), json)


@app.command("set")
def set_(
    namespace: Name,
    observer: Observers = None,
    budget: Budget = None,
    concurrency: Concurrency = None,
    observe: Observe = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="S", help="Back to the default: budget or concurrency.", callback=_unset),
    ] = None,
    json: Json = False,
) -> None:
    """Change a namespace's settings; what is not named stays. New observers hear what is said from now on."""
    client = connect()
    client.set_namespace(
        namespace,
        observers=observer or None,
        budget_usd_per_day=budget,
        concurrency=concurrency,
        observe=observe,
        unset=[_UNSETTABLE[name] for name in unset or ()],
    )
    _shown(client.namespace(namespace), json)


@app.command()
def create(
    namespace: Name,
    observer: Observers = None,
    budget: Budget = None,
    concurrency: Concurrency = None,
    observe: Observe = None,
    json: Json = False,
) -> None:
    """Make a namespace; one that exists stays and takes the settings given. (The first ingest makes one too.)"""
    client = connect()
    client.create_namespace(
        namespace, observers=observer or None, budget_usd_per_day=budget, concurrency=concurrency, observe=observe
    )
    _shown(client.namespace(namespace), json)


def _shown(found: Mapping[str, Any], json: bool) -> None:
    if json:
        emit(found)
        return
    from nexus_tasks.cli.show import namespaces as show

    show.one(found)
