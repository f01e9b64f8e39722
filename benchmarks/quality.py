"""How well memory answers: the evidence that search and context find on LoCoMo and RealMem, beside the first release.

    python -m benchmarks.quality [--embedder NAME …] [--quick] [--processes N] [--json FILE]

Each conversation is a namespace of a database of its own, so that several processes work on several conversations. The
offline model derives facts, reflections and digests from it, as workers would.
Every embedder searches the same memories. A memory *tells* the turns that it rests on: a message tells itself, a fact
the messages it was derived from, a reflection the messages of its facts. A digest tells no turn, but its session.

- LoCoMo: the share of a question's evidence turns that the first 5, 10 or 20 hits tell, or that a context cites within
  a bound of tokens. Questions of category 5 have no answer and are left out.
- RealMem: a question is asked before its session is stored. The share of the sessions that the answer rests on among
  the first 10 distinct sessions of the hits, or among the sessions cited in a context. A reflection cites the sessions
  of all its facts, so the share is also measured without reflections.
- Repeats: how many of the first 10 hits tell only turns that the hits above them tell, or say the same words.
- Identifiers: the share of identifiers (paths, names in code, tickets, versions, hashes) found as the first hit, and
  among the first 10, by kind of question.
- Nonsense: the lines of a context whose question has no subject in common with any memory.
- Facts: the share of what people wrote down about the conversation that some stored fact covers, and the share of facts
  that their messages do not support (see ``quality_facts.py``). They do not depend on the embedder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path

from sqlalchemy import text

from benchmarks import quality_facts
from benchmarks import quality_identifiers as identifiers
from benchmarks.machine import table
from benchmarks.retrieval import CATEGORIES, LOCOMO, Bm25, plain, questions, recall, settings
from nexus_tasks import Deployment, Nexus, embedded
from nexus_tasks.cognition.embed import fill_missing_vectors
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.integrations.importers import read
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.text import content_key, content_words
from nexus_tasks.types import Message, Recall
from tests.databases import make_template
from tests.integration.inline import work
from tests.sandbox import sandbox

CORPORA = ("locomo", "realmem", "identifiers")
REALMEM = LOCOMO.parents[1] / "realmem"
DEPTHS = (5, 10, 20)
BOUNDS = (500, 1_000, 2_000)  # tokens of a context
DEEP = 60  # hits among which the first 10 distinct sessions are looked for
EMBEDDERS = ("hashing", "minilm", "minilm-torch")
LEFT_OUT = ("digested_from", "supersedes")  # roles of evidence that do not say the same
NONSENSE = (
    "quantum chromodynamics lattice gauge",
    "zxqv blorf wibble",
    "isotopic enrichment of molybdenum hexafluoride",
    "papal conclave of 1378 voting protocol",
    "Haskell monad transformer stack overflow",
)
# What the first release measured with its default embedder (`hashing`); its facts were compared by `quality_facts`.
FIRST_RELEASE = {
    "LoCoMo raw @10": 0.665,
    "LoCoMo search @10": 0.641,
    "LoCoMo context 500": 0.644,
    "LoCoMo context 1,000": 0.686,
    "LoCoMo context 2,000": 0.746,
    "LoCoMo repeats in 10 hits": 1.8,
    "LoCoMo facts: written points covered": 0.542,
    "RealMem raw, 10 sessions": 0.687,
    "RealMem search, 10 sessions": 0.667,
    "RealMem context 2,000": 0.848,  # with the sessions of all facts of its reflections
    "RealMem facts: written points covered": 0.565,
    "nonsense: lines in context": 20.0,
}
TELLS = text(
    """
    WITH RECURSIVE rests (memory_id, source_id) AS (
        SELECT id, id FROM unnest(CAST(:ids AS bigint[])) AS given (id)
        UNION
        SELECT rests.memory_id, e.source_id FROM rests JOIN evidence AS e ON e.memory_id = rests.source_id
        WHERE e.role NOT IN ('digested_from', 'supersedes')
    )
    SELECT rests.memory_id, m.level, m.id, sessions.session_key
    FROM rests JOIN memories AS m ON m.id = rests.source_id LEFT JOIN sessions ON sessions.id = m.session_id
    WHERE m.level IN ('raw', 'summary_short', 'summary_long')
    """
)
NO_REFLECTIONS = text("SELECT id FROM memories WHERE id = ANY(:ids) AND level IN ('explicit', 'raw')")


@dataclass(frozen=True)
class Told:
    """The turns that a memory tells (ids of raw memories), and their sessions' keys."""

    turns: frozenset[int] = frozenset()
    sessions: frozenset[str] = frozenset()


