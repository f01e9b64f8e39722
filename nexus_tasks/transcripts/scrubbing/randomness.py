"""Tell a generated text, such as a key, from a text that a person wrote, such as the name of a function."""

from __future__ import annotations

from itertools import pairwise

from nexus_tasks.transcripts.scrubbing.lazy import lazy

_RUN = lazy(r"[A-Za-z0-9]+")
_WORDS = lazy(r"[A-Z][a-z]{2,}|[a-z]{3,}|[A-Z]{4,}")
_UNSPEAKABLE = lazy(r"[bcdfghjklmnpqrstvwxz]{4}|[A-Z][bcdfgjkmpqvwxz]{3}")
_SHORTEST, _SHORTEST_RUN, _SHORTEST_JUMBLE = 15, 9, 10  # characters


def is_random(value: str) -> bool:
    """Whether ``value`` looks generated: letters and digits alternate, and the letters form no words.

    A text of at least 15 characters can look generated, if 9 of them stand without a separator.
    """
    if len(value) < _SHORTEST:
        return False
    runs = _RUN().findall(value)
    letters_and_digits = sum(map(len, runs))
    digits = sum(map(str.isdigit, value))
    letters = letters_and_digits - digits
    if letters * 6 < letters_and_digits or max(map(len, runs), default=0) < _SHORTEST_RUN:
        return False  # a number, a date, an address of a network, a version
    mixed = any("a" <= one <= "z" for one in value) and any("A" <= one <= "Z" for one in value)
    groups = sum(map(_begins_number, pairwise(" " + value)))
    if mixed:
        in_words = sum(len(word) for word in _WORDS().findall(value) if _is_speakable(word))
        return in_words * 100 < letters_and_digits * 60 and (groups >= 1 or letters_and_digits >= 20)
    return groups >= 3 and digits * 12 >= letters_and_digits and not _is_spelled(runs)


def is_jumble(value: str) -> bool:
    """Whether ``value``, of at least 10 letters and digits, mixes capital and small letters that form no words."""
    if len(value) < _SHORTEST_JUMBLE or not value.isalnum() or value.islower() or value.isupper():
        return False
    in_words = sum(map(len, _WORDS().findall(value)))
    capitals = sum(map(str.isupper, value[1:]))
    return in_words * 2 < len(value) and capitals >= 3


def _is_speakable(word: str) -> bool:
    """Whether a text of letters may be a word. "Instrumented" is, although four consonants stand together in it."""
    vowels = sum(letter in "aeiouAEIOU" for letter in word)
    return not _UNSPEAKABLE().search(word) or (len(word) >= 8 and vowels * 4 >= len(word))


def _begins_number(pair: tuple[str, str]) -> bool:
    return pair[1].isdigit() and not pair[0].isdigit()


def _is_spelled(runs: list[str]) -> bool:
    """Whether digits stand only at the ends of the runs, as in ``step1-of2-test3``."""
    return all(one.strip("0123456789").isalpha() or not one.strip("0123456789") for one in runs)
