"""Scrub tokens that are known by their shape, such as the prefix ``ghp_``. ``token_formats.py`` lists the shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.occurrences import Words
from nexus_tasks.transcripts.scrubbing.placeholder import placeholder
from nexus_tasks.transcripts.scrubbing.randomness import is_random
from nexus_tasks.transcripts.scrubbing.token_formats import FORMATS, Format

_ESCAPED = lazy(r"\\[nrtbf]|\\u[0-9a-fA-F]{4}|%[0-9a-fA-F]{2}")
# The text between two literals that code joins, for example in "AKIA" + "…" or 'sk-' 'ant'. The code may be a part of a
# JSON text and then has escaped quotes.
_JOINT = lazy(
    r"\\{0,4}[\"']\s{0,40}(?:[+.&]\s{0,40}|\\\s{0,40}|\\{1,4}n\s{0,40})?(?:[fbr]\b)?\\{0,4}[\"']|\\\r?\n\s{0,40}",
    re.ASCII,
)
# A line break within a token, as in a terminal or a mail, with the indent of the next line. It may be escaped.
_WRAP = lazy(r"(?<=[A-Za-z0-9_./+=-])(?:\r?\n|\\{1,4}n)[ \t>|]{0,20}(?=[A-Za-z0-9_./+=-])")
_BASE64 = lazy(r"[A-Za-z0-9+/_-]+")
# Characters of base64 that stand directly before a place inside of a file, and of each part in which it has letters of
# both cases. A path of hashes has small letters alone.
_FILE_BEFORE, _PART = 100, 25


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def scrub_tokens(text: str) -> str:
    """``text`` without tokens of a known shape, even if code joins a token from several literals."""
    # Replace tokens of joined literals first. Otherwise only the first literal would be replaced, and the rest of the
    # token, which has no known shape, would stay in the text.
    if '"' in text or "'" in text or "\\\n" in text:
        text = _scrub_joined(text)
    spans = _spans(text)
    if ("\n" in text or "\\n" in text) and (wrapped := _wrapped(text, {start: end for start, end, _ in spans})):
        return scrub_tokens(_replaced(text, wrapped))
    return _replaced(text, spans) if spans else text


def _aws_secrets(text: str) -> list[tuple[int, int, str]]:
    """The secret access keys of AWS. They have 40 characters of base64, and stand shortly after the id of the key."""
    secret = _compiled(
        r"(?<![A-Za-z0-9+/=_-])(?=[A-Z/+0-9]{0,39}[a-z])(?=[a-z/+0-9]{0,39}[A-Z])[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=_-])"
    )
    found = list[tuple[int, int, str]]()
    for key_id in _compiled(r"A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])").finditer(text):
        match = secret.search(text, key_id.end(), key_id.end() + 200)
        if match:
            found.append((match.start(), match.end(), "aws secret"))
    return found


@cache
def _by_mark() -> dict[str, list[int]]:
    """The formats of each mark, as positions in ``FORMATS``."""
    found = dict[str, list[int]]()
    for position, shape in enumerate(FORMATS):
        for mark in shape.marks:
            found.setdefault(mark, []).append(position)
    return found


def _formats_of(text: str) -> list[Format]:
    """The formats that have a mark in ``text``.

    Every message passes here, and most have few marks.
    """
    known = _by_mark()
    positions = {position for mark in _marks().within(text) for position in known[mark]}
    return [FORMATS[position] for position in sorted(positions)]


@cache
def _marks() -> Words:
    return Words(_by_mark())


def _spans(text: str) -> list[tuple[int, int, str]]:
    """The start, end and kind of every token, in the order of the text. The spans do not overlap."""
    found = list[tuple[int, int, str]]()
    for shape in _formats_of(text):
        for match in _compiled(shape.pattern).finditer(text):
            start = match.start()
            if _inside_a_file(text, start):
                continue
            if shape.inner:
                start = _token_start(text, start)
            elif shape.wordlike and _inside_a_word(text, start):
                continue
            found.append((start, match.end(), shape.kind))
    if "AKIA" in text or "ASIA" in text:
        found += _aws_secrets(text)
    found.sort(key=lambda span: (span[0], -span[1]))
    separate, end = list[tuple[int, int, str]](), 0
    for span in found:
        if span[0] >= end:
            separate.append(span)
            end = span[1]
    return separate


def _inside_a_file(text: str, at: int) -> bool:
    """Whether ``at`` is inside of a file in base64, in which any letters stand by chance."""
    before = text[max(at - _FILE_BEFORE, 0) : at]
    if len(before) < _FILE_BEFORE or _BASE64().fullmatch(before) is None:
        return False
    parts = (before[i : i + _PART] for i in range(0, _FILE_BEFORE, _PART))
    return is_random(before) and all(part.lower() != part != part.upper() for part in parts)


def _inside_a_word(text: str, at: int) -> bool:
    """Whether the character before ``at`` is a letter or digit. The ``n`` of an escape ``\\n`` does not count."""
    if not at or not text[at - 1].isalnum():
        return False
    return not any(_ESCAPED().fullmatch(text, at - length, at) for length in (2, 3, 6) if at >= length)


def _token_start(text: str, at: int) -> int:
    """The start of the token that contains the position ``at``, at most 100 characters before ``at``."""
    earliest = max(0, at - 100)
    while at > earliest and (text[at - 1].isalnum() or text[at - 1] in "_-+~"):
        at -= 1
    return at


def _replaced(text: str, spans: list[tuple[int, int, str]]) -> str:
    parts, done = list[str](), 0
    for start, end, kind in spans:
        parts += [text[done:start], placeholder(kind)]
        done = end
    return "".join((*parts, text[done:]))


def _scrub_joined(text: str) -> str:
    """Replace the tokens that ``text`` contains after its joined literals are put together."""
    spans = _spans_over(text, list(_JOINT().finditer(text)))
    return _replaced(text, spans) if spans else text


def _wrapped(text: str, whole: Mapping[int, int]) -> list[tuple[int, int, str]]:
    """The tokens that a line break splits.

    Only every other line break is left out at a time. Otherwise a token would take the line behind it along. A token in
    ``whole`` (start → end) goes on behind the line break if a generated text follows there.
    """
    breaks = list(_WRAP().finditer(text))
    for some in (breaks[::2], breaks[1::2]):
        found = _spans_over(text, some, across=True)
        if split := [span for span in found if span[0] not in whole or _is_mixed(text[whole[span[0]] + 2 : span[1]])]:
            return split
    return []


def _is_mixed(tail: str) -> bool:
    """Whether ``tail`` has digits and letters, or capital letters among small ones. A word of a text has not."""
    digits, letters = any(map(str.isdigit, tail)), any(map(str.isalpha, tail))
    return len(tail) >= 6 and letters and (digits or tail[1:].upper() != tail[1:] != tail[1:].lower())


def _spans_over(text: str, joints: list[re.Match[str]], *, across: bool = False) -> list[tuple[int, int, str]]:
    """The start, end and kind of every token that ``text`` contains without ``joints``, as positions in ``text``.

    With ``across`` only those tokens that have a joint in them.
    """
    if not joints:
        return []
    pieces, starts, done, length = list[str](), list[tuple[int, int]](), 0, 0
    for joint in (*joints, None):
        piece = text[done : joint.start() if joint else len(text)]
        starts.append((length, done))  # (position in the joined text, position in ``text``)
        pieces.append(piece)
        length += len(piece)
        done = joint.end() if joint else done
    from bisect import bisect_right

    def original(position: int) -> int:
        joined, start = starts[bisect_right(starts, (position, len(text) + 1)) - 1]
        return start + position - joined

    found = ((start, end, original(start), original(end - 1) + 1, kind) for start, end, kind in _spans("".join(pieces)))
    return [(begin, last, kind) for start, end, begin, last, kind in found if not across or last - begin > end - start]
