"""``nexus health``: ask a worker or beat of this machine whether it lives and works, for probes and scripts.

It imports neither Celery nor SQLAlchemy, because probes run it often.
"""

from __future__ import annotations

import json as json_
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_address
from typing import Annotated, Any

import typer

from nexus_tasks.cli.failing import FAILED
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit, say
from nexus_tasks.errors import ConfigurationError, NexusError

_ANSWER_WITHIN = 5.0  # seconds


def health(
    live: Annotated[
        bool, typer.Option("--live", help="Ask only whether the process lives, not whether its servers answer.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="The port of the process; unset: `NEXUS_METRICS_PORT`.")
    ] = None,
    json: Json = False,
) -> None:
    """Ask a worker or beat of this machine whether it works. The exit code is 0 when it does, otherwise 1.

    Restart a process only when `--live` fails. Without `--live` the check also fails while a server is away.
    """
    from nexus_tasks.settings import load_settings

    settings = load_settings()
    port = port or settings.metrics_port
    if port is None:
        raise ConfigurationError(
            "No port of a worker is known.", remedy="Set NEXUS_METRICS_PORT for this command and for the worker."
        )
    document = _ask(_reached(settings.metrics_host), port, "/livez" if live else "/readyz")
    if json:
        emit(document)
    else:
        say("\n".join(document["faults"]) or "ok")
    if not document["ok"]:
        raise typer.Exit(FAILED)


def _reached(host: str) -> str:
    """The address of a server that listens on ``host``, which may mean every address."""
    try:
        given = ip_address(host)
    except ValueError:
        return host
    if not given.is_unspecified:
        return host
    return "127.0.0.1" if given.version == 4 else "::1"


def _ask(host: str, port: int, path: str) -> dict[str, Any]:
    """The page's document. The connection is direct, also where the environment names a proxy."""
    try:
        with closing(HTTPConnection(host, port, timeout=_ANSWER_WITHIN)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status not in (200, 503):
                raise _no_answer(host, port)
            return dict(json_.load(answer))
    except TimeoutError as error:
        raise NexusError(
            f"A process at {host}, port {port}, does not answer within {_ANSWER_WITHIN:.0f} s.",
            remedy="It is frozen or overloaded. If `nexus health --live` fails again and again, restart it.",
        ) from error
    except (OSError, ValueError, HTTPException) as error:
        raise _no_answer(host, port) from error


def _no_answer(host: str, port: int) -> NexusError:
    return NexusError(
        f"No worker answers at {host}, port {port}.",
        remedy="Look into the worker's log: it names the port, or why it has none.",
    )
