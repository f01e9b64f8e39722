"""Digesting: the sentences that matter most, in their order, within two limits.

Sentences are chosen one after the other by the weight of the words they add, per square root of their length. A word
weighs ln(1 + sentences it occurs in) and loses most of it each time it is told again, so that frequent words make a
sentence central and repetition makes it redundant (word frequency after SumBasic: Nenkova and Vanderwende, 2005;
diminishing returns after Lin and Bilmes, ACL 2011). The previous digest's sentences compete with the new ones, at a
small advantage, because each stands for a longer past.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nexus_tasks.llm.answers import Digest, DigestMaterial
from nexus_tasks.llm.offline.statements import is_statement, is_vague, spoken, strength
from nexus_tasks.text import content_words, fold, shorten

CHARACTERS_PER_TOKEN = 4  # as text.estimate_tokens counts
TOLD_AGAIN = 0.3  # of a word's weight is left each time it is told again
OLD_SHARE = 2 / 3  # of the room, at most, goes to the previous digest while new sentences want it: digests move on
VAGUE = 0.3  # of its weight has a word that fills a sentence
# What a sentence is worth before its words are looked at: factors for having been chosen before, for speaking of a
# change, for each kind of plain marker, for standing at the end of the window, and for stating nothing.
PREVIOUS, CHANGE, PER_MARKER, LATEST, NO_STATEMENT = 1.25, 1.25, 0.25, 0.2, 0.25
_CHANGE = re.compile(
    r"\b(?:decided|agreed|deadline|moved|switched|changed|now|no longer|any ?more|instead|prefers?|plan|will)\b",
    re.IGNORECASE,
)
_SPEAKER = re.compile(r"(?:[-*•] )?(?P<speaker>[^:]{1,64}): (?P<said>.*)")


@dataclass(frozen=True, kw_only=True)
class _Sentence:
    place: int  # in the order of telling
    source: int  # sentences of one source are told on one line
    old: bool  # of the previous digest
    speaker: str
    text: str
    words: tuple[str, ...]
    prior: float  # its worth before its words are looked at

    @property
    def line(self) -> str:
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


def digest(material: DigestMaterial) -> Digest:
    """Both digests. Everything in them was said, in these words; neither is longer than its limit."""
    ranked = list(_ranked(_candidates(material)))
    return Digest(short=_told(ranked, material.short_tokens), long=_told(ranked, material.long_tokens))


# --- what there is to tell --------------------------------------------------------------------------------------------
def _candidates(material: DigestMaterial) -> list[_Sentence]:
    """The sentences of the previous digest and of the lines, in order, each wording once."""
    old = list(_previous(material.previous))
    lines = [line for line in material.lines if line.role not in ("tool", "system")]
    found: dict[str, _Sentence] = {}
    for source, (speaker, text) in enumerate(old):
        for sentence in spoken(text):
            _add(found, source, speaker, sentence, PREVIOUS, old=True)
    for number, line in enumerate(lines):
        latest = 1 + LATEST * (number + 1) / len(lines)
        if line.role == "digest":  # of a part of the window: chosen once already
            for speaker, text in _previous(line.content):
                for sentence in spoken(text):
                    _add(found, len(old) + number, speaker, sentence, latest)
            continue
        for sentence in spoken(line.content):
            if line.role == "fact" or is_statement(sentence):
                _add(found, len(old) + number, line.author, sentence, latest)
            elif len(content_words(sentence)) > 2:
                _add(found, len(old) + number, line.author, sentence, latest * NO_STATEMENT)
    if not found:  # nothing but small talk: better told than an empty digest
        for number, line in enumerate(lines):
            _add(found, number, line.author, " ".join(line.content.split()), NO_STATEMENT)
    return list(found.values())


def _add(
    found: dict[str, _Sentence], source: int, speaker: str, sentence: str, prior: float, *, old: bool = False
) -> None:
    if sentence and fold(sentence) not in found:
        words = tuple(dict.fromkeys(content_words(sentence)))
        prior *= (1 + PER_MARKER * strength(sentence)) * (CHANGE if _CHANGE.search(sentence) else 1)
        found[fold(sentence)] = _Sentence(
            place=len(found), source=source, old=old, speaker=speaker, text=sentence, words=words, prior=prior
        )


def _previous(text: str) -> Iterator[tuple[str, str]]:
    """The lines of an earlier digest as (speaker, what was said); other models write lines without a speaker."""
    for line in text.splitlines():
        match = _SPEAKER.fullmatch(line.strip())
        yield (match["speaker"], match["said"]) if match else ("", line)


# --- what matters most ------------------------------------------------------------------------------------------------
def _ranked(candidates: list[_Sentence]) -> Iterator[_Sentence]:
    """All candidates, each the one that adds most to those before it.

    Gains only ever shrink, so the best of a heap of old gains is the best of all once its own gain is up to date.
    """
    counts = Counter(word for found in candidates for word in found.words)
    weights = {word: math.log1p(count) * (VAGUE if is_vague(word) else 1) for word, count in counts.items()}

    def gain(sentence: _Sentence) -> float:
        return sentence.prior * sum(weights[word] for word in sentence.words) / math.sqrt(len(sentence.line) + 1)

    heap = [(-gain(sentence), sentence.place, sentence) for sentence in candidates]
    heapq.heapify(heap)
    while heap:
        _, place, best = heapq.heappop(heap)
        current = gain(best)
        if heap and current < -heap[0][0]:
            heapq.heappush(heap, (-current, place, best))
            continue
        yield best
        for word in best.words:
            weights[word] *= TOLD_AGAIN


# --- telling it -------------------------------------------------------------------------------------------------------
def _told(ranked: list[_Sentence], tokens: int) -> str:
    """The best sentences that fit into ``tokens``, in their order; the start of the best one when none fits."""
    limit = tokens * CHARACTERS_PER_TOKEN
    chosen: dict[int, _Sentence] = {}
    left, left_for_old = limit + 1, int(limit * OLD_SHARE)  # the last line needs no line break
    for share in (True, False):  # what the new ones leave, the old ones may have
        for sentence in ranked:
            length = len(sentence.line) + 1
            if sentence.place in chosen or length > left or (share and sentence.old and length > left_for_old):
                continue
            chosen[sentence.place] = sentence
            left -= length
            left_for_old -= length if sentence.old else 0
    if not chosen and ranked:
        return shorten(ranked[0].line, limit)
    return "\n".join(_lines(chosen[place] for place in sorted(chosen)))


def _lines(chosen: Iterable[_Sentence]) -> Iterator[str]:
    line, source = "", -1
    for sentence in chosen:
        if sentence.source == source and line.endswith((".", "!", "?", "…")):
            line += f" {sentence.text}"
            continue
        if line:
            yield line
        line, source = sentence.line, sentence.source
    if line:
        yield line
