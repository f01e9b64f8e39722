"""Private keys in PEM, OpenSSH and PGP armour: whole, cut off at either end, or with escaped line breaks."""

from __future__ import annotations

import re
from functools import cache

from nexus_tasks.transcripts.scrubbing.placeholder import placeholder

_KIND = "private key"
_LONGEST_LINE = 400  # characters, quotes and escaped breaks included
_LONGEST = 40_000  # characters between BEGIN and END; a key of 16,384 bits has 13,000


@cache
def _marks() -> re.Pattern[str]:
    return re.compile(r"-----(BEGIN|END) (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")


@cache
def _body() -> re.Pattern[str]:
    """What a key's body consists of, also quoted line by line: base64, headers, breaks (escaped or not), quotes."""
    return re.compile(
        r"(?:\\{1,4}[nrt]|[\s\"'+,\\]|[A-Za-z0-9/=+]{16,}|[A-Za-z0-9/+]{0,15}={1,2}|"
        r"(?:Proc-Type|DEK-Info|Version|Comment): [^\n\\]{0,200})*+"
    )


def scrub_private_keys(text: str) -> str:
    """``text`` without private keys."""
    if " PRIVATE KEY" not in text:
        return text
    parts, done, begin = list[str](), 0, None
    for mark in _marks().finditer(text):
        if mark[1] == "BEGIN":
            if begin is not None:  # the one before has no end
                done = _cut_open(text, done, begin, mark.start(), parts)
            begin = mark
            continue
        if begin is not None and mark.start() - begin.end() <= _LONGEST:
            parts += [text[done : begin.start()], placeholder(_KIND)]
        else:
            if begin is not None:
                done = _cut_open(text, done, begin, mark.start(), parts)
            # Its beginning is not here. Look no further back than where the one before ended.
            parts += [text[done : _begin_of_tail(text, done, mark.start())], placeholder(_KIND)]
        done, begin = mark.end(), None
    if begin is not None:
        done = _cut_open(text, done, begin, len(text), parts)
    return "".join((*parts, text[done:]))


def _cut_open(text: str, done: int, begin: re.Match[str], limit: int, parts: list[str]) -> int:
    """Replace a key that begins and does not end; returns where the text goes on."""
    body = _body().match(text, begin.end(), min(limit, begin.end() + _LONGEST))
    parts += [text[done : begin.start()], placeholder(_KIND)]
    end = body.end() if body else begin.end()
    while end > begin.end() and text[end - 1].isspace():
        end -= 1  # the line break behind it belongs to what follows
    return end


def _begin_of_tail(text: str, earliest: int, end: int) -> int:
    """Where the base64 lines that lead up to ``end`` begin."""
    at, earliest = end, max(earliest, end - _LONGEST)
    while at > earliest:
        floor = max(earliest, at - _LONGEST_LINE)
        # Behind the last break, escaped or not; it must be one, or where the text begins.
        found = max(text.rfind("\n", floor, at - 1) + 1, text.rfind("\\n", floor, at - 2) + 2)
        line = found if found > floor or floor > earliest else floor
        words = text[line:at].replace("\\n", " ").replace("\\r", " ").translate(_GLUE).split()
        words = [word for word in words if word != "+"]
        last = at == end  # only the last line of a key is short
        if line >= at or line < floor or not all(_is_base64(word) and (last or len(word) >= 16) for word in words):
            break
        at = line
    return at


_GLUE = str.maketrans("\"',\\", "    ")


def _is_base64(word: str) -> bool:
    return word.translate(_SIGNS).isalnum() and word.isascii()


_SIGNS = str.maketrans("", "", "+/=")
