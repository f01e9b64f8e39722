"""Which pairs of facts a reflection asks about."""

from __future__ import annotations

import pytest

from nexus_tasks.cognition.reflect.relatable import choose_pairs
from nexus_tasks.embeddings.hashing import HashingEmbedder

# So many other facts that a word which all of them share counts for little.
OTHERS = tuple(f"ann said: on that day the w{i}x of the v{i}x was u{i}x with t{i}x" for i in range(120))


def chosen(*texts: str) -> tuple[set[frozenset[int]], tuple[tuple[int, int], ...]]:
    """Compare the last text with those before it, among many other facts."""
    contents = dict(enumerate((*texts, *OTHERS), 1))
    embedder = HashingEmbedder()
    every = list(contents.values())
    vectors = dict(zip(every, embedder.embed(every), strict=True))
    new = len(texts)
    found = choose_pairs([(new, [i for i in contents if i != new])], contents, vectors)
    return {frozenset((one, old)) for one, olds in found.clusters for old in olds}, found.duplicates


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ann said: I live in Porto.", "ann said: I moved to Lisbon."),  # a rule: one home at a time
        ("ann said: I drink green tea.", "ann said: green tea keeps me awake."),
        ("ann said: my flight leaves on the 14 of May.", "ann said: I told him 14 of May."),
    ],
)
def test_what_may_relate_is_sent(old: str, new: str) -> None:
    assert chosen(old, new) == ({frozenset((1, 2))}, ())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ann said: I adopted a puppy last week.", "ann said: the report is late again."),
        ("ann said: on Monday the bakery was closed.", "ann said: on Monday my brother was promoted at the bank."),
    ],
)
def test_what_cannot_relate_is_not_sent(old: str, new: str) -> None:
    assert chosen(old, new) == (set(), ())


def test_a_certain_duplicate_is_decided_without_the_model() -> None:
    assert chosen("ann said: I drink green tea.", "ann said: I do drink the green tea.") == (set(), ((2, 1),))


def test_among_a_few_facts_everything_is_sent() -> None:
    """It costs little, and no word looks frequent yet."""
    contents = {1: "ann said: I run.", 2: "ann said: I swim.", 3: "ann said: I climb."}
    embedder = HashingEmbedder()
    vectors = dict(zip(contents.values(), embedder.embed(list(contents.values())), strict=True))
    assert choose_pairs([(3, [1, 2])], contents, vectors).clusters == ((3, (1, 2)),)