@dataclass
class Figures:
    """What one embedder has measured: measure → one value per question; ``kinds`` has them by category too."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, measure: str, value: float, kind: str = "") -> None:
        """Note one value."""
        self.values[measure].append(value)
        if kind:
            self.values[f"{measure}, {kind}"].append(value)

    def means(self) -> dict[str, float]:
        """The mean of each measure."""
        return {measure: statistics.fmean(values) for measure, values in self.values.items()}


@dataclass(frozen=True)
class Dialogue:
    """A session of RealMem: its messages, and its questions as (text, keys of the sessions that answer it)."""

    namespace: str
    key: str
    messages: list[Message]
    asked: list[tuple[str, frozenset[str]]]


def dialogues(path: Path) -> Iterator[Dialogue]:
    """The sessions of a persona in the file's order."""
    before: set[str] = set()
    for one in json.loads(path.read_text(encoding="utf-8"))["dialogues"]:
        noon = datetime.strptime(one["current_time"][:10], "%Y-%m-%d").replace(hour=12, tzinfo=UTC)
        turns = one["dialogue_turns"]
        messages = [
            Message(
                content=turn["content"],
                author=turn["speaker"].lower(),
                role=turn["speaker"].lower(),
                id=f"{one['session_uuid']}:{number}",
                occurred_at=noon + timedelta(seconds=number),
            )
            for number, turn in enumerate(turns, start=1)
            if turn["content"].strip()  # a few turns of the corpus are empty
        ]
        asked = [
            (turns[place - 1]["content"], evidence)
            for place, turn in enumerate(turns)
            if place and (evidence := frozenset(turn.get("memory_session_uuids") or ()) & before)
        ]
        yield Dialogue(f"r.{path.stem}", one["session_uuid"], messages, asked)
        before.add(one["session_uuid"])


