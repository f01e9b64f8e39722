"""Producers killed while they append, storers killed while they store, and power cuts: nothing that returned is lost,
nothing is torn, nothing is stored twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.deployment import default_deployment
from nexus_tasks.services import buffer_flush
from tests.sandbox import Sandbox, eventually

INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
STORE = """
from nexus_tasks.deployment import Deployment
from nexus_tasks.services import buffer_flush
deployment = Deployment()
while True: buffer_flush.store_buffer(deployment, wait=True)
"""


@dataclass
class Writer:
    """A producer that is started again after each kill, until it has reported so many appends."""

    here: Sandbox
    number: int
    policy: str
    wanted: int
    luck: random.Random
    logs: list[Path] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    dies_at: int = 0

    def returned(self) -> list[str]:
        """What its appends that returned have written; a line that the kill has cut in the report did not return."""
        return [line for log in self.logs for line in log.read_text().split("\n")[:-1]]

    def turn(self) -> bool:
        """Kill it when it is time, start it again when it has been; ``False`` once it has reported everything."""
        done = len(self.returned())
        if self.process and done >= self.dies_at:
            self.process.kill()
        if self.process is None or self.process.poll() is not None:
            done = len(self.returned())
            if done >= self.wanted:
                return False
            self.dies_at = done + self.luck.randint(1, max(self.wanted // 3, 2))
            self.logs.append(self.here.folder / f"writer-{self.number}-{len(self.logs)}.log")
            with self.logs[-1].open("wb") as log:
                self.process = subprocess.Popen(
                    [
                        *(sys.executable, str(Path(__file__).with_name("buffer_writer.py"))),
                        *(str(self.here.folder / "buffer"), self.policy),
                        *(f"w{self.number}-{len(self.logs)}", str(self.wanted - done)),
                    ],
                    stdout=log,
                    env=self.here.environment,
                )
        return True


def run(writers: Sequence[Writer], storing: subprocess.Popen[bytes] | None = None) -> None:
    """Let the writers write and die until all have reported what they were to; store meanwhile."""

    def look() -> bool:
        busy = [writer.turn() for writer in writers]
        if storing is None:
            buffer_flush.store_buffer(default_deployment())
        return not any(busy)

    try:
        eventually(look, within=240)
    finally:
        for writer in writers:
            if writer.process:
                writer.process.kill()
                writer.process.wait()


def check(here: Sandbox, writers: Sequence[Writer]) -> None:
    """Every append that returned is stored once; of those that were killed before they returned, each at most once."""
    stored = Counter(content for (content,) in here.sql("SELECT content FROM memories WHERE level = 'raw'"))
    returned = [line for writer in writers for line in writer.returned()]
    assert len(returned) == len(set(returned)) >= sum(writer.wanted for writer in writers)
    assert [line for line in returned if stored[line] != 1] == []
    assert [line for line, times in stored.items() if times > 1] == []
    killed = sum(len(writer.logs) for writer in writers)
    assert len(stored) - len(returned) <= killed  # at most the one append that each kill interrupted
    assert not SessionBuffer(here.folder / "buffer").pending()


def writers(here: Sandbox, count: int, wanted: int, policy: str) -> list[Writer]:
    return [Writer(here, number, policy, wanted, random.Random(number)) for number in range(count)]


@pytest.mark.parametrize("policy", ["always", "interval"])
def test_killed_producers_lose_nothing(here: Sandbox, policy: str) -> None:
    found = writers(here, 3, 100, policy)
    run(found)
    buffer_flush.store_buffer(default_deployment())
    check(here, found)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["always", "interval"])
def test_eight_killed_producers_and_killed_storers_lose_nothing(here: Sandbox, policy: str) -> None:
    found, luck = writers(here, 8, 2_000, policy), random.Random(8)
    storers: list[subprocess.Popen[bytes]] = []

    def storer() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", INTERRUPTIBLE + STORE], env=here.environment)
        storers.append(process)
        return process

    def stored() -> int:
        [(count,)] = here.sql("SELECT count(*) FROM memories WHERE level = 'raw'")
        return int(count)

    current, dies_at = storer(), 500
    try:
        busy = True
        while busy or len(storers) < 3:
            busy = any([writer.turn() for writer in found])  # noqa: C419 - each has its turn
            if stored() >= dies_at:
                current.kill()
                current.wait()
                current, dies_at = storer(), min(stored() + luck.randint(300, 3_000), 8 * 2_000)
    finally:
        for process in (*storers, *(writer.process for writer in found if writer.process)):
            process.kill()
            process.wait()
    buffer_flush.store_buffer(default_deployment(), wait=True)
    check(here, found)


def tear(path: Path, keep: int, how: str, luck: random.Random) -> None:
    """What a power cut leaves of a file whose first ``keep`` bytes had reached the disk."""
    data = path.read_bytes()
    at = luck.randint(keep, len(data))
    if how == "truncated":
        path.write_bytes(data[:at])
    elif how == "zeros":
        path.write_bytes(data[:at] + bytes(len(data) - at))
    else:  # the file's length had reached the disk, a page in its middle had not
        to = luck.randint(at, len(data))
        path.write_bytes(data[:at] + bytes(to - at) + data[to:])


@pytest.mark.parametrize("how", ["truncated", "zeros", "hole"])
@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_loses_only_what_was_not_synced(tmp_path: Path, how: str, seed: int) -> None:
    luck = random.Random(f"{how}{seed}")
    buffer = SessionBuffer(tmp_path, fsync="off")
    synced = luck.randint(0, 30)
    for n in range(synced):
        buffer.append("acme", "chat", f"synced {n} {'x' * luck.randint(0, 300)}")
    sizes = {path: path.stat().st_size for path in tmp_path.rglob("0*")}
    late = luck.randint(1, 9 - synced % 10) if synced % 10 < 9 else 1
    for n in range(late):
        buffer.append("acme", "chat", f"late {n} {'y' * luck.randint(0, 300)}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("0*")}
    for path in before:
        keep = sizes.get(path, sizes.get(path.with_name(path.name[:12] + ".open"), 0))
        tear(path, keep, how, luck)
    between_lines = all(path.read_bytes()[-1:] in (b"", b"\n") for path in before)
    found = SessionBuffer(tmp_path).recover()
    kept = [str(entry.payload).split(" y")[0].split(" x")[0] for one in found.segments for entry in one.entries]
    assert kept[:synced] == [f"synced {n}" for n in range(synced)]
    assert len(kept) == len(set(kept)) <= synced + late
    if len(kept) < synced + late:  # what is missing is reported; only a cut exactly between two lines leaves no trace
        assert found.damages or (how == "truncated" and between_lines)
    again = SessionBuffer(tmp_path)
    number = again.append("acme", "chat", "afterwards")
    assert number > synced
    everything = [entry.entry_seq for one in again.flush_all() for entry in one.entries]
    assert len(everything) == len(set(everything)) == len(kept) + 1


def test_a_writer_that_is_interrupted_leaves_whole_lines(here: Sandbox) -> None:
    """Ctrl-C in the middle of an append."""
    log = here.folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-c",
                    INTERRUPTIBLE + "import runpy, sys; sys.argv = sys.argv[1:];"
                    "runpy.run_path(sys.argv[0], run_name='__main__')",
                ),
                *(
                    str(Path(__file__).with_name("buffer_writer.py")),
                    str(here.folder / "buffer"),
                    "always",
                    "w0-1",
                    "100000",
                ),
            ],
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=here.environment,
        )
    try:
        eventually(lambda: log.stat().st_size > 2_000, within=60)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    found = SessionBuffer(here.folder / "buffer").recover()
    assert found.damages == []
    returned = log.read_text().split("\n")[:-1]
    kept = {entry.payload["content"] for one in found.segments for entry in one.entries}
    assert set(returned) <= kept
    assert len(kept) - len(returned) <= 1
    assert os.path.isdir(here.folder)
