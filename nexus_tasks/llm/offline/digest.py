"""The offline digest: the most important sentences of a session in the session's order, in a short and a long version.

Sentences are chosen one after the other. Each time, the sentence with the highest value is chosen. The value is

    prior · Σ weights of the sentence's words / √(length in characters + 1)

A word starts with the weight ln(1 + number of sentences with the word). When a sentence is chosen, the weights of its
words are multiplied by 0.3. So a sentence with frequent words has a high value, and a sentence that repeats chosen
words has a low value. The use of word frequency comes from SumBasic (Nenkova and Vanderwende, 2005). The lower weight
of chosen words comes from Lin and Bilmes (ACL 2011). The prior is a factor that depends on the kind of sentence. For a
sentence from the previous digest it is 1.25 times as high, because that sentence summarizes a longer time. All factors
are chosen by hand, not measured.
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

CHARACTERS_PER_TOKEN = 4  # the same number as in text.estimate_tokens
REPEATED = 0.3  # a word's weight is multiplied by this factor each time a sentence with the word is chosen
# Sentences of the previous digest may use only this share of the room, unless the new sentences leave room over.
OLD_SHARE = 2 / 3
VAGUE = 0.3  # the factor of the weight of a vague word (see statements.is_vague)
# The prior of a sentence is a product of factors. A sentence of the previous digest has the factor PREVIOUS. A sentence
# about a change has CHANGE. A sentence with n kinds of markers (see statements.strength) has 1 + n · PER_MARKER. A
# sentence of line i of the n new lines has 1 + LATEST · i / n. A sentence that is not a statement has NO_STATEMENT.
PREVIOUS, CHANGE, PER_MARKER, LATEST, NO_STATEMENT = 1.25, 1.25, 0.25, 0.2, 0.25
_CHANGE = re.compile(
    r"\b(?:decided|agreed|deadline|moved|switched|changed|now|no longer|any ?more|instead|prefers?|plan|will)\b",
    re.IGNORECASE,
)
_SPEAKER = re.compile(r"(?:[-*•] )?(?P<speaker>[^:]{1,64}): (?P<said>.*)")


@dataclass(frozen=True, kw_only=True)
class _Sentence:
    place: int  # the sentence's position among all candidates
    source: int  # the number of the sentence's line. Chosen sentences of one line are joined to one line again.
    old: bool  # whether the sentence is from the previous digest
    speaker: str
    text: str
    words: tuple[str, ...]
    prior: float  # the factor of the sentence's value that does not change while other sentences are chosen

    @property
    def line(self) -> str:
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


def digest(material: DigestMaterial) -> Digest:
    """The short and the long digest, each within its limit. Every sentence comes from the material, word for word."""
    ranked = list(_ranked(_candidates(material)))
    return Digest(short=_rendered(ranked, material.short_tokens), long=_rendered(ranked, material.long_tokens))


# --- candidates -------------------------------------------------------------------------------------------------------
def _candidates(material: DigestMaterial) -> list[_Sentence]:
    """The sentences of the previous digest, followed by the sentences of the lines. No sentence occurs twice."""
    old = list(_previous(material.previous))
    lines = [line for line in material.lines if line.role not in ("tool", "system")]
    found: dict[str, _Sentence] = {}
    for source, (speaker, text) in enumerate(old):
        for sentence in spoken(text):
            _add(found, source, speaker, sentence, PREVIOUS, old=True)
    for number, line in enumerate(lines):
        latest = 1 + LATEST * (number + 1) / len(lines)
        if line.role == "digest":  # This line is the digest of a chunk. Its sentences were chosen from the chunk.
            for speaker, text in _previous(line.content):
                for sentence in spoken(text):
                    _add(found, len(old) + number, speaker, sentence, latest)
            continue
        for sentence in spoken(line.content):
            if line.role == "fact" or is_statement(sentence):
                _add(found, len(old) + number, line.author, sentence, latest)
            elif len(content_words(sentence)) > 2:
                _add(found, len(old) + number, line.author, sentence, latest * NO_STATEMENT)
    if not found:  # All lines are small talk. A digest of small talk is better than an empty digest.
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
    """The lines of an earlier digest as pairs (speaker, text).

    When another model wrote the digest, a line may have no speaker. The speaker in the pair is then empty.
    """
    for line in text.splitlines():
        match = _SPEAKER.fullmatch(line.strip())
        yield (match["speaker"], match["said"]) if match else ("", line)


# --- ranking ----------------------------------------------------------------------------------------------------------
def _ranked(candidates: list[_Sentence]) -> Iterator[_Sentence]:
    """All candidates in the order in which they are chosen.

    A choice never raises the value (gain) of another sentence. So the gains in the heap may be out of date, but never
    too low. The gain of the sentence at the top of the heap is computed again. When it is still the highest, this
    sentence is chosen.
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
            weights[word] *= REPEATED


# --- rendering --------------------------------------------------------------------------------------------------------
def _rendered(ranked: list[_Sentence], tokens: int) -> str:
    """The best sentences that fit into ``tokens``, in the session's order.

    When no sentence fits, the result is the start of the best sentence.
    """
    limit = tokens * CHARACTERS_PER_TOKEN
    chosen: dict[int, _Sentence] = {}
    # Each line is counted with a line break, but the last line needs no line break. So there is room for 1 more.
    left, left_for_old = limit + 1, int(limit * OLD_SHARE)
    for share in (True, False):  # In the second round, old sentences may use all room that is left.
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
