"""``nexus export`` and ``nexus import``: move a namespace's memory in a file or in a folder of Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import Json, Namespace
from nexus_tasks.cli.output import emit

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="The file, one JSON document per line.", show_default=False)
]
Folder = Annotated[
    Path | None, typer.Option("--markdown", metavar="DIR", help="A folder of Markdown with topics, instead of a file.")
]


def export(namespace: Namespace, file: File = None, markdown: Folder = None, json: Json = False) -> None:
    """Write all messages and memories of a namespace to a file, which `nexus import` reads without loss.

    With `--markdown`, write the namespace's topics and facts to a folder for people: MEMORY.md, a file per topic, and
    facts.md.
    """
    path = _one_of(file, markdown)
    if markdown is not None:
        written = connect().export_markdown(namespace, path)
        if json:
            emit(written)
        else:
            print(f"{written.topics:,} topics and {written.facts:,} facts written to {path}.")
        return
    receipt = connect().export(namespace, path)
    if json:
        emit(receipt)
    else:
        print(f"{receipt.total:,} rows written to {path}, {receipt.rows.get('memories', 0):,} of them memories.")


def import_(namespace: Namespace, file: File = None, markdown: Folder = None, json: Json = False) -> None:
    """Read an export into a new namespace. Afterwards a job makes the vectors.

    With `--markdown`, read the topics in a folder into a new or an existing namespace. A topic with the same file name
    is replaced.
    """
    path = _one_of(file, markdown)
    if markdown is not None:
        read = connect().import_markdown(namespace, path)
        if json:
            emit(read)
        else:
            print(f"{read.topics:,} topics read into {namespace}, {read.changed:,} of them new or changed.")
        return
    receipt = connect().import_(namespace, path)
    if json:
        emit(receipt)
    else:
        print(f"{receipt.total:,} rows read into {namespace}, {receipt.rows.get('memories', 0):,} of them memories.")


def _one_of(file: Path | None, folder: Path | None) -> Path:
    path = file or folder
    if path is None or (file and folder):
        raise typer.BadParameter("give either FILE or --markdown DIR.")
    return path
