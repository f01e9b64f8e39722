"""What is lost, done twice and paid twice under faults: nexus-tasks beside stock Celery, on the same stand-in model.

    python -m benchmarks.peers [--sessions 80] [--only calm|kills|flush|silence|twice]

A session of 5 messages is stored every 0.05 s, and its facts are asked for: one call of the model, which takes 1 s.
Two workers have four threads each, so that jobs wait when the fault comes. Both systems use the same Postgres and
Redis, one after the other. The faults:

- kills: SIGKILL for a random worker, at a quarter, half and three quarters of the sessions; another takes its place.
- flush: FLUSHALL, at half of the sessions.
- silence: at half of the sessions the open connections from the workers to Redis go silent; new ones work.
- twice: each session is sent twice, as by a client that did not see the first answer.

Stock Celery has late acknowledgements, no prefetching, retries, and a visibility timeout of 5 s: its best case. Its
task has no idempotency key of its own, because stock Celery has none. A session is lost when it has no facts after 40 s
without progress. The prompts differ, so tokens compare only within a system. Loopback only; at most 10 minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.machine import calibration, table
from benchmarks.peers.installed import LEFT_OUT, CannotInstall, celery
from benchmarks.peers.systems import SETTINGS, System, ours, plain
from nexus_tasks import embedded
from tests.databases import make_template
from tests.sandbox import Sandbox, sandbox
from tests.silence import Proxy, proxy
from tests.standin import StandIn

FAULTS = ("calm", "kills", "flush", "silence", "twice")
EVERY, GIVE_UP, AT_MOST = 0.05, 40.0, 420.0  # seconds
HEADINGS = ["fault", "system", "sessions", "lost", "facts twice", "model calls", "input tokens", "p50", "max"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """How one system came through one fault."""

    sessions: int
    lost: int
    twice: int
    calls: int
    tokens: int
    waits: list[float]  # seconds from the request to the facts

    def cells(self) -> list[object]:
        """The row of the table."""
        times = [f"{one:.1f} s" for one in (statistics.median(self.waits), max(self.waits))] if self.waits else ["", ""]
        return [self.sessions, self.lost, self.twice, self.calls, f"{self.tokens:,}", *times]


def suffer(system: System, fault: str, sessions: int, standin: StandIn, here: Sandbox, wires: Proxy) -> Result:
    """Ask for sessions at a steady pace, let the fault happen, and wait for what comes."""
    asked: dict[str, float] = {}
    seen: dict[str, float] = {}

    def look() -> None:
        now = time.monotonic()
        for session in system.written():
            seen.setdefault(session, now)

    with system.fleet:
        system.ask("first")  # the workers are up when it is done
        _until(lambda: bool(system.written()), 90)
        calls, tokens = standin.counters.calls, standin.counters.input_tokens
        start = time.monotonic()
        for number in range(sessions):
            session = f"s{number}"
            asked[session] = time.monotonic()
            for _ in range(2 if fault == "twice" else 1):
                system.ask(session)
            if fault == "kills" and number in (sessions // 4, sessions // 2, 3 * sessions // 4):
                system.fleet.strike()
            if number == sessions // 2:
                if fault == "flush":
                    here.redis().flushall()
                if fault == "silence":
                    wires.silence()
            while time.monotonic() < start + (number + 1) * EVERY:
                look()
                time.sleep(0.01)
        progress, before = time.monotonic(), -1
        while len(seen) < sessions + 1 and time.monotonic() < progress + GIVE_UP:
            if len(seen) != before:
                progress, before = time.monotonic(), len(seen)
            system.fleet.replace_dead()
            time.sleep(0.1)
            look()
        time.sleep(8)  # what comes again, comes within the visibility timeout
        written = system.written()
    return Result(
        sessions=sessions,
        lost=sum(session not in written for session in asked),
        twice=sum(written[session] > 1 for session in asked),
        calls=standin.counters.calls - calls,
        tokens=standin.counters.input_tokens - tokens,
        waits=[at - asked[session] for session, at in seen.items() if session in asked],
    )


def _until(look: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "the workers do nothing"
        time.sleep(0.1)


def measure(sessions: int, faults: tuple[str, ...]) -> list[list[object]]:
    """The rows of the table. A system that cannot be installed is named on stderr."""
    rows: list[list[object]] = []
    deadline = time.monotonic() + AT_MOST
    with tempfile.TemporaryDirectory(prefix="nexus-peers-") as folder:
        makes: list[Callable[[Sandbox, int, str], System]] = [ours]
        try:
            python = celery(Path(folder))
            makes.append(lambda here, port, model: plain(here, port, model, python))
        except CannotInstall as reason:
            print(f"stock Celery is left out: {reason}", file=sys.stderr)
        servers = embedded.ensure(Path(folder) / "home")
        try:
            make_template(servers)
            print(calibration(servers), file=sys.stderr)
            for fault in faults:
                for make in makes:
                    if time.monotonic() > deadline:
                        print(f"{fault} is left out: the time is over", file=sys.stderr)
                        continue
                    with (
                        StandIn(latency=1.0) as standin,
                        sandbox(servers, **SETTINGS, **standin.environment()) as here,
                        proxy(Path(urlsplit(servers.redis_url).path)) as wires,
                    ):
                        system = make(here, wires.port, standin.url)
                        rows.append(
                            [fault, system.name, *suffer(system, fault, sessions, standin, here, wires).cells()]
                        )
                        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
        finally:
            embedded.stop(Path(folder) / "home")
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=80)
    parser.add_argument("--only", choices=FAULTS)
    given = parser.parse_args()
    print(table(HEADINGS, measure(given.sessions, (given.only,) if given.only else FAULTS)))
    for peer, reason in LEFT_OUT.items():
        print(f"{peer}: left out, {reason}.")


if __name__ == "__main__":
    main()
