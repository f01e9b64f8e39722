"""``nexus ingest`` and ``nexus remember``: storing what was said."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from nexus_tasks.cli import stack, workers
from nexus_tasks.cli.connect import connect, start_logging
from nexus_tasks.cli.failing import WAITED_IN_VAIN
from nexus_tasks.cli.options import DEFAULT_TIMEOUT, Json, Namespace, Timeout, Wait
from nexus_tasks.cli.output import emit, hint, warn
from nexus_tasks.cli.show import words
from nexus_tasks.cli.store_and_wait import Settled, load
from nexus_tasks.types import Receipt


def ingest(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Conversations: JSONL, LoCoMo's JSON, or a transcript.")],
    namespace: Namespace,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="KEY", help="The session of lines that name none; default: the file's name."),
    ] = None,
    format: Annotated[
        Literal["auto", "jsonl", "locomo", "claude-code"],
        typer.Option("--format", help="How to read the file; auto looks."),
    ] = "auto",
    wait: Wait = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    keep_open: Annotated[bool, typer.Option("--keep-open", help="Do not end the sessions: more will be said.")] = False,
    observe: Annotated[
        bool | None,
        typer.Option("--observe/--no-observe", help="Keep notes in place of old messages; default: the namespace's."),
    ] = None,
    json: Json = False,
) -> None:
    """Store the conversations of a file and queue what follows. Safe to repeat: nothing is stored twice.

    The whole file is checked first; when a line is wrong nothing is stored. The sessions are ended, so that they are
    derived and digested at once, unless you say --keep-open. With --wait the exit code is 3 when a job gave up or the
    time is over.
    """
    start_logging()
    from nexus_tasks.integrations.importers import read

    conversations = list(read(file, format, namespace=namespace, session=session))
    worker = workers.for_the_wait() if wait else None
    settled = load(connect(), conversations, end=not keep_open, observe=observe, worker=worker, timeout=timeout)
    receipt = settled.receipt
    if json:
        emit({name: value for name, value in asdict(receipt).items() if value is not None})
    else:
        print(_in_words(receipt))
    if receipt.enqueued and not wait:
        workers.say_when_there_is_none()
    if not settled.well:
        _explain(settled)
        raise typer.Exit(WAITED_IN_VAIN)


def _in_words(receipt: Receipt) -> str:
    where = f"namespace {receipt.namespaces[0]}" if len(receipt.namespaces) == 1 else "namespaces"
    if len(receipt.namespaces) > 1:
        where = f"namespaces {', '.join(receipt.namespaces)}"
    said = [f"Stored {words.count(receipt.stored, 'message')} in {where}."]
    if receipt.buffered:
        kept = words.count(receipt.buffered, "message")
        said.append(f"Postgres is away: {kept} buffered, to be stored by the next command or worker.")
    if receipt.duplicates:
        said.append(f"{receipt.duplicates:,} were stored already.")
    if receipt.derived is not None:
        said.append(f"{receipt.derived:,} derived.")
    elif receipt.enqueued:
        said.append(f"{words.count(receipt.enqueued, 'job')} queued.")
    return " ".join(said)


def _explain(settled: Settled) -> None:
    where = " ".join(f"--namespace {name}" for name in settled.receipt.namespaces[:1])
    if settled.dead:
        gave_up = words.count(len(settled.dead), "job")
        warn(f"{gave_up} gave up. Read why with `nexus jobs list --status dead {where}` and `nexus jobs show JOB`.")
    if settled.late:
        left = words.count(settled.left, "message is", "messages are")
        warn(f"Time is up: {left} not derived yet. The jobs go on; see `nexus status {where}`.")


def remember(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="One thing worth knowing.")],
    namespace: Namespace,
    author: Annotated[str, typer.Option("--author", metavar="A", help="Who says so.")] = "user",
    session: Annotated[str, typer.Option("--session", metavar="KEY", help="The session it belongs to.")] = "notes",
    json: Json = False,
) -> None:
    """Store one thing worth knowing. It can be found at once, and is derived within seconds."""
    receipt = connect().remember(namespace, text, author=author, session_key=session)
    if json:
        emit({name: value for name, value in asdict(receipt).items() if value is not None})
        return
    if receipt.buffered:
        print("Postgres is away: it is in the session buffer, and stored by the next command or worker.")
        return
    print("Remembered." if receipt.stored else "That was remembered already.")
    from nexus_tasks.settings import load_settings

    settings = load_settings()
    # Only a look at a lock: asking the workers would take longer than storing did.
    if settings.embedded and stack.supervisor_pid(settings.home) is None:
        hint("Facts are derived while a worker runs: `nexus up`.")
