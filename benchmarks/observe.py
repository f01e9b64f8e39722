"""The tokens that an agent sends with and without observation, and how reads fare beside the jobs.

    python -m benchmarks.observe [--scale 0.05] [--every 5]     # the tokens, turn by turn
    python -m benchmarks.observe --contention 120               # reads against jobs, with thresholds at a tenth
    python -m benchmarks.observe --backlog 1500                 # many messages that were stored unread
    python -m benchmarks.observe --evidence                     # what the offline model's notes keep of LoCoMo

The contention runs three readers, a producer and a worker on one session for the given seconds. Each reads or writes at
most ten times a second. The backlog is read every second beside a worker that is busy with facts from as many other
messages of the namespace. Nobody reads a second backlog. The evidence is the share of the turns which answer LoCoMo's
questions that the notes on a whole conversation cite, that search has among its first ten messages, or that either has.

All sessions of a LoCoMo conversation become one session. At every turn the agent sends its context: all messages so
far, or the log and the messages after it. "Unchanged" is the share of the context that equals the beginning of the last
turn's context; a prompt cache may serve that share. ``--scale`` shrinks every threshold, because the defaults are made
for longer conversations. The offline model observes. Its input and output are counted as characters / 4.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.machine import table
from benchmarks.retrieval import questions
from nexus_tasks import Nexus, embedded
from nexus_tasks.cognition.observing import view_block
from nexus_tasks.deployment import default_deployment
from nexus_tasks.integrations.importers import read
from nexus_tasks.llm.base import AnswerT, Completion, ModelRequest
from nexus_tasks.llm.offline import OfflineModel
from nexus_tasks.services import observation
from nexus_tasks.settings import Settings
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import Message
from tests.databases import make_template
from tests.integration.inline import work
from tests.integration.test_observation_contention import Contention, deadlocks
from tests.sandbox import Sandbox, sandbox

LOCOMO = Path(__file__).parents[2] / "shared" / "data" / "locomo" / "dev.json"
NAMESPACE = "bench"


class Metered(OfflineModel):
    """An offline model that counts its calls and their tokens."""

    calls = read_tokens = written_tokens = 0

    def complete(self, request: ModelRequest[AnswerT]) -> Completion[AnswerT]:
        """Answer, and count."""
        done = super().complete(request)
        self.calls += 1
        self.read_tokens += estimate_tokens(request.instructions + request.transcript + request.question)
        self.written_tokens += estimate_tokens(done.answer.model_dump_json() if done.answer else "")
        return done


def thresholds(scale: float) -> dict[str, str]:
    """Every observation setting, ``scale`` times its default."""
    names = [name for name in Settings.model_fields if name.startswith(("observation_", "reflection_", "previous_"))]
    shrunk = {name: Settings.model_fields[name].default for name in names if not name.endswith("_activation")}
    return {f"NEXUS_{name.upper()}": str(max(int(default * scale), 1)) for name, default in shrunk.items()}


def common(left: str, right: str) -> int:
    """The length of the common beginning of two texts, in characters."""
    if right.startswith(left):
        return len(left)
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def measure(every: int) -> list[list[object]]:
    """The table's rows; a turn is ``every`` messages."""
    nexus, meter = Nexus(), Metered()
    here: Any = default_deployment()
    here.__dict__["resources"] = replace(here.resources, model=meter)
    parts = list(read(LOCOMO, "locomo", namespace=NAMESPACE))
    said = [message for part in parts if part.namespace == parts[0].namespace for message in part.messages]
    sent: dict[str, list[int]] = {"with": [], "without": []}
    same: dict[str, int] = {"with": 0, "without": 0}
    before = {"with": "", "without": ""}
    for first in range(0, len(said), every):
        turn = said[first : first + every]
        nexus.ingest(NAMESPACE, "one", turn, observe=True, observers=[])
        work("observe_session", "reflect_observations")
        lines = "".join(f"{one.occurred_at:%Y-%m-%d %H:%M} {one.author}: {one.content}\n" for one in turn)
        now = {
            "with": nexus.context(NAMESPACE, session_key="one", observe=True).text,
            "without": before["without"] + lines,
        }
        for way, text in now.items():
            sent[way].append(estimate_tokens(text))
            same[way] += common(before[way], text) // 4
        before = now
    bound = view_block.default_bound(here.settings)
    print(f"{len(said)} messages, {len(sent['with'])} turns; the bound is {bound:,} tokens")
    rows: list[list[object]] = []
    for way, counts in sent.items():
        total = sum(counts)
        rows.append([f"{way} observation", f"{total:,}", f"{max(counts):,}", f"{same[way] / total:.0%}"])
    rows.append(
        [f"the observer: {meter.calls} calls", f"{meter.read_tokens:,} read", f"{meter.written_tokens:,} written", ""]
    )
    return rows


def percentile(seconds: list[float], share: float) -> str:
    """The time that ``share`` of the calls stay below, as text."""
    return f"{sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)] * 1000:.0f} ms"


def contend(here: Sandbox, seconds: float) -> list[list[object]]:
    """The table's row of reads against jobs."""
    Nexus().ingest("acme", "chat", [{"content": "Hello there."}], observe=True, observers=[])
    here.worker()
    contention = Contention(seconds, pause=0.1)
    contention.run(contention.produce, *[contention.read] * 3)
    took = contention.took
    times = (percentile(took, 0.5), percentile(took, 0.99), percentile(took, 1.0))
    return [[len(took), *times, len(contention.failed), deadlocks(here)]]


WORDS = ("harbour", "ship", "captain", "morning", "letter", "garden", "river", "mountain", "winter", "coffee", "market")


