"""Two cells for a test: two deployments, a file of cells that names both, and a client that chooses between them."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nexus_tasks import Cells, Nexus
from nexus_tasks.services.cells.moving import Step, move
from nexus_tasks.storage.models.base import written_columns
from nexus_tasks.storage.transfer.copying import TABLES
from tests.sandbox import Sandbox

# What :meth:`Cells.prepare` changes in a database, beside rows.
AS_MADE = """
DO $$ DECLARE one regclass; BEGIN
    FOR one IN SELECT oid FROM pg_class WHERE relkind = 'S' LOOP
        EXECUTE format('ALTER SEQUENCE %s INCREMENT BY 1', one);
    END LOOP;
END $$
"""


@dataclass
class TwoCells:
    """The cells ``one`` (the directory) and ``two`` (where new namespaces are made)."""

    one: Sandbox
    two: Sandbox
    file: Path
    cells: Cells
    nexus: Nexus

    def of(self, name: str) -> Sandbox:
        """The sandbox of a cell."""
        return {"one": self.one, "two": self.two}[name]


@contextmanager
def two_cells(deploy: Callable[..., Sandbox], folder: Path) -> Iterator[TwoCells]:
    """Make two cells, and prepare them."""
    one, two = deploy(), deploy()
    file = folder / "cells.json"
    file.write_text(json.dumps(document(one, two)))
    cells = Cells(str(file))
    try:
        cells.prepare()
        yield TwoCells(one, two, file, cells, Nexus(cells=cells))
    finally:
        cells.close()
        for here in (one, two):
            here.sql(AS_MADE)  # the next test that gets the database


def document(one: Sandbox, two: Sandbox) -> dict[str, object]:
    """The file of cells."""

    def settings(here: Sandbox) -> dict[str, str]:
        return {
            "database_url": here.database_url,
            "redis_url": here.environment["NEXUS_REDIS_URL"],
            "key_prefix": here.name,
            "home": str(here.folder),
        }

    return {"cells": {"one": settings(one), "two": settings(two)}, "directory": "one", "new": "two"}


def rows(here: Sandbox, namespace: str) -> dict[str, list[str]]:
    """Every row of a namespace, as text, without the namespace's own id: table → rows."""
    found = {}
    for table in TABLES:
        names = ", ".join(written_columns(table))
        found[table.name] = [
            str(row)
            for (row,) in here.sql(
                f"SELECT r::text FROM (SELECT {names} FROM {table.name} WHERE namespace_id ="
                " (SELECT id FROM namespaces WHERE name = :n)) AS r ORDER BY 1",
                n=namespace,
            )
        ]
    return {name: some for name, some in found.items() if some}


def residence(here: Sandbox, namespace: str) -> str | None:
    """Where the cell believes the namespace to live."""
    found = here.sql("SELECT residence FROM namespaces WHERE name = :n", n=namespace)
    return str(found[0][0]) if found else None


def move_in_child(cells: Cells, namespace: str, target: str, *, die_after: Step | None = None) -> int:
    """Start a process that moves a namespace, and that kills itself after a step. Returns its id."""
    pid = os.fork()
    if pid:
        return pid
    try:  # pragma: no cover - a child

        def note(step: Step) -> None:
            if step == die_after:
                os.kill(os.getpid(), signal.SIGKILL)

        move(cells, namespace, target, note=note)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
