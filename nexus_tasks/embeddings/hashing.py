"""The built-in embedder: hashed words and character n-grams. It needs no model and no network.

Texts with the same words get near vectors. Texts with the same meaning in other words do not. The vector of a text is

    Σ over its words: (1 + ln count) · vector of the word
    + Σ over pairs of neighbouring content words: (1 + ln count) · 0.3 at the pair's hashed place

A word's vector has the word's stem and its character 3- and 4-grams at hashed places with hashed signs. (The "hashing
trick": Weinberger et al., ICML 2009. N-grams within word bounds: fastText, Bojanowski et al., TACL 2017.) A stem weighs
min(length, 8) / 5. The length stands in for rarity, because longer words are rarer and the embedder has no corpus to
count words in. A stop word weighs 0.1. Example: the stem of "peanuts" is "peanut". It has 6 letters and weighs 1.2. The
n-grams of "peanuts" together weigh 0.8 times as much, 0.96.

The weights were chosen on the development half of LoCoMo, a benchmark of long conversations. With cosine similarity
alone, the evidence recall@10 is 0.38. With equal weights for all words it is 0.33. Any change here needs a new
``name``, because vectors of different versions must not be compared.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.embeddings.unit import unit
from nexus_tasks.text import NEGATIONS, STOP_WORDS, stem, words

DIMENSIONS = 384
NGRAM_SIZES = (3, 4)
NGRAM_WEIGHT = 0.8  # the weight of all n-grams of a word together (if orthogonal), when the stem weighs 1
PAIR_WEIGHT = 0.3
STOP_WEIGHT = 0.1
FULL_LENGTH, LONGEST_LENGTH = 5, 8  # letters: a stem of 5 weighs 1, a longer stem more, up to 1.6 for 8
NGRAM_CHARACTERS = 40  # only a word's first 40 characters make n-grams: a base64 word may have a million
CHUNK = 512  # texts per step, which bounds the memory of a call

_Features = tuple[NDArray[np.int16], NDArray[np.float32]]  # places, signed weights


class HashingEmbedder:
    """Deterministic vectors, the same on every machine and in every process. Safe to share between threads."""

    name = "hashing-384"
    dimensions = DIMENSIONS

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, ``float32[len(texts), 384]``, in the order of ``texts``.

        A text without any character but white space gets a fixed unit vector, not zeros (see :func:`unit`).
        """
        chunks = (texts[i : i + CHUNK] for i in range(0, len(texts), CHUNK))
        return np.concatenate([np.zeros((0, DIMENSIONS), np.float32), *map(_sum, chunks)])


def _sum(texts: Sequence[str]) -> Vectors:
    features: list[_Features] = []
    owners: list[int] = []
    factors: list[float] = []
    for row, text in enumerate(texts):
        for term, count in _terms(text).items():
            features.append(_features(*term))
            owners.append(row)
            factors.append(1.0 + math.log(count))
    return unit(_scatter(len(texts), features, np.array(owners, np.int64), np.array(factors)))


def _terms(text: str) -> Counter[tuple[str, ...]]:
    """The words of ``text``, and its neighbouring pairs of content words as stems."""
    found = words(text) or text.split()  # a text without letters and digits, such as emoji, is split at white space
    content = [_stem(word) for word in found if word not in STOP_WORDS]
    return Counter([*((word,) for word in found), *pairwise(content)])


def _scatter(
    rows: int, features: list[_Features], owners: NDArray[np.int64], factors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Add every term's features, times its factor, to its owner's row: ``float64[rows, 384]``."""
    if not features:
        return np.zeros((rows, DIMENSIONS))
    sizes = [len(places) for places, _ in features]
    flat = np.repeat(owners * DIMENSIONS, sizes) + np.concatenate([places for places, _ in features])
    weights = np.repeat(factors, sizes) * np.concatenate([weights for _, weights in features])
    # bincount adds in order, unlike a matrix product, so the rounding is the same on every machine.
    sums = np.bincount(flat, weights=weights, minlength=rows * DIMENSIONS).astype(np.float64, copy=False)
    return sums.reshape(rows, DIMENSIONS)


@lru_cache(maxsize=30_000)  # about 12 MiB, enough for a usual vocabulary
def _features(first: str, second: str | None = None) -> _Features:
    if second is not None:
        hashed = [_hashed(f"p:{first} {second}", PAIR_WEIGHT)]
    elif first in STOP_WORDS:
        hashed = [_hashed(f"w:{first}", STOP_WEIGHT)]
    else:
        root = _stem(first)
        weight = min(len(root), LONGEST_LENGTH) / FULL_LENGTH
        grams = _ngrams(first)
        hashed = [_hashed(f"w:{root}", weight)]
        hashed += [_hashed(f"c:{gram}", weight * NGRAM_WEIGHT / math.sqrt(len(grams))) for gram in grams]
    return np.array([place for place, _ in hashed], np.int16), np.array([weight for _, weight in hashed])


def _ngrams(word: str) -> list[str]:
    padded = f"<{word[:NGRAM_CHARACTERS]}>"
    return [padded[i : i + n] for n in NGRAM_SIZES for i in range(len(padded) - n + 1)]


def _stem(word: str) -> str:
    return word if word in NEGATIONS else stem(word.removesuffix("'s"))


def _hashed(feature: str, weight: float) -> tuple[int, float]:
    # CRC-32, because Python's hash differs between processes. The lowest bit is the sign.
    code = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
    return (code >> 1) % DIMENSIONS, weight if code & 1 else -weight
