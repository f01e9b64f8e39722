"""Texts on which a regular expression takes long, made from the parts of the expression.

For each repetition in the expression, the texts hold what the expression wants before the repetition, then many
repetitions, then a character that ends them. Without what stands before, the search begins at every repetition. When
the text repeats both parts, every beginning finds a long rest.

Two characters that every part of the expression takes alike take the same time. So one of them is enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

Items = Any  # a sequence of `re._parser`: pairs of an operation and its argument
Attack = Callable[[int], str]  # the length of a text gives the text

REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
SHORT = 12  # a part that may repeat less often is not worth an attack
_SIGNS = "aAz09 \n\t_-.,:;/\\\"'=<>[](){}@!?#%&*+|é\x00"
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: str.isdigit,
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_WORD: lambda one: one.isalnum() or one == "_",
    op.CATEGORY_NOT_DIGIT: lambda one: not one.isdigit(),
    op.CATEGORY_NOT_SPACE: lambda one: not one.isspace(),
    op.CATEGORY_NOT_WORD: lambda one: not (one.isalnum() or one == "_"),
}


def attacks(pattern: re.Pattern[str]) -> Iterator[Attack]:
    """Texts of any length for ``pattern``."""
    tree = _parser.parse(pattern.pattern, pattern.flags)
    signs = _representatives(tree)
    # A search begins at each of these, also inside a repetition that takes all characters of their set alike.
    signs += sorted({whole[0] for one in signs for whole in _wholes(tree, one) if whole} - set(signs))
    seen = set[tuple[str, str, str]]()
    for prefer in signs:
        wholes = [(before, "", 0) for before in _wholes(tree, prefer)]
        for before, unit, most in [*_repeats(tree, "", prefer), *wholes]:
            if most and most < SHORT:
                continue
            ends = ("", "\x00") if unit == "\n" else ("", "\x00", "\n")
            forms = [("", unit, end) for end in ends] + [(before, unit, end) for end in ends[:2]]
            forms += [("", before + unit, ""), ("", unit + before, ""), ("", before, ""), ("", before[:-1], "")]
            for form in forms:
                if form[1] and form not in seen:
                    seen.add(form)
                    yield lambda length, form=form: _text(length, *form)  # type: ignore[misc]


def _text(length: int, before: str, unit: str, end: str) -> str:
    return before + unit * (length // len(unit)) + end


# --- walking ----------------------------------------------------------------------------------------------------------
def _repeats(items: Items, before: str, prefer: str) -> Iterator[tuple[str, str, int]]:
    """For each repetition: a text that leads to it, a text that it takes once, and how often it takes one."""
    for operation, argument in items:
        if operation in REPEATS:
            _, most, body = argument
            for unit in _wholes(body, prefer):
                yield before, unit, int(most)
        for inner in _inner(operation, argument):
            yield from _repeats(inner, before, prefer)
        before += _sample([(operation, argument)], prefer)


def _wholes(items: Items, prefer: str) -> Iterator[str]:
    """A text that the expression takes, for each of its branches at the top."""
    yield _sample(items, prefer)
    for operation, argument in items:
        if operation is op.BRANCH:
            yield from (_sample(one, prefer) for one in argument[1])
        elif operation is op.SUBPATTERN and len(items) == 1:
            yield from _wholes(argument[-1], prefer)


def _inner(operation: Any, argument: Any) -> list[Items]:
    if operation in REPEATS:
        return [argument[2]]
    if operation is op.BRANCH:
        return list(argument[1])
    if operation is op.SUBPATTERN:
        return [argument[-1]]
    if operation in (op.ASSERT, op.ASSERT_NOT):
        return [argument[1]]
    if operation is op.GROUPREF_EXISTS:
        return [one for one in argument[1:] if one is not None]
    return [argument] if operation is op.ATOMIC_GROUP else []


def _sample(items: Items, prefer: str) -> str:
    """A short text that ``items`` take. ``prefer`` stands for each character that may be ``prefer``."""
    made = ""
    for operation, argument in items:
        if operation in REPEATS:
            least, most, body = argument
            made += _sample(body, prefer) * max(least, 1 if most else 0)
        elif operation is op.ASSERT and argument[0] < 0:
            made = made or _sample(argument[1], prefer)
        elif operation in (op.ASSERT, op.ASSERT_NOT):
            continue
        elif inner := _inner(operation, argument):
            made += _sample(inner[0], prefer)
        elif operation in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY):
            choices = (prefer, *_SIGNS, *_literals([(operation, argument)]))
            made += next((one for one in choices if _takes(operation, argument, one)), "")
    return made


# --- characters -------------------------------------------------------------------------------------------------------
def _representatives(tree: Items) -> list[str]:
    """One character for each set of characters that all parts of the expression take alike."""
    atoms = {repr(atom): atom for atom in _atoms(tree)}.values()
    found = dict[tuple[bool, ...], str]()
    for one in (*_SIGNS, *_literals(atoms)):
        found.setdefault(tuple(_takes(*atom, one) for atom in atoms), one)
    return list(found.values())


def _atoms(items: Items) -> Iterator[tuple[Any, Any]]:
    for operation, argument in items:
        if operation in (op.NOT_LITERAL, op.IN, op.ANY):
            yield operation, argument
        elif operation in REPEATS and len(argument[2]) == 1:  # a repeated literal; the others are kept as they are
            yield from ((kind, one) for kind, one in argument[2] if kind is op.LITERAL)
        for inner in _inner(operation, argument):
            yield from _atoms(inner)


def _literals(atoms: Any) -> Iterator[str]:
    for operation, argument in atoms:
        if operation in (op.LITERAL, op.NOT_LITERAL):
            yield chr(argument)
        elif operation is op.RANGE:
            yield from map(chr, argument)
        elif operation is op.IN:
            yield from _literals(argument)


def _takes(operation: Any, argument: Any, one: str) -> bool:
    if operation is op.LITERAL:
        return chr(argument) == one
    if operation is op.NOT_LITERAL:
        return chr(argument) != one
    if operation is op.RANGE:
        return bool(argument[0] <= ord(one) <= argument[1])
    if operation is op.CATEGORY:
        return _CATEGORIES[argument](one)
    if operation is op.IN:
        negated = bool(argument) and argument[0][0] is op.NEGATE
        return any(_takes(*inner, one) for inner in argument[negated:]) != negated
    return one != "\n"  # ANY
