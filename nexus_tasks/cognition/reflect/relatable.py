"""Choose which pairs of near facts a reflection asks the model about.

Nine tenths of the price of a live memory was reflection, and most of the pairs that it asked about could not relate. A
pair is sent when one of these rules holds:

- The two facts share their subject matter: the words that they have in common weigh at least ``SHARED`` of the words of
  the fact that weighs less. A rare word weighs more than a frequent word.
- They share a number, and half as much of their words.
- Their vectors are near to each other (a cosine of ``NEAR`` or more).
- There are few facts, so that everything can be sent for little.
- The rules of the offline model relate them. These rules know, for example, that a person has one home.

Two facts of the same time with the same content words in the same order are duplicates. The model is not asked about
them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.llm.offline.compare import compare
from nexus_tasks.text import content_words

# Chosen by `python -m benchmarks.reflect --relations`, which prints the recall and the price on two corpora.
SHARED = 0.50
# Chosen by hand, not measured: with the built-in embedder few pairs are so near without shared words.
NEAR = 0.60
FEW = 12  # among so many facts every pair is sent; chosen by hand
# Words are weighed as if the perspective had this many facts at least. Among fewer facts no word looks frequent then.
FEWEST = 200

Clusters = Sequence[tuple[int, Sequence[int]]]  # (id of a new fact, ids of the facts nearest to it)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The pairs to send, as clusters, and the pairs that are certainly duplicates: (new fact, earlier fact)."""

    clusters: tuple[tuple[int, tuple[int, ...]], ...]
    duplicates: tuple[tuple[int, int], ...]


def choose_pairs(
    clusters: Clusters,
    contents: Mapping[int, str],
    vectors: Mapping[str, Vectors],
    events: Mapping[int, str | None] = MappingProxyType({}),
) -> Chosen:
    """Choose the pairs of ``clusters`` to send.

    Args:
        contents: the wording of each fact, by the fact's id.
        vectors: the vector of each wording.
        events: the time of which a fact speaks, for the facts that name one. "I swam yesterday", said on two days, is
            no duplicate.
    """
    words = {i: frozenset(content_words(text)) for i, text in contents.items()}
    frequent = Counter(word for one in words.values() for word in one)
    facts = max(len(words), FEWEST)
    weights = {word: math.log1p((facts - count + 0.5) / (count + 0.5)) for word, count in frequent.items()}
    weight = {i: sum(weights[word] for word in one) for i, one in words.items()}

    def related(new: int, old: int, *, by_rule: bool) -> bool:
        if len(words) <= FEW:
            return True
        shared = words[new] & words[old]
        share = sum(weights[word] for word in shared) / (min(weight[new], weight[old]) or 1.0)
        if share >= SHARED or (share >= SHARED / 2 and any(word.isdigit() for word in shared)):
            return True
        return by_rule or float(vectors[contents[new]] @ vectors[contents[old]]) >= NEAR

    kept, duplicates = [], dict[frozenset[int], tuple[int, int]]()
    for new, olds in clusters:
        if new not in contents:
            continue
        chosen = []
        for old in olds:
            if old not in contents:
                continue
            verdict = compare(contents[new], contents[old])
            if verdict is not None and verdict.kind == "duplicate" and events.get(new) == events.get(old):
                duplicates.setdefault(frozenset((new, old)), (max(new, old), min(new, old)))
            elif related(new, old, by_rule=verdict is not None):
                chosen.append(old)
        kept.append((new, tuple(chosen)))
    return Chosen(clusters=tuple(kept), duplicates=tuple(duplicates.values()))
