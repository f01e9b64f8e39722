"""Find where words occur in a text, without a regular expression: much faster for words that occur seldom."""

from __future__ import annotations

from collections.abc import Iterable


def occurrences(text: str, words: Iterable[str]) -> list[int]:
    """The positions of ``words`` in ``text``, in order. The words are in small letters; the text's case is ignored."""
    lowered = text.lower()
    if len(lowered) != len(text):  # a letter such as the Turkish İ becomes two
        lowered = "".join(one if len(one.lower()) > 1 else one.lower() for one in text)
    found = set[int]()
    for word in words:
        at = lowered.find(word)
        while at >= 0:
            found.add(at)
            at = lowered.find(word, at + len(word))
    return sorted(found)
