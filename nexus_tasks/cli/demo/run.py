"""The demo from start to end."""

from __future__ import annotations

import time
from contextlib import nullcontext
from importlib.resources import as_file, files
from pathlib import Path

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.demo import report
from nexus_tasks.cli.demo.stage import set_up, stage
from nexus_tasks.cli.demo.story import tell
from nexus_tasks.cli.failing import WAITED_IN_VAIN
from nexus_tasks.cli.output import warn
from nexus_tasks.cli.show import words
from nexus_tasks.cli.store_and_wait import load
from nexus_tasks.integrations.importers import Conversation, read

_SHIPPED = files("nexus_tasks") / "examples" / "team-chat.jsonl"
_QUESTION = "When do we deploy?"  # what the shipped conversation changes its mind about
_PATIENCE = 900.0


def run(data: Path | None, namespace: str) -> None:
    """Start everything, store, wait, show, stop.

    Raises:
        InvalidInput: the file is not one of conversations; nothing was started.
        EmbeddedError: something does not start.
    """
    settings = set_up()
    conversations = _read(data, namespace)
    report.opening(settings.home, data)
    from nexus_tasks.deployment import Deployment, use

    with stage(settings), use(Deployment(settings)):
        nexus = connect()
        began = time.monotonic()
        settled = load(nexus, conversations, end=True, worker=nullcontext(), timeout=_PATIENCE)
        seconds = time.monotonic() - began
        if not settled.well:
            jobs = words.count(len(settled.dead), "job")
            warn(f"{jobs} gave up, {settled.left:,} messages are not derived; see {settings.home}/logs.")
            raise typer.Exit(WAITED_IN_VAIN)
        shown = settled.receipt.namespaces[0]
        report.stored(settled.receipt, len(conversations), seconds)
        report.story(tell(nexus, shown, None if data else _QUESTION))
        report.closing(settings.home, shown)


def _read(data: Path | None, namespace: str) -> list[Conversation]:
    if data is not None:
        return list(read(data, namespace=namespace))
    with as_file(_SHIPPED) as path:
        return list(read(path, namespace=namespace))
