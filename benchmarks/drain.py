"""How fast a worker process derives, with a stand-in model: messages per second, model calls, tokens, CPU and memory.

    python -m benchmarks.drain [--quick] [--pool threads] [--runs 3]

The stand-in runs in another process; the real SDK calls it over HTTP. Sessions are ended at ingest, so no message waits
for further messages. `publish → derived` is the time from the first publish to the last derivation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import calibration, cpu_seconds, peak_mib, resident_mib, table, wait_until_idle
from nexus_tasks import Message, Nexus, embedded
from nexus_tasks.integrations.importers import read
from tests.databases import make_template
from tests.sandbox import Sandbox, eventually, sandbox

LOCOMO = Path(__file__).parents[2] / "shared" / "data" / "locomo" / "dev.json"
Talk = Sequence[tuple[str, Sequence[Message]]]


def synthetic() -> Talk:
    """40 sessions of 20 messages, each message long enough to hold a fact."""
    return [
        (
            f"s{s}",
            [
                Message(
                    author="ann" if m % 2 else "bo", content=f"In week {s} I read {m + 3} pages of book {s * 20 + m}."
                )
                for m in range(20)
            ],
        )
        for s in range(40)
    ]


def one_conversation() -> Talk:
    """The first LoCoMo conversation: 419 messages in 19 sessions."""
    found = [one for one in read(LOCOMO, "locomo", namespace="n") if one.namespace == "n.conv-26"]
    return [(one.session_key, one.messages) for one in found]


@contextmanager
def standin(latency: float) -> Iterator[str]:
    """The address of a stand-in for the Claude API, in a process of its own."""
    command = [sys.executable, "-m", "tests.standin", "--port", "0", "--latency", str(latency), "--lifetime", "900"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        line = process.stdout.readline()
        yield next(word for word in line.split() if word.startswith("http"))
    finally:
        process.terminate()
        process.wait()


def counters(url: str) -> dict[str, Any]:
    """What the stand-in has served."""
    with urllib.request.urlopen(f"{url}/counters") as answer:
        return dict(json.load(answer))


@dataclass
class Figures:
    """The figures of one drain."""

    derived_seconds: float
    digested_seconds: float
    calls: int
    input_tokens: int
    output_tokens: int
    cpu_seconds: float
    peak_mib: float


def drain(here: Sandbox, url: str, talk: Talk, concurrency: int, pool: str) -> Figures:
    """Ingest ``talk`` while an idle worker runs, and wait until it is derived and digested."""
    worker = here.worker(concurrency=concurrency, pool=pool)
    wait_until_idle(worker.process.pid)  # what a start costs is not the cost of messages
    nexus = Nexus()
    nexus.create_namespace("bench", concurrency=concurrency)
    before, cpu = counters(url), cpu_seconds(worker.process.pid)
    start = time.perf_counter()
    for session, messages in talk:
        nexus.ingest("bench", session, messages, end=True)
    wanted = sum(len(messages) for _, messages in talk)
    done = "SELECT count(*) FROM derivations WHERE state = 'done'"
    eventually(lambda: here.sql(done)[0][0] == wanted, within=300)
    derived = time.perf_counter() - start
    digests = "SELECT count(*) FROM sessions WHERE digest_end_seq = last_seq"
    eventually(lambda: here.sql(digests)[0][0] == len(talk), within=300)
    digested = time.perf_counter() - start
    used, after = cpu_seconds(worker.process.pid) - cpu, counters(url)
    calls = here.sql(
        "SELECT count(*), sum(input_tokens + cache_write_tokens + cache_read_tokens), sum(output_tokens)"
        " FROM model_calls WHERE purpose IN ('derive', 'digest')"
    )[0]
    assert after["calls"] >= before["calls"] + calls[0]
    return Figures(derived, digested, calls[0], int(calls[1]), int(calls[2]), used, peak_mib(worker.process.pid))


def memory(here: Sandbox) -> tuple[float, float]:
    """Resident MiB of a worker at concurrency 32, after 1,000 derivations and their digests, and at the peak."""
    worker = here.worker(concurrency=32)
    nexus = Nexus()
    nexus.create_namespace("bench", concurrency=32)
    for session in range(250):
        said = [Message(author="ann", content=f"I read {m + 3} pages of book {session * 4 + m}.") for m in range(4)]
        nexus.ingest("bench", f"s{session}", said, end=True)
    undigested = "SELECT count(*) FROM sessions WHERE digest_end_seq < last_seq"
    eventually(lambda: here.sql(undigested)[0][0] == 0, within=300)
    return resident_mib(worker.process.pid), peak_mib(worker.process.pid)


def lone_message(here: Sandbox, times: int) -> list[float]:
    """Seconds from stored to derived for single messages, sent one after the other to an idle stack."""
    here.worker(concurrency=8)
    nexus, waits = Nexus(), []
    for n in range(times):
        nexus.ingest("lone", f"s{n}", [Message(author="ann", content=f"I bought {n + 2} books on day {n}.")])
        eventually(lambda n=n: here.sql("SELECT count(*) FROM derivations WHERE state = 'done'")[0][0] == n + 1)
        [(seconds,)] = here.sql(
            "SELECT extract(epoch FROM r.finished_at - m.created_at) FROM job_runs r, memories m"
            " WHERE m.level = 'raw' AND r.kind = 'derive_memory' ORDER BY m.id DESC, r.id DESC LIMIT 1"
        )
        waits.append(float(seconds))
    return waits[1:]  # the first message loads the model's library


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only concurrency 20 and the stand-in at 200 ms")
    parser.add_argument("--pool", default="threads", choices=["threads", "prefork"])
    parser.add_argument("--runs", type=int, default=1, help="how often each is measured")
    options = parser.parse_args()
    latencies = (0.2,) if options.quick else (0.0, 0.2)
    concurrencies = (20,) if options.quick else (1, 20, 50)
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            rows = []
            for name, talk in (("800 messages, 40 sessions", synthetic()), ("LoCoMo conversation", one_conversation())):
                for latency in latencies:
                    for concurrency in concurrencies * options.runs:
                        with standin(latency) as url, sandbox(servers, **_claude(url)) as here:
                            rows.append(
                                [
                                    name,
                                    f"{latency * 1000:.0f} ms",
                                    concurrency,
                                    *_row(here, url, talk, concurrency, options.pool),
                                ]
                            )
                            print(rows[-1], file=sys.stderr)
            print(table(HEADINGS, rows))
            for _ in range(options.runs):
                with standin(0.0) as url, sandbox(servers, NEXUS_DERIVE_MAX_WAIT="0", **_claude(url)) as here:
                    waits = sorted(lone_message(here, 41))
                print(
                    f"\na lone message on an idle stack, no batching wait, model at 0 ms: p50 "
                    f"{statistics.median(waits) * 1000:.0f} ms, p95 {waits[int(len(waits) * 0.95)] * 1000:.0f} ms"
                )
            for _ in range(options.runs):
                with standin(0.0) as url, sandbox(servers, **_claude(url)) as here:
                    resident, peak = memory(here)
                print(f"a worker at concurrency 32 after 1,000 jobs: {resident:.0f} MiB resident, at most {peak:.0f}")
        finally:
            embedded.stop(Path(folder))


HEADINGS = [
    *("input", "model", "concurrency", "publish → derived", "messages/s", "→ digested"),
    *("calls", "input tokens", "output tokens", "worker CPU", "peak memory"),
]


def _claude(url: str) -> dict[str, str]:
    return {"NEXUS_MODEL": "anthropic", "NEXUS_ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "stand-in"}


def _row(here: Sandbox, url: str, talk: Talk, concurrency: int, pool: str) -> list[str | int]:
    found = drain(here, url, talk, concurrency, pool)
    messages = sum(len(said) for _, said in talk)
    return [
        f"{found.derived_seconds:.2f} s",
        f"{messages / found.derived_seconds:.0f}",
        f"{found.digested_seconds:.2f} s",
        found.calls,
        f"{found.input_tokens:,}",
        f"{found.output_tokens:,}",
        f"{found.cpu_seconds:.2f} s",
        f"{found.peak_mib:.0f} MiB",
    ]


if __name__ == "__main__":
    main()
