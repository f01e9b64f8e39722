"""The built-in embedder: hashed words and character n-grams. It needs no model and no network.

Texts with the same words get near vectors. Texts with the same meaning but different words do not get near vectors. The
vector of a text is

    Σ over its words: (1 + ln count) · vector of the word
    + Σ over pairs of neighbouring content words: (1 + ln count) · 0.3 at the pair's hashed place

The vector of a word has a number for the word's stem, and a number for each character 3-gram and 4-gram of the word. A
hash decides the place and the sign of each number. (This is the "hashing trick": Weinberger et al., ICML 2009. N-grams
within word bounds come from fastText: Bojanowski et al., TACL 2017.) A stem weighs min(length, 8) / 5, because longer
words are rarer, and the embedder has no corpus to count words in. A stop word weighs 0.1. Example: the stem of
"peanuts" is "peanut". This stem has 6 letters and weighs 1.2. All n-grams of "peanuts" together weigh 0.8 · 1.2 = 0.96.

The weights were chosen on the development half of LoCoMo, a benchmark of long conversations. There, ranking by cosine
similarity alone finds a share of 0.38 of an answer's evidence among its ten best results (evidence recall@10). With
equal weights for all words, the share is 0.33. Any change of the vectors needs a new ``name``, because vectors of
different versions must not be compared.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from nexus_tasks import forks
from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.embeddings.turns import Turns
from nexus_tasks.embeddings.unit import unit
from nexus_tasks.text import MOST_KEPT, NEGATIONS, STOP_WORDS, stem, words

DIMENSIONS = 384
NGRAM_SIZES = (3, 4)
# The weight of all n-grams of a word together, as a multiple of the stem's weight. The weight is exact only when the
# hash gives each n-gram a place of its own.
NGRAM_WEIGHT = 0.8
PAIR_WEIGHT = 0.3
STOP_WEIGHT = 0.1
FULL_LENGTH, LONGEST_LENGTH = 5, 8  # a stem of 5 letters weighs 1, and a stem of 8 or more letters weighs 1.6
NGRAM_CHARACTERS = 40  # only a word's first 40 characters make n-grams, because base64 text may be one very long word
CHUNK = 512  # texts per step; a smaller step needs less memory
# A step with more characters than this takes a third of a second or more. The threads of a process do such steps in
# turns. Otherwise the long messages of one tenant slow down all other threads of a worker.
LONG_STEP = 50_000
TURN = 0.25  # seconds
# A text with more characters than this takes up to 250 MB of memory. A process embeds one such text at a time.
LONG_TEXT = 200_000
WORDS_AT_ONCE = 500  # words or terms between two looks at the clock
TERMS_AT_ONCE = 20_000  # the features of so many terms are in memory at a time, and are then added up

_long_steps, _long_texts = Turns(TURN), Turns(math.inf)
# A thread of the parent, which a forked child lacks, may have its turn.
forks.after_in_child(_long_steps.renew)
forks.after_in_child(_long_texts.renew)

_Features = tuple[NDArray[np.int16], NDArray[np.float32]]  # places, signed weights


class HashingEmbedder:
    """The embedder that hashes words and n-grams. A text has the same vector on every machine and in every process.

    Threads may share the object.
    """

    name = "hashing-384"
    dimensions = DIMENSIONS

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, ``float32[len(texts), 384]``, in the order of ``texts``.

        A text of only white space gets the first unit vector in place of zeros (see :func:`unit`).
        """
        chunks = (texts[i : i + CHUNK] for i in range(0, len(texts), CHUNK))
        return np.concatenate([np.zeros((0, DIMENSIONS), np.float32), *map(_in_turn, chunks)])


def _in_turn(texts: Sequence[str]) -> Vectors:
    sums = np.zeros((len(texts), DIMENSIONS))
    if sum(map(len, texts)) <= LONG_STEP:
        _add(sums, texts, lambda: None)
        return unit(sums)
    alone = [row for row, text in enumerate(texts) if len(text) > LONG_TEXT]
    for row in alone:
        with _long_texts, _long_steps:
            _add(sums[row : row + 1], [texts[row]], _long_steps.pass_on)
    with _long_steps:
        _add(sums, ["" if len(text) > LONG_TEXT else text for text in texts], _long_steps.pass_on)
    return unit(sums)


