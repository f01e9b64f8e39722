"""The tokens that an agent sends with and without observation, turn by turn, over a long conversation.

    python -m benchmarks.observe [--scale 0.05] [--every 5]

All sessions of a LoCoMo conversation become one session. At every turn the agent sends its context: all messages so
far, or the log and the messages after it. "Unchanged" is the share of the context that equals the beginning of the last
turn's context; a prompt cache may serve that share. ``--scale`` shrinks every threshold, because the defaults are made
for longer conversations. The offline model observes. Its input and output are counted as characters / 4.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.machine import table
from nexus_tasks import Nexus, embedded
from nexus_tasks.cognition.observing import view_block
from nexus_tasks.deployment import default_deployment
from nexus_tasks.integrations.importers import read
from nexus_tasks.llm.base import AnswerT, Completion, ModelRequest
from nexus_tasks.llm.offline import OfflineModel
from nexus_tasks.settings import Settings
from nexus_tasks.text import estimate_tokens
from tests.databases import make_template
from tests.integration.inline import work
from tests.sandbox import sandbox

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


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--scale", type=float, default=0.05, help="of every threshold")
    options.add_argument("--every", type=int, default=5, help="messages per turn")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as home:
        servers = embedded.ensure(Path(home))
        try:
            make_template(servers)
            with sandbox(servers, **thresholds(chosen.scale)):
                rows = measure(chosen.every)
            print(table(["agent", "tokens sent", "longest", "unchanged"], rows))
        finally:
            embedded.stop(Path(home))


if __name__ == "__main__":
    main()
