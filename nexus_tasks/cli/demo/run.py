"""The steps of the demo, from start to end."""

from __future__ import annotations

import time
from contextlib import nullcontext
from importlib.resources import as_file, files
from pathlib import Path

import typer

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.demo import report
from nexus_tasks.cli.demo.stage import set_up, stage
from nexus_tasks.cli.demo.story import choose_story
from nexus_tasks.cli.failing import WAITED_IN_VAIN
from nexus_tasks.cli.output import warn
from nexus_tasks.cli.store_and_wait import store_and_wait
from nexus_tasks.integrations.importers import Conversation, read

_SHIPPED = files("nexus_tasks") / "examples" / "team-chat.jsonl"
_QUESTION = "When do we deploy?"  # the answer changes in the course of the shipped conversation
_TIMEOUT = 900.0  # seconds
_STOPPED = "The demo stops its servers and its worker. Run it again: it goes on, and stores nothing twice."


def run(data: Path | None, namespace: str) -> None:
    """Start everything, store the conversations, wait, show the memories, stop everything.

    Raises:
        InvalidInput: the file does not contain conversations. Nothing was started.
        EmbeddedError: a server, the worker or beat does not start.
    """
    settings = set_up()
    conversations = _read(data, namespace)
    report.print_opening(settings.home, data)
    from nexus_tasks.deployment import Deployment, use

    with stage(settings), use(Deployment(settings)):
        nexus = connect()
        began = time.monotonic()
        result = store_and_wait(nexus, conversations, end=True, worker=nullcontext(_STOPPED), timeout=_TIMEOUT)
        seconds = time.monotonic() - began
        if not result.done:
            jobs = words.count(len(result.dead), "job")
            left = words.count(result.underived, "message is", "messages are")
            warn(f"{jobs} gave up, {left} not derived; see {settings.home}/logs.")
            raise typer.Exit(WAITED_IN_VAIN)
        shown = result.receipt.namespaces[0]
        report.print_stored(result.receipt, len(conversations), seconds)
        report.print_story(choose_story(nexus, shown, None if data else _QUESTION))
        report.print_closing(settings.home, shown)


def _read(data: Path | None, namespace: str) -> list[Conversation]:
    if data is not None:
        return list(read(data, namespace=namespace))
    with as_file(_SHIPPED) as path:
        return list(read(path, namespace=namespace))