class Reader:
    """Asks every question with one embedder, and records the hits."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment, self.nexus, self.figures = deployment, Nexus(deployment), Figures()

    def embed(self, namespace: str) -> None:
        """Make the vectors that are missing."""
        known = self.deployment.namespace(namespace)
        assert known is not None
        fill_missing_vectors(self.deployment.database, self.deployment.embedder, known.id, lambda _done: None)

    def told(self, ids: Iterable[int]) -> dict[int, Told]:
        """What each of these memories tells."""
        turns: dict[int, set[int]] = defaultdict(set)
        sessions: dict[int, set[str]] = defaultdict(set)
        with self.deployment.database.reading() as tx:
            for memory, level, source, key in tx.execute(TELLS, {"ids": list(ids)}):
                if level == "raw":
                    turns[memory].add(source)
                if key:
                    sessions[memory].add(key)
        return {one: Told(frozenset(turns[one]), frozenset(sessions[one])) for one in ids}

    def search(
        self, namespace: str, question: str, levels: Sequence[str] | None, limit: int
    ) -> list[tuple[Recall, Told]]:
        """The hits. Each hit has the evidence of its own memory and of the memories that were merged into it."""
        hits = self.nexus.search(namespace, question[:2_000], levels=levels, limit=limit)
        rests = {hit.id: [hit.id, *(one.id for one in hit.evidence if one.role not in LEFT_OUT)] for hit in hits}
        told = self.told({one for ids in rests.values() for one in ids})
        return [
            (
                hit,
                Told(
                    frozenset().union(*(told[one].turns for one in rests[hit.id])),
                    frozenset().union(*(told[one].sessions for one in rests[hit.id])),
                ),
            )
            for hit in hits
        ]

    def context(self, namespace: str, question: str, tokens: int) -> tuple[Told, Told]:
        """What the memories cited in a context tell; and what its facts and messages tell, without reflections."""
        block = self.nexus.context(namespace, query=question[:2_000], max_tokens=tokens)
        told = self.told({one.id for one in block.citations.values()})
        with self.deployment.database.reading() as tx:
            plain = set(tx.scalars(NO_REFLECTIONS, {"ids": list(told)}))
        return _together(told.values()), _together(one for memory, one in told.items() if memory in plain)

    def ask_locomo(self, namespace: str, question: str, kind: str, evidence: frozenset[int]) -> None:
        """Ask one question of LoCoMo in every way."""
        raw = [told for _, told in self.search(namespace, question, ["raw"], max(DEPTHS))]
        for depth in DEPTHS:
            self.figures.add(f"LoCoMo raw @{depth}", share(raw[:depth], evidence), kind)
        hits = self.search(namespace, question, None, 10)
        self.figures.add("LoCoMo search @10", share([told for _, told in hits], evidence), kind)
        self.figures.add("LoCoMo repeats in 10 hits", repeats(hits))
        for bound in BOUNDS:
            told, _ = self.context(namespace, question, bound)
            self.figures.add(f"LoCoMo context {bound:,}", share([told], evidence), kind)

    def ask_realmem(self, namespace: str, question: str, evidence: frozenset[str]) -> None:
        """Ask one question of RealMem in every way."""
        for name, levels in (("raw", ["raw"]), ("search", None)):
            hits = self.search(namespace, question, levels, DEEP)
            found: dict[str, None] = {}
            for _, told in hits:
                found.update(dict.fromkeys(sorted(told.sessions)))
            self.figures.add(f"RealMem {name}, 10 sessions", len(evidence & set(list(found)[:10])) / len(evidence))
            if levels is None:
                self.figures.add("RealMem repeats in 10 hits", repeats(hits[:10]))
        for name, told in zip(("", ", no reflections"), self.context(namespace, question, 2_000), strict=True):
            self.figures.add(f"RealMem context 2,000{name}", len(evidence & told.sessions) / len(evidence))

    def compare_facts(self, corpus: str, namespace: str, points: Sequence[str], names: Sequence[str]) -> None:
        """Compare the stored facts with what people wrote down."""
        with self.deployment.database.reading() as tx:
            facts = quality_facts.stored_facts(tx, namespace)
        for one in quality_facts.covered(points, facts, names):
            self.figures.add(f"{corpus} facts: written points covered", one)
        for one in quality_facts.unsupported(facts):
            self.figures.add(f"{corpus} facts: unsupported", one)

    def ask_identifiers(self, namespace: str) -> None:
        """Ask for each identifier in every way."""
        for kind, question, wanted in identifiers.QUESTIONS:
            hits = [hit.external_id for hit in self.nexus.search(namespace, question, levels=["raw"], limit=10)]
            for depth in (1, 10):
                self.figures.add(f"identifiers @{depth}", float(wanted in hits[:depth]), kind)

    def ask_nonsense(self, namespace: str) -> None:
        """Ask for what no memory tells."""
        for question in NONSENSE:
            block = self.nexus.context(namespace, query=question, max_tokens=2_000)
            self.figures.add("nonsense: lines in context", len(block.citations))


def _together(told: Iterable[Told]) -> Told:
    every = list(told)
    return Told(
        frozenset().union(*(one.turns for one in every)),
        frozenset().union(*(one.sessions for one in every)),
    )


def share(told: Sequence[Told], evidence: frozenset[int]) -> float:
    """The share of the evidence turns that these memories tell."""
    return len(evidence & frozenset().union(*(one.turns for one in told))) / len(evidence)


def repeats(hits: Sequence[tuple[Recall, Told]]) -> int:
    """How many hits say nothing that the hits above them do not say."""
    said: set[str] = set()
    turns: set[int] = set()
    again = 0
    for hit, told in hits:
        key = content_key(hit.content)
        again += key in said or (bool(told.turns) and told.turns <= turns)
        said.add(key)
        turns |= told.turns
    return again


class Progress:
    """Prints each finished step and the elapsed seconds on standard error."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def __call__(self, said: str) -> None:
        """Say it."""
        print(f"[{time.perf_counter() - self.start:5.0f} s] {said}", file=sys.stderr, flush=True)


