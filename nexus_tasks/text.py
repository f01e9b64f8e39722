"""Count tokens and find words, sentences and hashes of a text, without a language model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

from nexus_tasks.types.unicode_form import nfc

# Scripts written without spaces. Each character counts as a word, so that two such texts can share words.
_SPACELESS = "\u3041-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_LETTER = rf"[^\W_{_SPACELESS}]"
# Combining marks (Latin, Cyrillic, Hebrew, Arabic, Indic, Thai, Lao, Myanmar, Khmer) and the joiners of Persian and
# Indic scripts. `re` does not count them as word characters, so without this table "हिन्दी" would be four words. The
# table lacks other scripts (Thaana and Tibetan, for example), so their words are split at the marks. The package
# `regex` has all marks as \p{M}, but it would be a new dependency, and it is slower: it splits 10,000 texts of 71
# characters in 339 ms, and `re` in 60 ms. Content hashes and hashed vectors are stored. After a change of the table,
# new hashes and vectors would not match the stored ones.
_MARK = (
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u06df-\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u0900-\u0963\u0971-\u0df3\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc"
    "\u0ec8-\u0ece\u102b-\u103e\u17b4-\u17d3\u200c\u200d]"
)
# A number keeps its separators and its unit: 4,000  3.5  10:30am  3.11.2. All quantifiers in these patterns are
# possessive (they never backtrack), so the time to match is never quadratic in the length of the text.
_NUMBER = rf"\d(?:\d{{0,2}}+(?:,\d{{3}}(?!\d))++|\d*+)(?:[.:]\d+)*+{_LETTER}*+"
_NAME = rf"{_LETTER}++(?:{_MARK}++{_LETTER}*+)*+(?:'{_LETTER}++|(?:(?<=\d)\.\d++)++)?+"  # don't, हिन्दी, v3.11
_WORD = re.compile(rf"{_NUMBER}|{_NAME}|[{_SPACELESS}]")
_GROUPED = re.compile(r"(?<=\d),(?=\d)")

_EMOJI = "\u2600-\u27bf\u2b50\u2b55\u20e3\ufe0f\u200d\U0001f000-\U0001faff\U000e0020-\U000e007f"
# The pattern matches the places where a sentence may end: terminators (with the closing quotes and emoji after them),
# emoji alone, and full stops of scripts without spaces. In the line, each run of white space is one space already.
# `_ends` decides whether a match ends a sentence.
_END = re.compile(
    rf"(?:(?P<mark>[.!?…]++)(?P<close>[\"'”’»)\]*_]*+)|(?P<emoji>[{_EMOJI}]++))(?: ?[{_EMOJI}]++)*+"
    "|[。！？]++[」』”’）]*+"
)
_TRAILING = " .!?,;:…"


def _set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# A full stop after one of these never ends a sentence.
_TITLES = _set(
    "dr mr mrs ms mx prof rev hon gen col sgt capt lt fr mt vs e.g i.e eg ie cf approx fig figs vol pp al resp"
)
# A full stop after one of these ends a sentence only when a capital follows.
_ABBREVIATIONS = _set(
    "etc inc ltd co corp st ave rd blvd dept est jr sr a.m p.m u.s u.k u.s.a d.c ph.d b.sc m.sc b.a m.a jan feb mar "
    "apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun min max hr hrs mins secs"
)
# English words that carry no content. Negations carry content, so the list has no negation.
STOP_WORDS = _set(
    """a about above after again all also am an and any are as at be because been before being below between both but by
    can could did do does doing down during each few for from further had has have having he her here hers herself him
    himself his how i if in into is it its itself just me more most my myself of off on once only or other our ours
    ourselves out over own same she should so some such than that the their theirs them themselves then there these they
    this those through to too under until up very was we were what when where which while who whom why will with would
    you your yours yourself yourselves i'm i've i'd i'll you're you've you'll you'd he's she's it's we're we've we'll
    they're they've they'll that's there's what's let's here's how's where's who's it'll that'll he'll she'll he'd she'd
    we'd they'd im ive oh hey hi yeah well really"""
)
# Stop words that change the meaning of a sentence: its person, time, condition or direction. Two facts that differ in
# one of these words differ in meaning ("before lunch", "after lunch"). The keys are the words, and the values are the
# markers that stand for the words in a content key.
_MEANING_MARKERS = {
    word: noted
    for noted, listed in {
        "he": "he him his himself he's he'd he'll",
        "she": "she her hers herself she's she'd she'll",
        "they": "they them their theirs themselves they're they've they'd they'll",
        "you": "you your yours yourself yourselves you're you've you'd you'll",
        "was": "was were",
    }.items()
    for word in listed.split()
} | {
    word: word
    for word in _set(
        "had did can could should would will if or until before after from under above below off out down few more"
        " most only other"
    )
}
NEGATIONS = _set(
    """no not never none nobody nothing neither nor nowhere without cannot can't won't don't doesn't didn't isn't aren't
    wasn't weren't hasn't haven't hadn't shouldn't wouldn't couldn't mustn't needn't ain't dont doesnt didnt isnt cant
    wont"""
)


def estimate_tokens(text: str) -> int:
    """Tokens of ``text``, estimated as characters / 4, rounded up."""
    return -(-len(text) // 4)


def most_tokens(text: str) -> int:
    """A high estimate of the tokens of ``text``: a quarter of its ASCII characters, half the bytes of all others.

    So a Japanese character counts as 1.5 tokens, and a Cyrillic letter as one (chosen by hand, not measured).
    """
    plain = len(text.encode("ascii", "ignore"))
    return -(-plain // 4) + -(-(len(text.encode("utf-8", "replace")) - plain) // 2)


def words(text: str) -> list[str]:
    """The words of ``text`` in order: in Unicode NFC, in lower case, with straight apostrophes, without punctuation.

    A number with its separators and unit is one word ("4,000", "3.5km", "10:30"). In scripts without spaces each
    character is one word.
    """
    return _WORD.findall(_lower(text).replace("’", "'"))


def _lower(text: str) -> str:
    # Lower-casing can separate a letter from its mark ("İ"), so the result is normalised again.
    return nfc(nfc(text).lower())


# A process keeps the stems, markers and vectors of so many words. In 7,400 messages a cache of 10,000 words has 96.7 %
# of the words, and a cache without a limit has 97.1 %. A larger cache fills with numbers and names that never come
# again, and a worker that fills it for days seems to leak memory.
MOST_KEPT = 10_000


# A longer word has no stem, and is not kept. The stemmer takes minutes for a word of a million letters.
_LONGEST_STEMMED = 100


def stem(word: str) -> str:
    """The English (Snowball) stem of a lower-case word. Safe to call from many threads, and after a fork."""
    return _stem(word) if len(word) <= _LONGEST_STEMMED else word


@lru_cache(maxsize=MOST_KEPT)
def _stem(word: str) -> str:
    # A stemmer keeps the current word, so each call makes its own. This takes 1 % of the time that the word takes. A
    # process that is forked while a thread holds the lock of a shared stemmer would wait for the lock for ever.
    return str(_stemmer().stemWord(word))


def _stemmer() -> Any:
    import snowballstemmer  # imported here, because it has a module for each of 30 languages

    return snowballstemmer.stemmer("english")


def content_words(text: str) -> list[str]:
    """Stems of all words but the stop words, in order. Numbers and negations are kept.

    Every negation becomes ``not``, so that "don't", "never" and "no" are equal. "4,000" becomes "4000".
    """
    found = (word for word in words(text) if word not in STOP_WORDS)
    return [_content(word) if len(word) <= _LONGEST_STEMMED else word for word in found]


@lru_cache(maxsize=MOST_KEPT)
def _content(word: str) -> str:
    if word in NEGATIONS:
        return "not"
    if word[0].isdigit():
        return _GROUPED.sub("", word)
    return stem(word.removesuffix("'s"))


# Thai, Lao, Burmese and Khmer have no spaces between words, and a single letter says nothing.
_UNDIVIDED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
_RUN = re.compile(rf"[{_SPACELESS}]{{2,}}+")
# By script: how many letters may stand before a word, such as an article, and how many its shortest form has. A short
# word may be a name, such as "Eva" or "Оля", of which other forms ("Evou", "Олю") have two letters in common.
_AROUND = (
    (re.compile("[\uac00-\ud7a3]"), 1, 2),  # Korean
    (re.compile("[\u0590-\u06ff]"), 3, 3),  # Hebrew and Arabic
    (re.compile("^[a-z]{2}[aeiouy]{1,2}$"), 0, 2),
    (re.compile("^[a-z]{3,5}$"), 0, 3),
    (re.compile("^[a-z\u00df-\u058f]{3,4}$"), 0, 2),  # Latin with marks, Greek, Cyrillic and Armenian
    (re.compile("[^\x00-\x7f]"), 0, 3),
)
_ASCII = 0, 4
_SHORTEST_NAME = 3  # letters of a word beside an apostrophe
_ENDING = 3  # letters that an ending may have; like the figures above chosen by hand, not measured


def word_forms(text: str) -> set[str]:
    """The content words of ``text``, and with ``~`` before them the parts that other forms of a word have too.

    One text says "Ивана" or "김철수입니다", and another one "Иван" or "김철수는". So the parts of a word are the word
    without up to three letters of its end. The parts of scripts without spaces are pairs of neighbouring characters,
    and groups of three letters of Thai and the like. Words that only begin alike may have a part in common, too.
    """
    found = set[str]()
    for word in content_words(text):
        found.add(word)
        if "'" in word:  # d'Eva, Ali'nin
            found.update(stem(part) for part in word.split("'") if len(part) >= _SHORTEST_NAME)
        found.update(_parts(word) if len(word) <= _LONGEST_STEMMED else _parts.__wrapped__(word))
    for run in _RUN.findall(_lower(text)):
        found.update(f"~{first}{second}" for first, second in pairwise(run))
    return found


@lru_cache(maxsize=MOST_KEPT)
def _parts(word: str) -> frozenset[str]:
    if any(map(str.isdigit, word)):
        return frozenset()
    if _UNDIVIDED.search(word):
        return frozenset(f"~{word[at : at + 3]}" for at in range(len(word) - 2))
    before, shortest = next((around for script, *around in _AROUND if script.search(word)), _ASCII)
    return frozenset(
        f"~{part[first:last]}"
        for part in word.split("'")  # Mehmet'in, d'Ivan
        for first in range(before + 1)
        for last in range(len(part) - _ENDING, len(part) + 1)
        if last - first >= shortest
    )


def meaning_markers(text: str) -> list[str]:
    """The markers of the words in ``text`` that change its meaning, in order.

    Markers stand for persons (``he``, ``she``), directions (``before``, ``from``) and times (``will``, ``was``). The
    marker ``-ed`` stands for a regular past.
    """
    return [marker for word in words(text) for marker in _markers(word)]


@lru_cache(maxsize=MOST_KEPT)
def _markers(word: str) -> tuple[str, ...]:
    if word not in STOP_WORDS:
        past = word.endswith("ed") and not stem(word).endswith("ed")
        return ("-ed",) if past else ()
    found = _MEANING_MARKERS.get(word), {"ll": "will", "d": "would"}.get(word.rpartition("'")[2])
    return tuple(marker for marker in found if marker)


def marked_words(text: str) -> list[str]:
    """The content words of ``text`` and the markers of the words that change its meaning, in order."""
    return [
        part for word in words(text) for part in (*_markers(word), *(() if word in STOP_WORDS else (_content(word),)))
    ]


def sentences(text: str) -> list[str]:
    """Split ``text`` at sentence ends and line breaks. Each run of white space becomes one space.

    The text is not split after an abbreviation ("Dr. Lee", "e.g. this"), an initial, the number of a list item ("1."),
    or "..." before a lower-case word. Decimals and addresses are not split. Emoji stay with the sentence before them.
    The time is linear in the length of ``text``.
    """
    return [piece for line in text.splitlines() for piece in _split(" ".join(line.split())) if piece]


def _split(line: str) -> Iterator[str]:
    start = 0
    for match in _END.finditer(line):
        if _ends(line, start, match):
            yield line[start : match.end()].strip()
            start = match.end()
    yield line[start:].strip()


def _ends(line: str, start: int, match: re.Match[str]) -> bool:
    """Whether the sentence that began at ``start`` ends with ``match``."""
    mark, after = match["mark"], line[match.end() : match.end() + 2]
    if mark is None and match["emoji"] is None:
        return True  # the match is a full stop of a script without spaces
    if not after:
        return True
    if after[0] != " ":
        return False  # the match is inside a number, an address or a file name
    following = after[1]
    if mark is None:
        return following.isupper() and "❤" not in match["emoji"]  # a heart may stand for a verb
    if mark == ".":
        return _full_stop_ends(line, start, match.start(), following)
    if match["close"] or mark.startswith(("..", "…")):
        return not following.islower()  # '"Really?" she said', "well... maybe"
    return True


def _full_stop_ends(line: str, start: int, stop: int, following: str) -> bool:
    begin = max(line.rfind(" ", start, stop) + 1, start)
    token = line[begin:stop].lstrip("([\"'“‘")
    word = token.lower()
    if word in _TITLES:
        return False
    if word in _ABBREVIATIONS:
        return following.isupper()
    if word == "no":
        return not following.isdigit()  # "No. 5"
    if token.isdecimal():
        return bool(line[start:begin].strip())  # "1. First": the number of a list
    return not (len(token) == 1 and token.isupper() and token != "I" and following.isupper())  # "J. Smith"


def fold(text: str) -> str:
    """``text`` in NFC and lower case, with single spaces, without trailing punctuation.

    A text that consists of punctuation only keeps its punctuation.
    """
    folded = " ".join(_lower(text).split())
    return folded.rstrip(_TRAILING) or folded


def content_hash(text: str) -> str:
    """Hex SHA-256 of the folded ``text`` (see :func:`fold`)."""
    return _sha256(fold(text))


def content_key(text: str) -> str:
    """Hex SHA-256 of the content words and the meaning markers of ``text``, in order.

    Two wordings have the same key when they differ only in inflection and in stop words without a marker. The order
    counts, because "Tuesday, not Thursday" and "Thursday, not Tuesday" have the same words. The markers count, because
    "I live in Berlin" and "I lived in Berlin" differ in meaning. A text without content words gets its
    :func:`content_hash`.
    """
    return _sha256(" ".join(marked_words(text))) if content_words(text) else content_hash(text)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def shorten(text: str, characters: int) -> str:
    """``text`` cut to at most ``characters`` at a word boundary, with an ellipsis when it was cut."""
    if len(text) <= characters:
        return text
    if characters < 1:
        return ""
    head = text[: characters - 1]
    cut = head.rfind(" ")
    return (head[:cut] if cut > characters // 2 else head).rstrip(" ,;:") + "…"


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Jaccard similarity of two word sets, 0 to 1: shared words / all words. Two empty sets give 0."""
    union = len(left | right)
    return len(left & right) / union if union else 0.0