def _add(sums: NDArray[np.float64], texts: Sequence[str], pause: Callable[[], None]) -> None:
    """Add the features of each text to the text's row of ``sums``.

    Args:
        pause: is called now and then, so that other threads can compute.
    """
    features: list[_Features] = []
    owners: list[int] = []
    factors: list[float] = []
    for row, text in enumerate(texts):
        pause()
        for n, (term, count) in enumerate(_terms(text, pause).items()):
            if n % WORDS_AT_ONCE == 0:
                pause()
            if len(features) == TERMS_AT_ONCE:
                _scatter(sums, features, owners, factors)
                features, owners, factors = [], [], []
            features.append(_features(*term))
            owners.append(row)
            factors.append(1.0 + math.log(count))
    _scatter(sums, features, owners, factors)


def _terms(text: str, pause: Callable[[], None]) -> Counter[tuple[str, ...]]:
    """Count the words of ``text``, and the pairs of stems of neighbouring content words."""
    # A text without letters and digits, such as a text of emoji, is split at white space.
    found = words(text) or text.split()
    content: list[str] = []
    for i in range(0, len(found), WORDS_AT_ONCE):
        pause()
        content += [_stem(word) for word in found[i : i + WORDS_AT_ONCE] if word not in STOP_WORDS]
    return Counter(chain(((word,) for word in found), pairwise(content)))


def _scatter(sums: NDArray[np.float64], features: list[_Features], owners: list[int], factors: list[float]) -> None:
    """Add the features (places and weights) of terms to ``sums``.

    The features of a term are multiplied by the term's factor, and added to the row of the text with the term.

    Args:
        owners: for each term, the row of its text.
    """
    if not features:
        return
    sizes = [len(places) for places, _ in features]
    rows = np.repeat(np.array(owners, np.int64) * DIMENSIONS, sizes)
    places = rows + np.concatenate([places for places, _ in features])
    weights = np.repeat(np.array(factors), sizes) * np.concatenate([weights for _, weights in features])
    # This always adds in the same order, unlike a matrix product. So the rounding is the same on every machine.
    np.add.at(sums.reshape(-1), places, weights)


def _features(first: str, second: str | None = None) -> _Features:
    if second is None:
        return _word_features(first)
    # Pairs are not kept: few of them come again soon, and they would push the words out of the cache.
    return _arrays([_hashed(f"p:{first} {second}", PAIR_WEIGHT)])


@lru_cache(maxsize=MOST_KEPT)  # 10,000 words take about 6 MiB
def _word_features(word: str) -> _Features:
    if word in STOP_WORDS:
        return _arrays([_hashed(f"w:{word}", STOP_WEIGHT)])
    root = _stem(word)
    weight = min(len(root), LONGEST_LENGTH) / FULL_LENGTH
    grams = _ngrams(word)
    hashed = [_hashed(f"w:{root}", weight)]
    hashed += [_hashed(f"c:{gram}", weight * NGRAM_WEIGHT / math.sqrt(len(grams))) for gram in grams]
    return _arrays(hashed)


def _arrays(hashed: Sequence[tuple[int, float]]) -> _Features:
    return np.array([place for place, _ in hashed], np.int16), np.array([weight for _, weight in hashed])


def _ngrams(word: str) -> list[str]:
    padded = f"<{word[:NGRAM_CHARACTERS]}>"
    return [padded[i : i + n] for n in NGRAM_SIZES for i in range(len(padded) - n + 1)]


def _stem(word: str) -> str:
    return word if word in NEGATIONS else stem(word.removesuffix("'s"))


def _hashed(feature: str, weight: float) -> tuple[int, float]:
    # CRC-32 is the same in every process, while Python's hash is not. The lowest bit of the code decides the sign.
    code = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
    return (code >> 1) % DIMENSIONS, weight if code & 1 else -weight
