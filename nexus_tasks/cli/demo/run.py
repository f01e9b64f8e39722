"""The demo from start to end."""

from __future__ import annotations

import time
from importlib.resources import as_file, files
from pathlib import Path

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.demo import report
from nexus_tasks.cli.demo.stage import set_up, stage
from nexus_tasks.cli.demo.story import tell
from nexus_tasks.cli.failing import WAITED_IN_VAIN
from nexus_tasks.cli.loading import Settled, letters, settle, store
from nexus_tasks.cli.output import warn
from nexus_tasks.cli.show.progress import meter
from nexus_tasks.integrations.importers import Conversation, read
from nexus_tasks.settings import Settings

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
    with stage(settings):
        settled, seconds = _remembered(conversations)
        if not settled.well:
            warn(
                f"{len(settled.dead)} jobs gave up, {settled.left} messages are not derived; see {settings.home}/logs."
            )
            raise typer.Exit(WAITED_IN_VAIN)
        _show(settled, seconds, None if data else _QUESTION, settings)


def _read(data: Path | None, namespace: str) -> list[Conversation]:
    if data is not None:
        return list(read(data, namespace=namespace))
    with as_file(_SHIPPED) as path:
        return list(read(path, namespace=namespace))


def _remembered(conversations: list[Conversation]) -> tuple[Settled, float]:
    nexus = connect()
    before = letters(nexus, sorted({one.namespace for one in conversations}))
    began = time.monotonic()
    with meter("stored") as progress:
        receipt = store(nexus, conversations, end=True, meter=progress)
    with meter("derived") as progress:
        settled = settle(nexus, receipt, list(before), timeout=_PATIENCE, meter=progress)
    return settled, time.monotonic() - began


def _show(settled: Settled, seconds: float, query: str | None, settings: Settings) -> None:
    nexus = connect()
    report.stored(settled.receipt, seconds)
    report.story(tell(nexus, settled.receipt.namespaces[0], query))
    report.closing(settings.home, settled.receipt.namespaces[0])
