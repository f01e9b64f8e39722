"""``nexus export`` and ``nexus import``: move a namespace's memory in a file or in a folder of Markdown."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import Json, Namespace
from nexus_tasks.cli.output import emit, hint, warn
from nexus_tasks.cli.progress import explain_interrupt, working
from nexus_tasks.types import TransferReceipt

STANDARD = Path("-")  # the standard output or input
SHOWN = 20  # the most ids in a warning

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="The file, one JSON document per line; - is the standard output or input.",
        show_default=False,
        allow_dash=True,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE when it exists. Otherwise a terminal is asked.")]
Folder = Annotated[
    Path | None, typer.Option("--markdown", metavar="DIR", help="A folder of Markdown with topics, instead of a file.")
]


def export(
    namespace: Namespace, file: File = None, markdown: Folder = None, force: Force = False, json: Json = False
) -> None:
    """Write all messages and memories of a namespace to a file, which `nexus import` reads without loss.

    FILE is a new file, or with `--force` an existing regular file. Links and devices are refused; `-` is the standard
    output. With `--markdown`, write the namespace's topics and facts to a folder for people: MEMORY.md, a file per
    topic, and facts.md. A file in the folder that no export has written stays. Files of deleted topics
    are deleted, unless somebody has edited them.
    """
    path = _one_of(file, markdown)
    if markdown is not None:
        nexus = connect()
        with working(f"writing {path}"), explain_interrupt(lambda: f"The next export to {path} writes the rest."):
            written = nexus.export_markdown(namespace, path)
        if json:
            emit(written)
        else:
            topics, facts = words.count(written.topics, "topic"), words.count(written.facts, "fact")
            print(f"{topics} and {facts} written to {path}.")
            if written.removed:
                print(f"{words.count(written.removed, 'file')} of deleted topics deleted.")
            if written.kept:
                warn(f"These files were edited and stay, although their topics are deleted: {', '.join(written.kept)}.")
        return
    if path == STANDARD:
        if json:
            raise typer.BadParameter("--json and FILE - would both write to the standard output.")
        receipt = connect().export(namespace, sys.stdout)
        hint(_exported(receipt, "the standard output"))
        return
    overwrite, nexus = force or _asked(path, ask=not json), connect()
    with working(f"writing {path}"), explain_interrupt(lambda: f"{path} is as it was before."):
        receipt = nexus.export(namespace, path, overwrite=overwrite)
    if json:
        emit(receipt)
    else:
        print(_exported(receipt, str(path)))


def _exported(receipt: TransferReceipt, where: str) -> str:
    return f"{words.count(receipt.total, 'row')} written to {where}, {_memories(receipt)}."


def _memories(receipt: TransferReceipt) -> str:
    """The part of a sentence that counts the memories among the rows."""
    return f"{receipt.rows.get('memories', 0):,} of them memories"


def _asked(path: Path, *, ask: bool) -> bool:
    """Ask on a terminal whether an existing file is replaced. A refusal aborts the command."""
    if not ask or not sys.stdin.isatty() or path.is_symlink() or not path.is_file():
        return False
    return typer.confirm(f"{path} exists. Replace it?", abort=True, err=True)


def import_(namespace: Namespace, file: File = None, markdown: Folder = None, json: Json = False) -> None:
    """Read an export into a new namespace. Afterwards a job makes the vectors.

    With `--markdown`, read the topics in a folder into a new or an existing namespace. A topic with the same file name
    is replaced. In a folder that was exported from this namespace, only edits are read, also edits of facts.md.
    """
    path = _one_of(file, markdown)
    if markdown is not None:
        nexus = connect()
        with working(f"reading {path}"), explain_interrupt(lambda: f"The next import of {path} reads the rest."):
            read = nexus.import_markdown(namespace, path)
        if json:
            emit(read)
        else:
            print(
                f"{words.count(read.topics, 'topic')} read into {namespace}, {read.changed:,} of them new or changed."
            )
            if read.revised:
                print(f"{words.count(read.revised, 'fact')} revised.")
            if read.ended:
                lines = ", ".join(f"m{number}" for number in read.ended[:SHOWN])
                warn(f"Edited lines of facts that hold no longer were not read: {lines}.")
                hint("`nexus memories show ID` names the fact that holds now. Edit its line after the next export.")
        return
    nexus = connect()
    if path == STANDARD and isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # an export is UTF-8 in every locale
    # Ctrl-C may come during the commit, or after it, while the statistics are renewed.
    which = f"Either all of {path} is stored or nothing: see `nexus sessions list --namespace {namespace}`."
    with working(f"reading {path}"), explain_interrupt(lambda: which):
        receipt = nexus.import_(namespace, sys.stdin if path == STANDARD else path)
    if json:
        emit(receipt)
    else:
        print(f"{words.count(receipt.total, 'row')} read into {namespace}, {_memories(receipt)}.")


def _one_of(file: Path | None, folder: Path | None) -> Path:
    path = file or folder
    if path is None or (file and folder):
        raise typer.BadParameter("give either FILE or --markdown DIR.")
    return path
