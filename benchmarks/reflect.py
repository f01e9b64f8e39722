"""How reflecting grows with a perspective's facts: calls, tokens per call, pairs compared and seconds per fact.

    python -m benchmarks.reflect [--facts 10000] [--every 2000]
    python -m benchmarks.reflect --relations [--of 400]

One observer gets facts about one subject, a hundred at a time, as derivations bring them. The words of the facts are
drawn from a Zipf distribution. Claude's stand-in reflects on each hundred. It reports no relation, because superseded
facts would not be counted. N facts have N·(N−1)/2 pairs in all.

With ``--relations`` it measures what the choice of pairs costs: which of the relations that the offline model finds
among all eight nearest facts are still found when pairs that cannot relate are not sent, and how long the prompts are.
The facts are LoCoMo's messages by speaker, and RealMem's memory points. Because the offline model's own rules also keep
pairs, the recall is printed without these rules, too.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from benchmarks.drain import LOCOMO
from benchmarks.machine import calibration, table
from nexus_tasks import embedded
from nexus_tasks.cognition import reflect
from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.cognition.reflect import new_facts, relatable
from nexus_tasks.deployment import default_deployment
from nexus_tasks.integrations.importers import read
from nexus_tasks.llm.answers import ReflectMaterial
from nexus_tasks.llm.base import PURPOSES, AnswerT, Completion, LanguageModel, ModelRequest, Purpose, Usage
from nexus_tasks.llm.offline.reflect import reflect as offline_reflect
from nexus_tasks.storage import embeddings, facts, namespaces, perspectives
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.tasks.handler import dry_context
from nexus_tasks.text import estimate_tokens
from tests.databases import make_template
from tests.sandbox import sandbox
from tests.standin import StandIn

DATA = LOCOMO.parents[1]  # the folder of both corpora
AT_ONCE = 100
WORDS, LENGTH = 5_000, 12  # the vocabulary, and the words of a fact
OBSERVER, SUBJECT = "assistant", "ann"


class Counted:
    """A model that counts the pairs it is asked about."""

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.name, self.model_for, self.probe = model, model.name, model.model_for, model.probe
        self.provider_for, self.preload = model.provider_for, model.preload
        self.pairs = 0

    def batches_for(self, purpose: Purpose) -> None:
        """None, so every request is asked live."""

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
        assert stored  # texts with the same words are one fact
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
                    f"{used / made:,.0f}" if made else "-",
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


# --- the choice of pairs ----------------------------------------------------------------------------------------------
class Recording:
    """A model that notes the relations of the offline model and answers with none, so that no fact changes."""

    name = "offline"

    def __init__(self) -> None:
        self.relations: set[frozenset[int]] = set()
        self.pairs, self.calls, self.tokens = 0, 0, 0

    def batches_for(self, purpose: Purpose) -> None:
        """None, so every request is asked live."""

    def model_for(self, purpose: Purpose) -> str:  # noqa: ARG002
        """One name for all."""
        return self.name

    provider_for = model_for

    def probe(self, purposes: Collection[Purpose] = PURPOSES) -> None:
        """It needs no credentials."""

    def complete(self, request: ModelRequest[AnswerT]) -> Completion[AnswerT]:
        """Note what the offline model says."""
        assert isinstance(request.material, ReflectMaterial)
        self.calls += 1
        self.pairs += sum(len(olds) for _, olds in request.material.clusters)
        self.tokens += estimate_tokens(request.instructions + request.transcript + request.question)
        found = offline_reflect(request.material).relations
        self.relations |= {frozenset((one.new_id, one.old_id)) for one in found}
        return Completion(model=self.name, usage=Usage(), seconds=0.0, answer=request.answer(relations=[], insights=[]))


def talks(most: int) -> Iterator[tuple[str, list[list[str]]]]:
    """The facts of a subject, session by session, at most ``most``: corpus, sessions."""
    for persona in sorted((DATA / "realmem").glob("*.json")):
        sessions = json.loads(persona.read_text())["dialogues"]
        yield "RealMem", [[one["content"] for one in each.get("extracted_memory") or []] for each in sessions]
    speakers: dict[tuple[str, str], dict[str, list[str]]] = {}
    for one in read(DATA / "locomo" / "dev.json", "locomo", namespace="n"):
        for message in one.messages:
            said_by = speakers.setdefault((one.namespace, message.author), {})
            said_by.setdefault(one.session_key, []).append(f"{message.author} said: {message.content}")
    for (_, _), by_session in list(speakers.items())[: max(2, most // 200)]:
        yield "LoCoMo", list(by_session.values())


def relations(most: int) -> list[list[object]]:
    """A row per corpus and choice: recall, pairs, calls and tokens."""
    here = default_deployment()
    everything = lambda clusters, *_: relatable.Chosen(  # noqa: E731
        clusters=tuple((new, tuple(olds)) for new, olds in clusters), duplicates=()
    )
    choices: dict[str, dict[str, Any]] = {
        "all eight": {"choose_pairs": everything},
        "chosen": {},
        "chosen, without the offline rules": {"compare": lambda *_: None},
    }
    sums: dict[tuple[str, str], list[int]] = {}
    for number, (corpus, sessions) in enumerate(talks(most)):
        full: set[frozenset[str]] = set()
        for choice, changed in choices.items():
            model, wordings = Recording(), dict[int, str]()
            decided: set[frozenset[int]] = set()
            with here.database.transaction() as tx:
                known = namespaces.ensure(tx, f"relations-{number}-{len(choice)}")
            with pytest.MonkeyPatch.context() as patch:
                if "compare" in changed:
                    patch.setattr(relatable, "compare", changed["compare"])
                choose = changed.get("choose_pairs", relatable.choose_pairs)

                def noting(*given: Any, choose: Any = choose, decided: Any = decided) -> relatable.Chosen:
                    found: relatable.Chosen = choose(*given)
                    decided |= {frozenset(pair) for pair in found.duplicates}
                    return found

                patch.setattr(new_facts, "choose_pairs", noting)
                first = 0
                for session in sessions:
                    texts = session[: max(most - first, 0)]
                    if not texts:
                        continue
                    store(known.id, texts, first)
                    first += len(texts)
                    resources = replace(here.resources, model=model)
                    reflect.reflect_perspective(resources, dry_context(here, known), OBSERVER, SUBJECT)
            with here.database.transaction() as tx:
                rows = tx.execute(text("SELECT id, content FROM memories WHERE namespace_id = :n"), {"n": known.id})
                wordings = dict(rows.all())
            found = {frozenset(wordings[i] for i in pair) for pair in model.relations | decided}
            full = full or found
            row = sums.setdefault((corpus, choice), [0] * 6)
            for place, count in enumerate(
                (len(full & found), len(full), model.pairs, model.calls, model.tokens, first)
            ):
                row[place] += count
            print(f"{corpus} {number} {choice}: {len(full & found)} of {len(full)}", file=sys.stderr, flush=True)
    return [
        [
            corpus,
            choice,
            f"{hits} of {of}",
            f"{hits / of:.3f}" if of else "-",
            f"{pairs:,}",
            calls,
            f"{1_000 * tokens / n:,.0f}",
        ]
        for (corpus, choice), (hits, of, pairs, calls, tokens, n) in sums.items()
    ]


CHOICES = ["corpus", "pairs sent", "relations found", "recall", "pairs", "calls", "prompt tokens per 1,000 facts"]
HEADINGS = ["facts", "calls", "tokens per call", "pairs compared", "per fact", "ms per fact", "all pairs would be"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--facts", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=2_000)
    parser.add_argument("--relations", action="store_true", help="measure the choice of pairs on two corpora")
    parser.add_argument("--of", type=int, default=400, help="how many facts of each subject")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder, StandIn() as standin:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            with sandbox(servers, **standin.environment()):
                if wanted.relations:
                    print(table(CHOICES, relations(wanted.of)))
                else:
                    print(table(HEADINGS, grow(standin, wanted.facts, wanted.every)))
        finally:
            embedded.stop(Path(folder))


if __name__ == "__main__":
    main()
