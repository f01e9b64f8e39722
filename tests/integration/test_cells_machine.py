"""Write, erase, move, cut off and restore in any order, among three cells: a model says what each cell must have then.

The model keeps which messages were acknowledged and which were erased. Between the steps no read returns an erased
message or leaves out a stored one. At the end all outages end, each move is finished and the buffers are stored: then
each client reads what the model has, and no cell has a text that was erased.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import make_url, text

from nexus_tasks import Cells, Message, Nexus
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NexusError, NotFound
from nexus_tasks.services.cells import buffers, moving, restored
from nexus_tasks.services.cells.moving import STEPS, Step, move
from tests.cells import AS_MADE
from tests.machine import RandomMachine
from tests.sandbox import Sandbox, eventually

CELLS = ("desk", "one", "two")  # desk: the directory, where no namespace lives; two: where new namespaces are made
NAMESPACES = ("acme", "quay")
SESSIONS = ("chat", "notes")
CLIENTS = ("first", "second", "of one", "of two")  # two processes of all cells, and two with NEXUS_CELL

T = TypeVar("T")


class Killed(Exception):
    """A move ends here, as when its process dies."""


@dataclass
class Said:
    """A message: where it was sent, and what became of it."""

    namespace: str
    session: str
    id: str
    acknowledged: bool = False
    stored: bool = False  # a receipt said so
    erased: bool = False
    turn: int | None = None  # in which it was acknowledged, when a client of all cells did so first
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = f"The word is {self.id}zz."


class Machine(RandomMachine):
    """Random steps, and the model of what they must have done.

    Args:
        boxes: the deployment of each cell.
        sockets: cell → the link to the folder of its Postgres' socket.
        file: the file of cells.
        seed: of the random steps.
    """

    def __init__(self, boxes: Mapping[str, Sandbox], sockets: Mapping[str, Path], file: Path, seed: int) -> None:
        super().__init__(seed)
        self.boxes, self.sockets, self.file = boxes, sockets, file
        self.said, self.saved = list[Said](), list[tuple[Any, ...]]()
        for name, here in boxes.items():
            self.back(name)
            here.sql("TRUNCATE namespaces, memories, perspectives, sessions, placements CASCADE")
            here.flush()
        self.connect()
        self.made["first"].prepare()
        for deployment in self.made["first"].deployments.values():
            shutil.rmtree(deployment.buffer.folder, ignore_errors=True)

    def connect(self) -> None:
        self.made = {name: Cells(str(self.file)) for name in ("first", "second", "third")}
        self.nexus = {name: Nexus(cells=self.made[name]) for name in ("first", "second")}
        self.nexus |= {f"of {name}": Nexus(self.made["third"].deployments[name]) for name in ("one", "two")}

    def close(self) -> None:
        for cells in self.made.values():
            cells.close()

    def steps(self) -> Mapping[Callable[[], None], int]:
        return {
            self.ingest: 10,
            self.ingest_again: 2,
            self.read: 5,
            self.forget: 2,
            self.move: 6,
            self.flush: 2,
            self.cell_goes_away: 2,
            self.outages_end: 3,
            self.prepare: 1,
            self.erase_copy: 1,
            self.back_up: 1,
            self.restore: 1,
        }

    def call(self, what: str, call: Callable[[], T]) -> T | None:
        """The answer of a call; ``None`` when it was refused."""
        try:
            answer = call()
        except NexusError as error:
            self.happened[f"{what}: {type(error).__name__}"] += 1
            self.log.append(f"  refused: {type(error).__name__}: {error.message[:150]}")
            return None
        self.happened[f"{what}: done"] += 1
        return answer

    # --- outages ------------------------------------------------------------------------------------------------------
    def cell_goes_away(self) -> None:
        name = self.luck.choice(CELLS)
        self.note("away", name)
        self.sockets[name].unlink(missing_ok=True)
        self.boxes[name].sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )

    def back(self, name: str) -> None:
        if not self.sockets[name].exists():
            self.sockets[name].symlink_to(socket_of(self.boxes[name]))

    def outages_end(self) -> None:
        self.note("back")
        for name in CELLS:
            self.back(name)

    # --- calls --------------------------------------------------------------------------------------------------------
    def somewhere(self) -> tuple[str, str, str]:
        return self.luck.choice(CLIENTS), self.luck.choice(NAMESPACES), self.luck.choice(SESSIONS)

    def ingest(self) -> None:
        client, namespace, session = self.somewhere()
        self.said.append(Said(namespace, session, f"m{len(self.said)}"))
        self.tell(client, self.said[-1])

    def ingest_again(self) -> None:
        if kept := [one for one in self.said if not one.erased]:
            self.tell(self.luck.choice(CLIENTS), self.luck.choice(kept))

    def tell(self, client: str, one: Said) -> None:
        self.note("ingest", client, one.id, one.namespace, one.session)
        message = Message(content=one.text, author="ann", id=one.id)
        answer = self.call("ingest", lambda: self.nexus[client].ingest(one.namespace, one.session, [message]))
        if answer is not None:
            self.log.append(f"  stored {answer.stored}, duplicates {answer.duplicates}, buffered {answer.buffered}")
            if not one.acknowledged and client in ("first", "second"):
                one.turn = len(self.log)
            one.acknowledged = True
            one.stored = one.stored or not answer.buffered

    def forget(self) -> None:
        """A process with ``NEXUS_CELL`` does not look into the buffers of other cells, so none erases here."""
        _, namespace, session = self.somewhere()
        client = self.luck.choice(["first", "second"])
        whole = self.luck.random() < 0.3
        self.note("forget", client, namespace, "" if whole else session)
        chosen: dict[str, Any] = {"everything": True} if whole else {"session_key": session}
        if self.call("forget", lambda: self.nexus[client].forget(namespace, **chosen)) is None:
            return
        for one in self.said:
            if one.namespace == namespace and (whole or session == one.session):
                one.erased = True

    def read(self) -> None:
        client, namespace, session = self.somewhere()
        self.note("read", client, namespace, session)
        told = self.call("read", lambda: self.nexus[client].session(namespace, session))
        if told is not None:
            self.compare([one.content for one in told.said], self.of(namespace, session), "stored")

    def of(self, namespace: str, session: str) -> list[Said]:
        return [one for one in self.said if (one.namespace, one.session) == (namespace, session)]

    def compare(self, texts: Sequence[str], said: Sequence[Said], sure: Literal["stored", "acknowledged"]) -> None:
        assert len(texts) == len(set(texts)), f"doubled: {texts}"
        erased = {one.text for one in said if one.erased} & set(texts)
        assert not erased, f"erased: {erased}"
        lost = {one.text for one in said if getattr(one, sure) and not one.erased} - set(texts)
        assert not lost, f"lost: {lost}"

    # --- what an operator does ----------------------------------------------------------------------------------------
    def move(self) -> None:
        client, namespace, _ = self.somewhere()
        cells = self.made["second" if client == "second" else "first"]
        target, last = self.luck.choice(["one", "two"]), self.luck.choice([*STEPS, *[None] * 5])
        self.note("move", client, namespace, target, last)

        def note(step: Step) -> None:
            if step == last:
                raise Killed

        with suppress(Killed):
            self.call("move", lambda: self.move_to(cells, namespace, target, note=note))

    def move_to(self, cells: Cells, namespace: str, target: str, **options: Any) -> None:
        move(cells, namespace, target, **options)

    def erase_copy(self) -> None:
        _, namespace, _ = self.somewhere()
        cell = self.luck.choice(CELLS)
        self.note("erase copy", namespace, cell)
        self.call("erase copy", lambda: moving.erase_copy(self.made["first"], namespace, cell))

    def flush(self) -> None:
        self.note("flush")
        self.call("flush", lambda: buffers.store_all(self.made["first"], wait=True))

    def prepare(self) -> None:
        self.note("prepare")
        self.call("prepare", self.made["second"].prepare)

    def back_up(self) -> None:
        """Back the directory's database up."""
        self.note("back up")
        self.saved = self.boxes["desk"].sql("SELECT * FROM placements")

    def restore(self) -> None:
        """Restore the directory's database, as an operator does: every cell is there, and ``prepare`` comes first."""
        self.note("restore")
        self.outages_end()
        desk = self.boxes["desk"]
        desk.sql("TRUNCATE placements")
        for row in self.saved:
            desk.sql("INSERT INTO placements VALUES (:a, :b, :c, :d, :e, :f)", **dict(zip("abcdef", row, strict=True)))
        eventually(lambda: self.call("prepare", self.made["second"].prepare))

    # --- the end ------------------------------------------------------------------------------------------------------
    def end_move(self, namespace: str, target: str) -> None:
        move(self.made["first"], namespace, target)

    def settle(self) -> None:
        """Let all outages end, finish what was begun, and compare everything with the model."""
        self.outages_end()
        first = self.made["first"]
        for cells in self.made.values():
            for deployment in cells.deployments.values():
                eventually(partial(self.call, "answers", partial(deployment.claims.redis.ping)))
                eventually(partial(answers, deployment))
        for namespace, _, target in first.moves():
            self.note("settle: move", namespace, target)
            self.end_move(namespace, target)
        for cell in ("one", "two"):  # as the warnings of `prepare` say after a restore
            for namespace in restored.closed(first, cell):
                self.note("settle: open", namespace, cell)
                self.end_move(namespace, cell)
            for namespace in restored.copies(first, cell):
                self.note("settle: erase copy", namespace, cell)
                moving.erase_copy(first, namespace, cell)
        self.note("settle: flush")
        report = buffers.store_all(first, wait=True)
        assert not report.waiting, report
        for deployment in first.deployments.values():
            assert not deployment.buffer.pending()
            assert not deployment.buffer.quarantined()
        for client in ("first", "second"):
            for namespace in NAMESPACES:
                for session in SESSIONS:
                    self.note("settle: read", client, namespace, session)
                    found = list[str]()
                    with suppress(NotFound):
                        found = [one.content for one in self.nexus[client].session(namespace, session).said]
                    said = self.of(namespace, session)
                    self.compare(found, said, "acknowledged")
                    turns = {one.text: one.turn for one in said if one.turn is not None}
                    order = [turns[text] for text in found if text in turns]
                    assert order == sorted(order), f"in another order: {found}"
        for name, here in self.boxes.items():
            contents = {text for (text,) in here.sql("SELECT content FROM memories")}
            left = {one.text for one in self.said if one.erased} & contents
            assert not left, f"erased, and in {name}: {left}"


