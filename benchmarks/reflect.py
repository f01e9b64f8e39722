"""How reflecting grows with a perspective's facts: calls, tokens per call, pairs compared and seconds per fact.

    python -m benchmarks.reflect [--facts 10000] [--every 2000]

One observer gets facts about one subject, a hundred at a time, as derivations bring them. The words of the facts are
drawn from a Zipf distribution. Claude's stand-in reflects on each hundred. It reports no relation, because superseded
facts would not be counted. N facts have N·(N−1)/2 pairs in all.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import text

from benchmarks.machine import calibration, table
from nexus_tasks import embedded
from nexus_tasks.cognition import reflect
from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.deployment import default_deployment
from nexus_tasks.llm.answers import ReflectMaterial
from nexus_tasks.llm.base import AnswerT, Completion, LanguageModel, ModelRequest
from nexus_tasks.storage import embeddings, facts, namespaces, perspectives
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.tasks.handler import dry_context
from tests.databases import make_template
from tests.sandbox import sandbox
from tests.standin import StandIn

AT_ONCE = 100
WORDS, LENGTH = 5_000, 12  # the vocabulary, and the words of a fact
OBSERVER, SUBJECT = "assistant", "ann"


class Counted:
    """A model that counts the pairs it is asked about."""

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.name, self.model_for, self.probe = model, model.name, model.model_for, model.probe
        self.batches = None  # so every request is asked live
        self.pairs = 0

    def complete(self, request: ModelRequest[AnswerT]) -> Completion[AnswerT]:
        """Ask, and count."""
        assert isinstance(request.material, ReflectMaterial)
        self.pairs += sum(len(olds) for _, olds in request.material.clusters)
        return self.model.complete(request)


def said(count: int) -> list[str]:
    """Different facts. As in talk, each has a few common words and many rare words."""
    luck = random.Random(0)
    weights = [1 / (rank + 1) for rank in range(WORDS)]
    draws = luck.choices(range(WORDS), weights, k=count * LENGTH)
    return [
        f"Fact {i} is " + " ".join(f"w{word}x" for word in draws[i * LENGTH : (i + 1) * LENGTH]) + "."
        for i in range(count)
    ]


def store(namespace_id: int, texts: list[str], first: int) -> None:
    """Store facts as a derivation does, without the messages."""
    here = default_deployment()
    vectors = vectors_of(here.embedder, texts)
    with here.database.transaction() as tx:
        held = perspectives.lock(tx, namespace_id, OBSERVER, [SUBJECT])
        drafts = [
            facts.FactDraft(
                subject=SUBJECT,
                content=wording,
                category="fact",
                confidence=0.9,
                labels=(),
                sources=(),
                valid_from=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=first + place),
                session_id=None,
                made_by="benchmark",
                standing=5,
            )
            for place, wording in enumerate(texts)
        ]
        stored = facts.store(tx, held, drafts)
        wordings = {fact.id: fact.content for fact in stored}
        embeddings.store(tx, namespace_id, here.embedder.name, wordings, vectors)


def grow(standin: StandIn, count: int, every: int) -> list[list[object]]:
    """Reflect on ``count`` facts; returns one row per ``every`` facts."""
    here = default_deployment()
    with here.database.transaction() as tx:
        known = namespaces.ensure(tx, "reflections")
    model = Counted(here.resources.model)
    resources = replace(here.resources, model=model)
    texts, rows = said(count), []
    seconds, calls, tokens, pairs = 0.0, 0, 0, 0
    for first in range(0, count, AT_ONCE):
        store(known.id, texts[first : first + AT_ONCE], first)
        if first % every == 0:
            _keep_up(here.database)
        start = time.perf_counter()
        outcome, _ = reflect.reflect_perspective(resources, dry_context(here, known), OBSERVER, SUBJECT)
        seconds += time.perf_counter() - start
        assert outcome.status == "completed", outcome
        done = first + AT_ONCE
        if done % every == 0:
            made, used = standin.counters.calls - calls, standin.counters.input_tokens - tokens
            fresh = model.pairs - pairs
            rows.append(
                [
                    f"{done:,}",
                    made,
                    f"{used / made:,.0f}",
                    f"{fresh:,}",
                    f"{fresh / every:.1f}",
                    f"{1_000 * seconds / every:.1f}",
                    f"{done * (done - 1) // 2:,}",
                ]
            )
            print(f"{done:,} facts: {1_000 * seconds / every:.1f} ms per fact", file=sys.stderr, flush=True)
            seconds, calls, tokens = 0.0, standin.counters.calls, standin.counters.input_tokens
            pairs = model.pairs
    return rows


def _keep_up(database: Database) -> None:
    """Do the work of beat and autovacuum: count common words, index many vectors, update statistics."""
    upkeep.run(database)
    with database.transaction() as tx:
        tx.execute(text("ANALYZE memories, postings, embeddings, perspectives"))


HEADINGS = ["facts", "calls", "tokens per call", "pairs compared", "per fact", "ms per fact", "all pairs would be"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--facts", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=2_000)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder, StandIn() as standin:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            with sandbox(servers, **standin.environment()):
                print(table(HEADINGS, grow(standin, wanted.facts, wanted.every)))
        finally:
            embedded.stop(Path(folder))


if __name__ == "__main__":
    main()
