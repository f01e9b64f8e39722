"""``nexus ingest`` and ``nexus remember``: store conversations, or a single text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nexus_tasks.cli import stack, words, workers
from nexus_tasks.cli.connect import connect, start_logging
from nexus_tasks.cli.failing import WAITED_IN_VAIN
from nexus_tasks.cli.options import DEFAULT_TIMEOUT, EraseExpired, ExpiresAt, Json, Namespace, Timeout, Wait
from nexus_tasks.cli.output import emit, hint, warn
from nexus_tasks.cli.progress import explain_interrupt
from nexus_tasks.cli.store_and_wait import WaitResult, store_and_wait
from nexus_tasks.types import Receipt


def ingest(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSONL, LoCoMo, a transcript of Claude Code, or an export of mem0 or Honcho; - is the standard input.",
            allow_dash=True,
        ),
    ],
    namespace: Namespace,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            metavar="KEY",
            help="The session of lines that name none, or of all messages of a transcript or export; default: their"
            " own, or the file's name.",
        ),
    ] = None,
    format: Annotated[
        Literal["auto", "jsonl", "locomo", "claude-code", "mem0", "honcho"],
        typer.Option("--format", help="The file's format; auto detects it."),
    ] = "auto",
    wait: Wait = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Do not end the sessions: more messages will follow.")
    ] = False,
    observe: Annotated[
        bool | None,
        typer.Option("--observe/--no-observe", help="Replace old messages by notes; default: the namespace's setting."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="A message with a known id and another text replaces the stored message."),
    ] = False,
    json: Json = False,
) -> None:
    """Store the conversations in a file and queue the jobs for them. A second call stores no message twice.

    The whole file is checked first. If one line is wrong, nothing is stored. The sessions are then ended, so that they
    are derived and digested at once, unless you give --keep-open. With --wait the exit code is 3 when a job gave up or
    did not end within --timeout.
    """
    start_logging()
    from nexus_tasks.integrations.importers import read

    with explain_interrupt(lambda: "Nothing was stored."):
        conversations = list(read(file, format, namespace=namespace, session=session))
    worker = workers.worker_for_wait() if wait else None
    result = store_and_wait(
        connect(),
        conversations,
        end=not keep_open,
        observe=observe,
        replace=replace,
        worker=worker,
        timeout=timeout,
    )
    receipt = result.receipt
    if json:
        emit(receipt)
    else:
        print(_summary(receipt))
    if receipt.enqueued and not wait:
        workers.warn_if_none()
    if not result.done:
        _explain(result)
        raise typer.Exit(WAITED_IN_VAIN)


def _summary(receipt: Receipt) -> str:
    where = f"namespace {receipt.namespaces[0]}" if len(receipt.namespaces) == 1 else "namespaces"
    if len(receipt.namespaces) > 1:
        where = f"namespaces {', '.join(receipt.namespaces)}"
    sentences = [f"Stored {words.count(receipt.stored, 'message')} in {where}."]
    if receipt.buffered:
        kept = words.count(receipt.buffered, "message")
        sentences.append(f"Postgres does not answer: {kept} buffered. The next command or worker stores them.")
    if receipt.duplicates:
        sentences.append(f"{words.count(receipt.duplicates, 'was', 'were')} stored already.")
    if receipt.derived is not None:
        sentences.append(f"{receipt.derived:,} derived.")
    elif receipt.enqueued:
        sentences.append(f"{words.count(receipt.enqueued, 'job')} queued.")
    return " ".join(sentences)


def _explain(result: WaitResult) -> None:
    where = " ".join(f"--namespace {name}" for name in result.receipt.namespaces[:1])
    if result.dead:
        gave_up = words.count(len(result.dead), "job")
        warn(f"{gave_up} gave up. Read why with `nexus jobs list --status dead {where}` and `nexus jobs show JOB`.")
    if result.late:
        left = words.count(result.underived, "message is", "messages are")
        warn(f"Time is up: {left} not derived yet. The jobs go on; see `nexus status {where}`.")


def remember(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to remember.")],
    namespace: Namespace,
    author: Annotated[str, typer.Option("--author", metavar="A", help="The author of the text.")] = "user",
    session: Annotated[str, typer.Option("--session", metavar="KEY", help="The session of the text.")] = "notes",
    expires_at: ExpiresAt = None,
    erase_expired: EraseExpired = False,
    json: Json = False,
) -> None:
    """Store one text to remember. A search finds the text at once. Facts are derived from it within seconds."""
    receipt = connect().remember(
        namespace, text, author=author, session_key=session, expires_at=expires_at, erase_expired=erase_expired
    )
    if json:
        emit(receipt)
        return
    if receipt.buffered:
        print("Postgres does not answer: the text is in the session buffer. The next command or worker stores it.")
        return
    print("Remembered." if receipt.stored else "That was remembered already.")
    from nexus_tasks.settings import load_settings

    settings = load_settings()
    # Only the lock of `nexus up` is checked, because a ping of the workers would take longer than storing the text.
    if settings.embedded and stack.supervisor_pid(settings.home) is None:
        hint("Facts are derived while a worker runs: `nexus up`.")