def long_statement(number: int) -> str:
    """A message of about 500 characters."""
    chosen = random.Random(number)
    told = (f"I took the {' '.join(chosen.choices(WORDS, k=5))} to Lisbon on day {number + n}." for n in range(8))
    return f"My plan number {number} changed. {' '.join(told)}"


def read_backlog(here: Sandbox, count: int) -> list[list[object]]:
    """The table's rows: each read of a backlog, and when a backlog that nobody reads is below the bound."""
    nexus, rows = Nexus(), list[list[object]]()
    here.worker(concurrency=16)
    said = [{"content": long_statement(number), "author": "ann"} for number in range(count)]
    nexus.ingest("read", "bulk", [{"content": f"{one['content']}!", "author": "bob"} for one in said], end=True)
    while nexus.status("read").namespaces[0].underived > 0.9 * count:
        time.sleep(0.2)  # now the worker is busy with facts of the same namespace
    for name in ("read", "unread"):
        for first in range(0, count, 500):
            nexus.ingest(name, "chat", said[first : first + 500], observe=True, end=first + 500 >= count)
        began = time.monotonic()
        while name == "read" and len(rows) < 12:
            asked = time.monotonic()
            block = nexus.context(name, session_key="chat", observe=True)
            left = nexus.status(name).namespaces[0]
            now = time.monotonic()
            rows.append([f"at {asked - began:.0f} s", f"{block.tokens:,}", f"{now - asked:.1f} s", left.underived])
            time.sleep(1.0)
        while name == "unread":
            found = nexus.status(name).namespaces[0]
            tail, log = found.observation[0].tail_tokens, found.observation[0].log_tokens
            if tail < 30_000 and log < 40_000:
                rows.append([f"unread, after {time.monotonic() - began:.0f} s", f"{tail + log:,}", "", found.underived])
                break
            time.sleep(0.5)
    return rows


def keep_evidence() -> list[list[object]]:
    """The table's rows: how long the notes are, and how much evidence they and search have."""
    nexus, shares, cited = Nexus(), dict[str, tuple[int, int]](), dict[str, set[str]]()
    talks = defaultdict[str, list[Message]](list)
    for part in read(LOCOMO, "locomo", namespace="n"):
        talks[part.namespace] += part.messages
    for name, said in talks.items():
        nexus.ingest(name, "one", said, observe=True, observers=[])
        work("observe_session")
        view = nexus.context(name, session_key="one", observe=True)
        shown = {one.id for one in view.citations.values()} if not view.sections else set(view.sections[0].ids)
        told = {one.external_id or "" for one in view.citations.values() if one.id in shown}
        through = nexus.session(name, "one").observation
        whole = nexus.session(name, "one", limit=1_000).said
        lines = [one for one in whole if through and one.seq <= through.observed_through]
        talk = sum(
            estimate_tokens(f"[m{one.id}] {one.occurred_at:%Y-%m-%d %H:%M} {one.author}: {one.content}\n")
            for one in lines
        )
        cited[name] = told | {one.external_id or "" for one in whole[len(lines) :]}
        shares[name] = view.sections[0].tokens, talk
    found = defaultdict[str, list[tuple[float, float, float]]](list)
    for asked in questions(LOCOMO):
        hits = {hit.external_id for hit in nexus.search(asked.namespace, asked.text, levels=["raw"], limit=10)}
        noted = cited[asked.namespace]
        ways = (noted, hits, noted | hits)
        found[asked.namespace].append(tuple(len(asked.evidence & way) / len(asked.evidence) for way in ways))
    rows: list[list[object]] = []
    names = sorted(talks)
    for half, chosen in (("even", names[::2]), ("odd", names[1::2]), ("all", names)):
        values = [one for name in chosen for one in found[name]]
        notes, talk = (sum(shares[name][place] for name in chosen) for place in (0, 1))
        means = [f"{statistics.fmean(column):.3f}" for column in zip(*values, strict=True)]
        rows.append([half, len(values), f"{notes / talk:.1%}", *means])
    return rows


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--scale", type=float, default=0.05, help="of every threshold")
    options.add_argument("--every", type=int, default=5, help="messages per turn")
    options.add_argument("--contention", type=float, metavar="SECONDS", help="reads against jobs")
    options.add_argument("--backlog", type=int, metavar="MESSAGES", help="messages that were stored unread")
    options.add_argument("--evidence", action="store_true", help="what notes keep of LoCoMo")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as home:
        servers = embedded.ensure(Path(home))
        try:
            make_template(servers)
            if chosen.contention:
                observation.LONGEST_WAIT = 0.0  # this process has no worker to wait for
                with sandbox(servers, **thresholds(0.1)) as here:
                    print(
                        table(
                            ["reads", "half", "99 %", "longest", "failed", "deadlocks"],
                            contend(here, chosen.contention),
                        )
                    )
            elif chosen.backlog:
                with sandbox(servers) as here:
                    print(table(["read", "tokens", "took", "to derive"], read_backlog(here, chosen.backlog)))
            elif chosen.evidence:
                whole = {"NEXUS_REFLECTION_OBSERVATION_TOKENS": "1000000", "NEXUS_OBSERVATION_MESSAGE_TOKENS": "6001"}
                with sandbox(servers, **whole):
                    print(table(["half", "questions", "notes", "in notes", "in search", "in both"], keep_evidence()))
            else:
                with sandbox(servers, **thresholds(chosen.scale)):
                    rows = measure(chosen.every)
                print(table(["agent", "tokens sent", "longest", "unchanged"], rows))
        finally:
            embedded.stop(Path(home))


if __name__ == "__main__":
    main()