def remember(namespace: str, key: str, messages: list[Message]) -> None:
    """Store a session, and do in this process what workers would do."""
    Nexus().ingest(namespace, key, messages, end=True)
    work()


def locomo(namespace: str, readers: dict[str, Reader], peers: dict[str, Figures], note: Progress) -> None:
    """Store one of LoCoMo's conversations and ask its questions."""
    turns: list[Message] = []
    for one in read(LOCOMO, "locomo", namespace="n"):
        if one.namespace == namespace:
            remember(namespace, one.session_key, one.messages)
            turns += one.messages
    note(f"{namespace}: {len(turns):,} turns stored and derived")
    upkeep.run(Nexus().deployment.database)
    for reader in readers.values():
        reader.embed(namespace)
    ids = _ids(namespace)
    words = {
        "plain BM25": Bm25(turns, plain, k1=1.5, b=0.75, floor=0.25),
        "stemmed BM25": Bm25(turns, content_words, k1=1.2, b=0.75, floor=0.25),
    }
    for question in (one for one in questions(LOCOMO) if one.namespace == namespace):
        kind = CATEGORIES[question.category]
        for name, peer in words.items():
            found = peer.best(question.text, max(DEPTHS))
            for depth in DEPTHS:
                peers[name].add(f"LoCoMo raw @{depth}", recall(found, question.evidence, depth), kind)
        evidence = frozenset(ids[turn] for turn in question.evidence)
        for reader in readers.values():
            reader.ask_locomo(namespace, question.text, kind, evidence)
    names = sorted({turn.author or "" for turn in turns})
    points = quality_facts.locomo_points(LOCOMO, namespace.partition(".")[2])
    for reader in readers.values():
        reader.ask_nonsense(namespace)
        reader.compare_facts("LoCoMo", namespace, points, names)


def _ids(namespace: str) -> dict[str, int]:
    here = Nexus().deployment
    with here.database.reading() as tx:
        rows = tx.execute(
            text(
                "SELECT external_id, memories.id FROM memories JOIN namespaces ON namespaces.id = namespace_id"
                " WHERE namespaces.name = :name AND level = 'raw'"
            ),
            {"name": namespace},
        )
        return {str(external): int(one) for external, one in rows}


def realmem(
    path: Path, readers: dict[str, Reader], peers: dict[str, Figures], note: Progress, sessions: int | None
) -> None:
    """Ask the questions of each of a persona's sessions before the session is stored."""
    before: list[Message] = []
    for number, one in enumerate(itertools.islice(dialogues(path), sessions)):
        if one.asked and before:
            peer = Bm25(before, content_words, k1=1.2, b=0.75, floor=0.25)
            for question, evidence in one.asked:
                keys = dict.fromkeys(turn.partition(":")[0] for turn in peer.best(question, 10))
                peers["stemmed BM25"].add("RealMem 10 turns' sessions", len(evidence & set(keys)) / len(evidence))
                keys = dict.fromkeys(turn.partition(":")[0] for turn in peer.best(question, 200))
                found = evidence & set(list(keys)[:10])
                peers["stemmed BM25"].add("RealMem raw, 10 sessions", len(found) / len(evidence))
            for reader in readers.values():
                reader.embed(one.namespace)
                for question, evidence in one.asked:
                    reader.ask_realmem(one.namespace, question, evidence)
        remember(one.namespace, one.key, one.messages)
        before += one.messages
        if number % 50 == 49:
            upkeep.run(Nexus().deployment.database)
            note(f"RealMem: {path.stem}, {number + 1} sessions")
    for reader in readers.values():
        reader.embed(f"r.{path.stem}")
        reader.ask_nonsense(f"r.{path.stem}")
        reader.compare_facts("RealMem", f"r.{path.stem}", quality_facts.realmem_points(path, sessions), ["user"])


def find_identifiers(readers: dict[str, Reader]) -> None:
    """Store messages with identifiers between others, and ask for them."""
    messages = [Message(content=said, author=author, id=key) for key, author, said in identifiers.MESSAGES]
    remember("code", "work", messages)
    for reader in readers.values():
        reader.embed("code")
        reader.ask_identifiers("code")


