"""``nexus health``: ask a worker or beat of this machine whether it lives and works, for probes and scripts.

It imports neither Celery nor SQLAlchemy, because probes run it often.
"""

from __future__ import annotations

import json as json_
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from nexus_tasks.cli.failing import FAILED
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit
from nexus_tasks.errors import ConfigurationError, NexusError

_ANSWER_WITHIN = 5.0  # seconds


def health(
    live: Annotated[
        bool, typer.Option("--live", help="Ask only whether the process lives, not whether its servers answer.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="The port of the process; unset: `NEXUS_METRICS_PORT`.")] = None,
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
    host = "127.0.0.1" if settings.metrics_host == "0.0.0.0" else settings.metrics_host
    document = _ask(f"http://{host}:{port}/{'livez' if live else 'readyz'}")
    if json:
        emit(document)
    else:
        print("\n".join(document["faults"]) or "ok")
    if not document["ok"]:
        raise typer.Exit(FAILED)


def _ask(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_WITHIN) as answer:
            return dict(json_.load(answer))
    except urllib.error.HTTPError as refused:
        if refused.code == 503:
            with refused:
                return dict(json_.load(refused))
        raise _no_answer(url) from refused
    except (OSError, ValueError) as error:
        raise _no_answer(url) from error


def _no_answer(url: str) -> NexusError:
    return NexusError(
        f"No worker answers at {url}.", remedy="Look into the worker's log: it names the port, or why it has none."
    )
