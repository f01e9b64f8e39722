"""The commands ``nexus up`` and ``nexus down``."""

from __future__ import annotations

import os
import socket
import time
from importlib.util import find_spec
from typing import Annotated

import typer

from nexus_tasks import embedded
from nexus_tasks.cli.stack.flower import user_file
from nexus_tasks.cli.stack.lifetime import claim, end
from nexus_tasks.cli.stack.run import StackOptions, detach, supervise
from nexus_tasks.embedded.clients import in_use
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.settings import Settings, load_settings, refuse_several


def up(
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="The number of jobs that the worker runs at a time.")
    ] = None,
    flower: Annotated[bool, typer.Option("--flower", help="Run Flower too, on 127.0.0.1.")] = False,
    in_background: Annotated[bool, typer.Option("--detach", help="Return as soon as the worker is ready.")] = False,
) -> None:
    """Run the stack: Redis, Postgres, a worker, beat and, with --flower, Flower.

    When NEXUS_DATABASE_URL and NEXUS_REDIS_URL are set, this command does not start Redis and Postgres.
    """
    settings = load_settings()
    refuse_several(settings)  # before the servers of the home folder start, which are no cell
    with claim(settings.home) as held:
        options = StackOptions(concurrency, _flower_port() if flower else None)
        _upgrade_schema(settings)
        if in_background:
            pid = detach(settings, options, held)
            _announce(
                settings,
                options,
                f"The stack runs (pid {pid}), logs in {settings.home / 'logs'}. `nexus down` stops it.",
            )
            return
        try:
            supervise(settings, options, lambda: _announce(settings, options, "The stack runs. Ctrl-C stops it."))
        finally:
            if settings.embedded:
                _stop_unless_used(settings)


def down() -> None:
    """Stop the stack: the processes of `nexus up`, then the embedded servers."""
    settings = load_settings()
    stopped = ["worker and companions"] if end(settings.home) else []
    if settings.embedded:
        stopped += embedded.stop(settings.home)
    typer.echo(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing was running.")


def _announce(settings: Settings, options: StackOptions, message: str) -> None:
    typer.echo(message)
    if options.flower_port is not None:
        user = user_file(settings.home)
        where = f", its user and password are in {user}" if user else ""
        typer.echo(f"Flower: http://127.0.0.1:{options.flower_port}{where}")


def _upgrade_schema(settings: Settings) -> None:
    # These modules are imported here, so that `nexus down` and `nexus --help` do not load SQLAlchemy and Alembic.
    from nexus_tasks.endpoints import endpoints_of
    from nexus_tasks.storage.schema import upgrade

    upgrade(endpoints_of(settings).database_url)


def _stop_unless_used(settings: Settings) -> None:
    """Stop the servers, unless another command of the same user is connected to them."""
    deadline = time.monotonic() + 2.0  # the connections of ended children need a moment to close
    while (found := embedded.running(settings.home)) and in_use(found.database_url, found.redis_url):
        if time.monotonic() > deadline:
            typer.echo("Redis and Postgres go on: another process uses them. `nexus down` stops them.")
            return
        time.sleep(0.05)  # the servers do not tell when a connection closes
    embedded.stop(settings.home)


def _flower_port() -> int:
    if find_spec("flower") is None:
        raise ConfigurationError(
            "Flower is not installed.", remedy="Install it with `pip install 'nexus-tasks[flower]'`."
        )
    try:
        port = int(os.environ.get("FLOWER_PORT", "5555"))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"Flower cannot listen on its port: {error}.", remedy="Set FLOWER_PORT to a free port number."
        ) from error
    return port
