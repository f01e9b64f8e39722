"""``nexus export`` and ``nexus import``: a namespace's memory as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import Json, Namespace
from nexus_tasks.cli.output import emit

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file, one JSON document per line.")]


def export(file: File, namespace: Namespace, json: Json = False) -> None:
    """Write all that a namespace remembers to a file, without loss; `nexus import` reads it."""
    rows = connect().export(namespace, file)
    if json:
        emit({"namespace": namespace, "file": str(file), "rows": rows})
    else:
        print(f"{sum(rows.values()):,} rows written to {file}, {rows.get('memories', 0):,} of them memories.")


def import_(file: File, namespace: Namespace, json: Json = False) -> None:
    """Read an export into a new namespace. Vectors are made by a job afterwards."""
    rows = connect().import_(namespace, file)
    if json:
        emit({"namespace": namespace, "file": str(file), "rows": rows})
    else:
        print(f"{sum(rows.values()):,} rows read into {namespace}, {rows.get('memories', 0):,} of them memories.")
