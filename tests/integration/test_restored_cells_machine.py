"""The random machine of cells, with one more step: restore the database of one cell, and do what ``prepare`` then says.

A restored cell is as at its backup: later messages are lost, and messages that were erased later are there again. A
namespace that lives in another cell must stay whole. At the end every namespace must be usable, movable, and in one
cell.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Cells, Message
from nexus_tasks.errors import NexusError, NotFound
from nexus_tasks.services.cells import moving, restored
from nexus_tasks.services.cells.moving import move
from nexus_tasks.storage.models import Base
from tests.integration.test_cells_machine import NAMESPACES, Machine, Said, answers, run
from tests.sandbox import Sandbox, eventually

__all__ = ["run"]  # the fixture

TABLES = [table.name for table in Base.metadata.sorted_tables if table.name not in ("placements", "cells")]
_COMMAND = re.compile(r"`nexus cells (move|erase) (\S+) (\S+)`")
_STRAY = re.compile(r"The cell (\S+) has a namespace (\S+), which lives in another cell")
_MOST_TURNS = 5  # of preparing the cells and doing what the warnings say


@dataclass
class Backup:
    """What the model must know of the backup of a cell: its sequences, and the namespaces and messages of the time."""

    sequences: Mapping[str, tuple[int, bool]]
    placed: Mapping[str, tuple[Any, ...]]  # namespace → its row in the table, and how often it has been moved
    stored: list[Said]
    erased: list[Said]


class RestoringMachine(Machine):
    """The steps of :class:`Machine`, backups of a cell's database and restores of them."""

    def __init__(self, boxes: Mapping[str, Sandbox], sockets: Mapping[str, Path], file: Path, seed: int) -> None:
        super().__init__(boxes, sockets, file, seed)
        self.backups, self.moved = dict[str, Backup](), Counter[str]()

    def close(self) -> None:
        super().close()
        for name in self.backups:
            self.boxes[name].sql("DROP SCHEMA saved CASCADE")

    def steps(self) -> Mapping[Callable[[], None], int]:
        return {**super().steps(), self.back_up_cell: 2, self.restore_cell: 2}

    def move_to(self, cells: Cells, namespace: str, target: str, **options: Any) -> None:
        self.moved[namespace] += 1
        super().move_to(cells, namespace, target, **options)

    def placed(self, namespace: str) -> tuple[Any, ...]:
        rows = self.boxes["desk"].sql(
            "SELECT cell, moving_to, moved_from FROM placements WHERE namespace = :name", name=namespace
        )
        return (*rows, self.moved[namespace])

    def back_up_cell(self) -> None:
        name = self.luck.choice(["one", "two"])
        here = self.boxes[name]
        self.note("back up cell", name)
        here.sql("DROP SCHEMA IF EXISTS saved CASCADE; CREATE SCHEMA saved")
        for table in TABLES:
            here.sql(f"CREATE TABLE saved.{table} AS TABLE public.{table}")
        found = here.sql("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S'")
        self.backups[name] = Backup(
            sequences={one: here.sql(f"SELECT last_value, is_called FROM {one}")[0] for (one,) in found},
            placed={namespace: self.placed(namespace) for namespace in NAMESPACES},
            stored=[one for one in self.said if one.stored],
            erased=[one for one in self.said if one.erased],
        )

    def restore_cell(self) -> None:
        """Restore a cell's database, start every process anew, and do what ``prepare`` says."""
        if not self.backups:
            return
        name = self.luck.choice(sorted(self.backups))
        self.note("restore cell", name)
        self.outages_end()
        eventually(partial(answers, self.made["first"].deployments[name]))
        self.forget_what_is_lost(name)
        self.write_back(name)
        self.boxes[name].flush()
        self.start_again()
        self.obey(name)

    def forget_what_is_lost(self, name: str) -> None:
        """Nothing is promised of what a namespace in a restored cell had not at the time of the backup."""
        backup = self.backups[name]
        for namespace in NAMESPACES:
            now = self.placed(namespace)
            if not any(name in row for row in now[:-1]):
                continue  # it lives in another cell, and nothing of it may change
            steady = now == backup.placed[namespace] and now[0][1:] == (None, None)
            self.log.append(f"  {namespace} is in it ({now}), steady: {steady}")
            for one in self.said:
                if one.namespace != namespace:
                    continue
                if not (steady and one in backup.stored):
                    one.acknowledged = one.stored = False
                    one.turn = None
                if not (steady and one in backup.erased):
                    one.erased = False

    def write_back(self, name: str) -> None:
        with self.boxes[name].deployment.database.transaction() as tx:
            tx.execute(text("SET LOCAL session_replication_role = replica"))
            for table in reversed(TABLES):
                tx.execute(text(f"DELETE FROM public.{table}"))
            for table in TABLES:
                listed = tx.scalar(
                    text(
                        "SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns"
                        " WHERE table_schema = 'public' AND table_name = :name AND is_generated = 'NEVER'"
                    ),
                    {"name": table},
                )
                rows = f"({listed}) OVERRIDING SYSTEM VALUE SELECT {listed} FROM saved.{table}"
                tx.execute(text(f"INSERT INTO public.{table} {rows}"))
            for sequence, (last, called) in self.backups[name].sequences.items():
                tx.execute(text(f"SELECT setval('{sequence}', {last}, {called})"))

    def start_again(self) -> None:
        super().close()
        self.connect()

    def obey(self, name: str) -> None:
        """Run the commands that ``prepare`` names, until it names none. A refusal names the one that comes first."""
        for _ in range(_MOST_TURNS):
            with warnings() as texts:
                eventually(lambda: self.call("prepare", self.made["first"].prepare))
            self.log += [f"  warns: {one[:250]}" for one in texts]
            commands = [found for one in texts for found in _COMMAND.findall(one)]
            strays = [found for one in texts if (found := _STRAY.match(one))]
            commands += [("erase", one[2], one[1]) for one in strays if one[1] == name]
            if not commands:
                return
            for verb, namespace, cell in commands:
                self.obey_one(verb, namespace, name if cell == "CELL" else cell)
        raise AssertionError(f"prepare still warns: {texts}")

    def obey_one(self, verb: str, namespace: str, cell: str) -> None:
        self.note("obey", verb, namespace, cell)
        command = self.move_to if verb == "move" else moving.erase_copy
        try:
            command(self.made["first"], namespace, cell)
        except NexusError as error:
            self.log.append(f"  refused: {error}")
            for verb, namespace, cell in _COMMAND.findall(error.remedy or ""):  # and `prepare` names the rest again
                self.note("obey first", verb, namespace, cell)
                command = self.move_to if verb == "move" else moving.erase_copy
                self.call(f"obey {verb}", partial(command, self.made["first"], namespace, cell))

    def end_move(self, namespace: str, target: str) -> None:
        """A namespace that was made after the backup is lost whole with its cell."""
        try:
            super().end_move(namespace, target)
        except NotFound:
            assert not restored.having(self.made["first"], namespace)
            self.note("lost whole", namespace)

    def settle(self) -> None:
        super().settle()
        first = self.made["first"]
        for namespace in NAMESPACES:  # none is closed for ever
            for client in ("first", "second"):
                probe = Message(content=f"Said by {client} to {namespace}.", author="ann", id=client)
                assert self.nexus[client].ingest(namespace, "probe", [probe]).stored == 1
            other = {"one": "two", "two": "one"}[first.name_of(namespace)]
            assert move(first, namespace, other).cell == other
            assert len(self.nexus["second"].session(namespace, "probe").said) == 2
        for here in self.boxes.values():
            assert not here.sql("SELECT name FROM namespaces WHERE residence IN ('draining', 'leaving', 'arriving')")


@contextmanager
def warnings() -> Iterator[list[str]]:
    """The warnings that this package logs meanwhile."""
    texts, logger = list[str](), logging.getLogger("nexus_tasks")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


def test_a_restored_cell_harms_no_namespace_of_another(run: Callable[..., None]) -> None:
    for seed in range(2):
        run(seed, 40, RestoringMachine)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_restored_cell_harms_no_namespace_of_another_for_long(run: Callable[..., None]) -> None:
    for seed in range(310, 330):
        run(seed, 50, RestoringMachine)