def answers(deployment: Deployment) -> bool:
    """Whether a deployment's Postgres answers."""
    try:
        with deployment.database.transaction() as tx:
            return bool(tx.scalar(text("SELECT true")))
    except NexusError:
        return False


def socket_of(here: Sandbox) -> Path:
    """The folder of the socket of a sandbox's Postgres."""
    return Path(parse_qs(urlsplit(here.database_url).query)["host"][0])


@pytest.fixture
def run(
    deploy: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """A function that makes random steps of a seed, by default those of :class:`Machine`."""
    monkeypatch.setattr(moving, "NAMESPACE_REMEMBERED_SECONDS", 0.0)  # no worker remembers a namespace here
    boxes = {name: deploy() for name in CELLS}
    sockets = {name: tmp_path / name for name in CELLS}
    file, cells = tmp_path / "cells.json", dict[str, Any]()
    for name, here in boxes.items():
        url = make_url(here.database_url).set(query={"host": str(sockets[name])})
        cells[name] = {
            "database_url": url.render_as_string(hide_password=False),
            "redis_url": here.environment["NEXUS_REDIS_URL"],
            "key_prefix": here.name,
            "home": str(here.folder),
        }
    file.write_text(json.dumps({"cells": cells, "directory": "desk", "new": "two"}))
    happened = Counter[str]()

    def steps(seed: int, many: int, kind: type[Machine] = Machine) -> None:
        machine = kind(boxes, sockets, file, seed)
        try:
            machine.run(many)
        finally:
            happened.update(machine.happened)

    yield steps
    print(dict(sorted(happened.items())))
    for here in boxes.values():
        here.sql(AS_MADE)


def test_nothing_is_lost_and_nothing_comes_back_among_cells(run: Callable[..., None]) -> None:
    for seed in range(3):
        run(seed, 30)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_nothing_is_lost_and_nothing_comes_back_among_cells_for_long(run: Callable[..., None]) -> None:
    for seed in range(200, 240):
        run(seed, 50)
