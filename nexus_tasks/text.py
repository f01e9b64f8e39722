"""What is read out of a text without a model: its tokens, sentences, content words and hashes."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache

import snowballstemmer

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
# A sentence ends at . ! ? (and closing quotes) before white space, or at a line break.
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|\s*\n+\s*")
_TRAILING = re.compile(r"[\s.!?,;:…]+$")

# English words that carry no content of their own. Negations are content and therefore not in it.
STOP_WORDS = frozenset(
    """a about above after again all also am an and any are as at be because been before being below between both but by
    can could did do does doing down during each few for from further had has have having he her here hers herself him
    himself his how i if in into is it its itself just me more most my myself of off on once only or other our ours
    ourselves out over own same she should so some such than that the their theirs them themselves then there these they
    this those through to too under until up very was we were what when where which while who whom why will with would
    you your yours yourself yourselves i'm i've i'd i'll you're you've you'll you'd he's she's it's we're we've we'll
    they're they've they'll that's there's what's let's oh hey hi yeah well really""".split()
)
NEGATIONS = frozenset(
    "no not never none nobody nothing neither nor nowhere without cannot can't won't don't doesn't didn't isn't aren't "
    "wasn't weren't hasn't haven't hadn't shouldn't wouldn't couldn't stopped quit".split()
)


def estimate_tokens(text: str) -> int:
    """Tokens of ``text``, estimated as characters / 4, rounded up."""
    return -(-len(text) // 4)


def words(text: str) -> list[str]:
    """The words of ``text``: NFC, lower case, apostrophes straightened, punctuation off, in order."""
    folded = unicodedata.normalize("NFC", text).lower().replace("’", "'")
    return _WORD.findall(folded)


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """The English (Snowball) stem of a lower-case word."""
    return str(_stemmer().stemWord(word))


@lru_cache(maxsize=1)
def _stemmer() -> snowballstemmer.stemmer:
    return snowballstemmer.stemmer("english")


def content_words(text: str) -> list[str]:
    """Stems of the words that carry content, in order: stop words off, numbers and negations kept.

    Every negation becomes ``not``, so that "don't", "never" and "no" agree with each other.
    """
    found = []
    for word in words(text):
        if word in NEGATIONS:
            found.append("not")
        elif word not in STOP_WORDS:
            found.append(stem(word.removesuffix("'s")))
    return found


def sentences(text: str) -> list[str]:
    """``text`` split at sentence ends and line breaks; white space folded, empty pieces left out."""
    pieces = (" ".join(piece.split()) for piece in _SENTENCE.split(text))
    return [piece for piece in pieces if piece]


def content_hash(text: str) -> str:
    """Hex SHA-256 of ``text`` folded to NFC, lower case, single spaces, without trailing punctuation."""
    folded = " ".join(unicodedata.normalize("NFC", text).lower().split())
    return hashlib.sha256(_TRAILING.sub("", folded).encode()).hexdigest()


def content_key(text: str) -> str:
    """Hex SHA-256 of the content words *in order*: equal for rewordings that differ in stop words and inflection only.

    Order matters on purpose: "Tuesday, not Thursday" and "Thursday, not Tuesday" have the same words.
    A text without content words falls back to its :func:`content_hash`.
    """
    found = content_words(text)
    return hashlib.sha256(" ".join(found).encode()).hexdigest() if found else content_hash(text)


def shorten(text: str, characters: int) -> str:
    """``text`` cut to at most ``characters``, at a word boundary, with an ellipsis when something was cut."""
    if len(text) <= characters:
        return text
    head = text[: max(characters - 1, 0)]
    cut = head.rfind(" ")
    return (head[:cut] if cut > characters // 2 else head).rstrip(" ,;:") + "…"


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Jaccard similarity of two word sets, 0 to 1; two empty sets are not alike (0)."""
    union = len(left | right)
    return len(left & right) / union if union else 0.0
