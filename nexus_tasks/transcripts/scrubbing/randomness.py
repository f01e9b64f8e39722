"""Tell a generated text, such as a key, from a text that a person wrote, such as the name of a function."""

from __future__ import annotations

from itertools import pairwise

from nexus_tasks.transcripts.scrubbing.lazy import lazy

_RUN = lazy(r"[A-Za-z0-9]+")
_WORDS = lazy(r"[A-Z][a-z]{2,}|[a-z]{3,}|[A-Z]{4,}")
_UNSPEAKABLE = lazy(r"[bcdfghjklmnpqrstvwxz]{4}|[A-Z][bcdfgjkmpqvwxz]{3}")
_SHORTEST, _SHORTEST_RUN = 15, 9  # characters


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
        in_words = sum(len(word) for word in _WORDS().findall(value) if not _UNSPEAKABLE().search(word))
        return in_words * 100 < letters_and_digits * 60 and (groups >= 1 or letters_and_digits >= 20)
    return groups >= 3 and digits * 12 >= letters_and_digits and not _is_spelled(runs)


def _begins_number(pair: tuple[str, str]) -> bool:
    return pair[1].isdigit() and not pair[0].isdigit()


def _is_spelled(runs: list[str]) -> bool:
    """Whether digits stand only at the ends of the runs, as in ``step1-of2-test3``."""
    return all(one.strip("0123456789").isalpha() or not one.strip("0123456789") for one in runs)
