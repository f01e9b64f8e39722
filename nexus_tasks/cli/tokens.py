"""``nexus tokens``: the access tokens of namespaces. ``nexus audit``: the audit log."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, cast

import typer

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import table
from nexus_tasks.cli.options import AnyNamespace, Json, Namespace, Offset, PageLimit, moment
from nexus_tasks.cli.output import emit, hint
from nexus_tasks.types import TOKEN_SCOPES, AuditEntry, NewToken, TokenInfo, TokenScope

app = typer.Typer(help="Make, list, rotate and revoke the access tokens of namespaces.", no_args_is_help=True)

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def _span(text: str) -> float:
    """Parse ``90s``, ``15m``, ``12h`` or ``30d`` into seconds."""
    parts = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if parts is None:
        raise typer.BadParameter(f"{text!r} is no span of time such as 90s, 15m, 12h or 30d.")
    return float(int(parts[1]) * _UNITS[parts[2]])


def _end(text: str) -> datetime:
    if not re.fullmatch(r"\d+[smhd]", text):
        return moment(text)
    try:
        return datetime.now(UTC) + timedelta(seconds=_span(text))
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long.") from None


def _scopes(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        if value not in TOKEN_SCOPES:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(TOKEN_SCOPES)}.")
    return values


TokenId = Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id, as `nexus tokens list` shows it.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for people, such as the agent's.")],
    namespace: Namespace,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="S",
            help=f"What it may do; repeat for more: {', '.join(TOKEN_SCOPES)}. Default: read.",
            callback=_scopes,
        ),
    ] = None,
    expires: Annotated[
        datetime | None,
        typer.Option(
            "--expires", metavar="T", parser=_end, help="Its end: a span such as 30d or 12h, or a time (ISO 8601)."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make a token for one namespace, and print it. It is printed once, and stored nowhere."""
    made = connect().create_token(namespace, name, scopes=cast(list[TokenScope], scope or ["read"]), expires_at=expires)
    _print_once(made, json)


@app.command("list")
def list_(namespace: Namespace, limit: PageLimit = 100, offset: Offset = 0, json: Json = False) -> None:
    """List the tokens of a namespace, without their secrets."""
    found = connect().tokens(namespace, limit=limit, offset=offset)
    if json:
        emit({"tokens": found})
        return
    table(
        ("id", "name", "scopes", "state", "created", "last used"),
        [(one.id, one.name, ",".join(one.scopes), _state(one), one.created_at, one.last_used_at) for one in found],
        elastic="name",
        empty=f"{namespace} has no tokens.",
    )


@app.command()
def rotate(
    token: TokenId,
    namespace: Namespace,
    grace: Annotated[
        float | None,
        typer.Option("--grace", metavar="T", parser=_span, help="The old secret stays valid for a span: 12h."),
    ] = None,
    json: Json = False,
) -> None:
    """Give a token a new secret, and print it once. The old secret ends now, or after `--grace`."""
    _print_once(connect().rotate_token(namespace, token, grace=grace or 0.0), json)


@app.command()
def revoke(token: TokenId, namespace: Namespace, json: Json = False) -> None:
    """Refuse a token from now on. This cannot be undone."""
    done = connect().revoke_token(namespace, token)
    if json:
        emit(done)
    else:
        print(f"The token {done.id} of {done.namespace} is revoked.")


def audit(
    namespace: AnyNamespace = None,
    action: Annotated[
        str | None,
        typer.Option("--action", metavar="A", help="Only this action, such as erase.session, or group, such as token."),
    ] = None,
    since: Annotated[
        datetime | None, typer.Option("--since", metavar="T", parser=moment, help="Only entries of this time or later.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", metavar="T", parser=moment, help="Only entries before this time.")
    ] = None,
    limit: PageLimit = 100,
    offset: Offset = 0,
    json: Json = False,
) -> None:
    """Show who erased, exported, corrected, and changed or used tokens, and when. The newest entry comes first."""
    found = connect().audit(namespace, action=action, since=since, until=until, limit=limit, offset=offset)
    if json:
        emit({"entries": found})
        return
    table(
        ("at", "action", "namespace", "by", "rows", "times"),
        [(one.at, _action(one), one.namespace, _by(one), sum(one.counts.values()), one.count) for one in found],
        elastic="by",
        empty="The audit log has no such entry.",
    )


# --- output for people ------------------------------------------------------------------------------------------------
def _print_once(made: NewToken, json: bool) -> None:
    if json:
        emit(made)
        return
    print(made.token)
    until = f", until {made.expires_at:%Y-%m-%d %H:%M} UTC" if made.expires_at else ""
    hint(f"Token {made.id} of {made.namespace} ({', '.join(made.scopes)}{until}). It is not shown again.")


def _state(found: TokenInfo) -> str:
    if found.revoked_at is not None:
        return "revoked"
    if found.expires_at is None:
        return "valid"
    return "expired" if found.expires_at <= datetime.now(UTC) else f"until {found.expires_at:%Y-%m-%d}"


def _action(entry: AuditEntry) -> str:
    return f"{entry.action} ({entry.reason})" if entry.reason else entry.action


def _by(entry: AuditEntry) -> str:
    if entry.actor == "token":
        return words.line(f"token {entry.token_name or entry.token_id or 'unknown'}")
    about = f", token {entry.token_name}" if entry.token_name else ""
    return words.line(f"{entry.actor} {entry.user}@{entry.host}{about}")
