"""``nexus webhooks``: the addresses that are told of events in a namespace."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import table
from nexus_tasks.cli.options import Json, Namespace, Offset, PageLimit
from nexus_tasks.cli.output import emit, say
from nexus_tasks.types import WebhookInfo

app = typer.Typer(help="List and resume webhooks, the addresses that are told of events.", no_args_is_help=True)


@app.command("list")
def list_(namespace: Namespace, limit: PageLimit = 100, offset: Offset = 0, json: Json = False) -> None:
    """List the webhooks of a namespace without their secrets: whether they are called, and what waits for them."""
    found = connect().webhooks(namespace, limit=limit, offset=offset)
    if json:
        emit({"webhooks": found})
        return
    table(
        ("id", "address", "events", "state", "waiting", "last error"),
        [(one.id, one.url, ",".join(one.events), _state(one), one.waiting, one.last_error) for one in found],
        elastic="address",
        empty=f"{namespace} has no webhooks.",
    )


@app.command()
def resume(
    webhook: Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its id, as `nexus webhooks list` shows it.")],
    namespace: Namespace,
    json: Json = False,
) -> None:
    """Tell a webhook again that is paused, or that waits after a failure."""
    found = connect().resume_webhook(namespace, webhook)
    if json:
        emit(found)
        return
    say(f"{found.url} is told again. {words.count(found.waiting, 'event waits', 'events wait')}.")


def _state(one: WebhookInfo) -> str:
    if one.paused_at is not None:
        return f"paused after {one.failures} failures"
    return f"waits after {words.count(one.failures, 'failure')}" if one.failures else "told"
