"""Options that several commands share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from nexus_tasks import limits
from nexus_tasks.cli.output import JSON
from nexus_tasks.types import LEVELS, Standing


def moment(text: str) -> datetime:
    """Parse an option's value as a time in ISO 8601."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an ISO 8601 time such as 2026-11-01 or 2026-11-01T09:30Z.") from None


def _levels(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        if value not in LEVELS:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(LEVELS)}.")
    return values


Json = Annotated[bool, JSON]
Namespace = Annotated[str, typer.Option("--namespace", metavar="NS", help="The namespace (tenant).")]
AnyNamespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NS", help="Only this namespace.", show_default="all")
]
Session = Annotated[str | None, typer.Option("--session", metavar="KEY", help="Only this session.")]
Observer = Annotated[str | None, typer.Option("--observer", metavar="O", help="Only memories of this observer.")]
HeardOnly = Annotated[
    bool, typer.Option("--heard-only", help="With --observer: only messages that this observer heard, and no digests.")
]
Subject = Annotated[str | None, typer.Option("--subject", metavar="S", help="Only memories about this subject.")]
Levels = Annotated[
    list[str] | None,
    typer.Option(
        "--level", metavar="L", help=f"Only this level; repeat for more: {', '.join(LEVELS)}.", callback=_levels
    ),
]
Categories = Annotated[
    list[str] | None, typer.Option("--category", metavar="C", help="Only facts of this category; repeat for more.")
]
Since = Annotated[
    datetime | None,
    typer.Option(
        "--since",
        metavar="T",
        parser=moment,
        help="Only memories of this time or later: when it happened, if known, else when it was said.",
    ),
]
Until = Annotated[
    datetime | None,
    typer.Option(
        "--until",
        metavar="T",
        parser=moment,
        help="Only memories of a time before this one: when it happened, if known, else when it was said.",
    ),
]
AsOf = Annotated[
    datetime | None,
    typer.Option(
        "--as-of", metavar="T", parser=moment, help="Only memories valid at this time (ISO 8601; UTC without a zone)."
    ),
]
MinStanding = Annotated[
    Standing | None,
    typer.Option(
        "--min-standing",
        help="Only memories that rest on words of at least this standing: self (a person's about themselves), other"
        " (another person's), assistant, tool or import.",
    ),
]
ExpiresAt = Annotated[
    datetime | None,
    typer.Option(
        "--expires-at", metavar="T", parser=moment, help="It counts as superseded from this time on (ISO 8601)."
    ),
]
EraseExpired = Annotated[
    bool, typer.Option("--erase-expired", help="Erase it within an hour after the time of --expires-at.")
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=limits.SEARCH_RESULTS, help="The largest number of results.")
]
PageLimit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=limits.PAGE_ROWS, help="The largest number on this page.")
]
Offset = Annotated[
    int, typer.Option("--offset", metavar="N", min=0, max=limits.PAGE_OFFSET, help="Leave out the first N.")
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until the jobs are done; if no worker runs, start one for this time.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="S", min=0, help="With --wait: stop waiting after this many seconds.")
]
DEFAULT_TIMEOUT = 3_600.0