@contextmanager
def readers_of(names: Sequence[str]) -> Iterator[dict[str, Reader]]:
    """One reader per embedder, on the databases of the sandbox."""
    with ExitStack() as stack:
        made: dict[str, Reader] = {}
        for name in names:
            before = dict(os.environ)
            os.environ.update(settings(name))
            deployment = Deployment()
            stack.callback(deployment.close)
            os.environ.clear()
            os.environ.update(before)
            try:
                deployment.embedder.embed(["warm"])
            except Exception as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            made[name] = Reader(deployment)
        yield made


def report(figures: dict[str, dict[str, float]]) -> str:
    """The tables, in Markdown."""
    rows: list[list[object]] = []
    measures = list(dict.fromkeys(measure for found in figures.values() for measure in found))
    for measure in sorted((one for one in measures if ", " not in one or one.startswith("RealMem")), key=_order):
        rows.append([measure, *(f"{found[measure]:.3f}" if measure in found else "" for found in figures.values())])
    kinds: list[list[object]] = [
        [measure, *(f"{found[measure]:.3f}" if measure in found else "" for found in figures.values())]
        for measure in measures
        if ", " in measure and not measure.startswith("RealMem")
    ]
    heads = ["", *figures]
    return f"{table(heads, rows)}\n\nBy category:\n\n{table(heads, kinds)}"


def _order(measure: str) -> tuple[int, str]:
    heads = ("LoCoMo raw", "LoCoMo search", "LoCoMo context", "LoCoMo", "RealMem", "identifiers", "nonsense")
    return next(place for place, head in enumerate(heads) if measure.startswith(head)), ""


@dataclass(frozen=True)
class Part:
    """A conversation, or all identifiers: what one process stores and asks alone."""

    corpus: str  # locomo, realmem or identifiers
    name: str = ""  # the conversation's namespace, or the path of the persona's file

    def run(
        self, servers: ServerAddresses, embedders: Sequence[str], note: Progress, *, quick: bool
    ) -> dict[str, dict[str, list[float]]]:
        """The values of each measure, by peer or embedder."""
        peers = {"plain BM25": Figures(), "stemmed BM25": Figures()}
        with sandbox(servers), readers_of(embedders) as readers:
            if self.corpus == "locomo":
                locomo(self.name, readers, peers, note)
            elif self.corpus == "realmem":
                realmem(Path(self.name), readers, peers, note, 60 if quick else None)
            else:
                find_identifiers(readers)
            note(f"{self.corpus} {self.name.rpartition('/')[2]}: done by {', '.join(readers)}")
            found = peers | {name: reader.figures for name, reader in readers.items()}
        return {name: dict(figures.values) for name, figures in found.items()}


def parts_of(corpora: Sequence[str], *, quick: bool) -> list[Part]:
    """The parts of these corpora; the longest come first."""
    talks = dict.fromkeys(one.namespace for one in read(LOCOMO, "locomo", namespace="n"))
    every = [Part("realmem", str(path)) for path in sorted(REALMEM.glob("*.json"))[: 1 if quick else None]]
    every += [Part("locomo", name) for name in list(talks)[: 1 if quick else None]]
    every.append(Part("identifiers"))
    return [part for part in every if part.corpus in corpora]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--embedder", action="append", help="as NEXUS_EMBEDDER, or `minilm-torch`; default: all")
    parser.add_argument("--quick", action="store_true", help="one conversation of LoCoMo, 60 sessions of RealMem")
    parser.add_argument("--only", action="append", choices=CORPORA)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each core")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    note = Progress()
    figures: dict[str, Figures] = defaultdict(Figures)
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            # Each process is a new one: forked ones would share connections.
            with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
                running = [
                    pool.submit(part.run, servers, options.embedder or EMBEDDERS, note, quick=options.quick)
                    for part in parts_of(options.only or CORPORA, quick=options.quick)
                ]
                for part in running:
                    for name, values in part.result().items():
                        for measure, found in values.items():
                            figures[name].values[measure] += found
        finally:
            embedded.stop(Path(folder))
    means = {name: one.means() for name, one in figures.items()}
    if not options.quick:
        means["first release"] = FIRST_RELEASE
    if options.json:
        options.json.write_text(json.dumps(means, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(report(means))
    note("done")


if __name__ == "__main__":
    main()
