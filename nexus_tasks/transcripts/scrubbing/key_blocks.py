"""Scrub private keys: PEM, OpenSSH, PGP, PuTTY, OpenVPN and JWK."""

from __future__ import annotations

import re
from functools import cache

from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.placeholder import placeholder

_PRIVATE_KEY = "private key"
_LINE_CHARACTERS = 400  # the longest line of a key, in characters, with quotes and escaped line breaks
_PREFIX = 60  # the most characters in front of each line of a key
_KEY_CHARACTERS = 40_000  # the most characters between BEGIN and END; a key of 16,384 bits has 13,000


@cache
def _key_marks() -> re.Pattern[str]:
    pem, ssh2 = r"(?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?", "SSH2 ENCRYPTED PRIVATE KEY"
    openvpn = "OpenVPN (?:Static key V1|tls-crypt-v2 (?:client|server) key)"
    return re.compile(rf"-{{4,5}} ?(BEGIN|END) (?:{pem}|{ssh2}|{openvpn}) ?-{{4,5}}")


@cache
def _key_body() -> re.Pattern[str]:
    """The pattern of a key's body: base64, headers, quotes and line breaks. The line breaks may be escaped."""
    return re.compile(
        r"(?:\\{1,4}[nrt]|[\s\"'+,\\]|[A-Za-z0-9/=+]{16,}|[A-Za-z0-9/+]{0,15}={1,2}|"
        r"(?:Proc-Type|DEK-Info|Version|Comment): [^\n\\]{0,200})*+"
    )


# A line of a key behind the number of the line, the time, the name of a container or a quote sign.
_BEHIND_A_PREFIX = lazy(
    r"(?P<prefix>[^\n]{0,61}(?<![A-Za-z0-9+/=]))"
    r"(?:[A-Za-z0-9+/]{16,100}={0,2}|[A-Za-z0-9+/]{1,15}={1,3}|"
    r"(?:Proc-Type|DEK-Info|Version|Comment): [^\n]{0,200})?[ \t\r]*+"
)


def _is_line_behind_a_prefix(line: str, prefix: int) -> bool:
    """Whether this is a line of a key with ``prefix`` characters in front, or one more or less."""
    match = _BEHIND_A_PREFIX().fullmatch(line)
    return match is not None and abs(len(match["prefix"]) - prefix) <= 1


def scrub_private_keys(text: str) -> str:
    """``text`` without private keys.

    Keys with a missing beginning or end, and keys with escaped line breaks, are replaced too.
    """
    if " PRIVATE KEY" in text or "OpenVPN" in text:
        text = _without_key_blocks(text)
    if "Private-" in text:
        text = _putty().sub(rf"\g<1>{placeholder(_PRIVATE_KEY)}", text)
    return _jwk().sub(_without_jwk_member, text) if "kty" in text else text


# --- PuTTY and JWK ----------------------------------------------------------------------------------------------------
@cache
def _putty() -> re.Pattern[str]:
    """The private lines of a key in PuTTY's format, and its MAC. The line breaks may be escaped."""
    line_break = r"(?:\\{1,4}r)?\\{1,4}n|\r?\n"
    return re.compile(
        rf"(Private-Lines: [0-9]{{1,4}}(?:{line_break})[ \t]{{0,20}}|Private-(?:MAC|Hash): )"
        rf"[A-Za-z0-9+/=]{{1,100}}(?:(?:{line_break})[ \t]{{0,20}}[A-Za-z0-9+/=]{{1,100}}(?![\w:-])){{0,200}}"
    )


@cache
def _jwk() -> re.Pattern[str]:
    """The private members of a JSON web key."""
    quote = r"\\{0,6}[\"']"
    return re.compile(
        rf"({quote}(?:d|p|q|dp|dq|qi|k){quote}\s{{0,4}}:\s{{0,4}}{quote})[A-Za-z0-9_-]{{16,4000}}(?={quote})"
    )


def _without_jwk_member(match: re.Match[str]) -> str:
    return match[1] + placeholder(_PRIVATE_KEY)


# --- blocks between BEGIN and END -------------------------------------------------------------------------------------
def _without_key_blocks(text: str) -> str:
    parts, done, begin = list[str](), 0, None
    for mark in _key_marks().finditer(text):
        if mark[1] == "BEGIN":
            if begin is not None:  # the previous key has no END
                done = _cut_unended_key(text, done, begin, mark.start(), parts)
            begin = mark
            continue
        if begin is not None and mark.start() - begin.end() <= _KEY_CHARACTERS:
            parts += [text[done : begin.start()], placeholder(_PRIVATE_KEY)]
        else:
            if begin is not None:
                done = _cut_unended_key(text, done, begin, mark.start(), parts)
            # The text does not contain the BEGIN of this key. Search for the first line of the key that is in the text,
            # but not before the end of the previous key.
            parts += [text[done : _start_of_unbegun_key(text, done, mark.start())], placeholder(_PRIVATE_KEY)]
        done, begin = mark.end(), None
    if begin is not None:
        done = _cut_unended_key(text, done, begin, len(text), parts)
    return "".join((*parts, text[done:]))


def _cut_unended_key(text: str, done: int, begin: re.Match[str], limit: int, parts: list[str]) -> int:
    """Replace a key that has a BEGIN and no END. Returns the position after the key."""
    body = _key_body().match(text, begin.end(), min(limit, begin.end() + _KEY_CHARACTERS))
    parts += [text[done : begin.start()], placeholder(_PRIVATE_KEY)]
    end = body.end() if body else begin.end()
    while end > begin.end() and text[end - 1].isspace():
        end -= 1  # keep the line break after the key in the text
    prefix = begin.start() - text.rfind("\n", max(begin.start() - _PREFIX - 1, 0), begin.start()) - 1
    if end == begin.end() and text[end : end + 1] in ("\n", "\r") and 0 < prefix <= _PREFIX:
        end = _end_behind_prefixes(text, end, limit, prefix)
    return end


def _end_behind_prefixes(text: str, end: int, limit: int, prefix: int) -> int:
    """The end of the lines of a key after ``end`` that have ``prefix`` characters in front, or one more or less."""
    at = text.find("\n", end, end + 3) + 1
    while 0 < at < limit:
        line = text[at : min(limit, at + _LINE_CHARACTERS)].split("\n", 1)[0]
        if not _is_line_behind_a_prefix(line, prefix):
            break
        end = at + len(line)
        at = end + 1
    return end


def _start_of_unbegun_key(text: str, earliest: int, end: int) -> int:
    """The start of the base64 lines that end at ``end``. They are the last lines of a key whose BEGIN is missing."""
    at, earliest = end, max(earliest, end - _KEY_CHARACTERS)
    start = text.rfind("\n", max(earliest, end - _PREFIX - 1), end) + 1
    if earliest < start < end and (behind := _start_behind_prefixes(text, earliest, start, end - start)) < start:
        return behind
    while at > earliest:
        floor = max(earliest, at - _LINE_CHARACTERS)
        # A line starts after a line break, which may be escaped, or at the start of the text.
        found = max(text.rfind("\n", floor, at - 1) + 1, text.rfind("\\n", floor, at - 2) + 2)
        line = found if found > floor or floor > earliest else floor
        words = text[line:at].replace("\\n", " ").replace("\\r", " ").translate(_JOINING).split()
        words = [word for word in words if word != "+"]
        last = at == end  # only a key's last line may be shorter than 16 characters
        if line >= at or line < floor or not all(_is_base64(word) and (last or len(word) >= 16) for word in words):
            break
        at = line
    return at


def _start_behind_prefixes(text: str, earliest: int, start: int, prefix: int) -> int:
    """The start of a key's lines before ``start`` that have ``prefix`` characters in front, or one more or less."""
    at = start
    while at > earliest:
        above = max(text.rfind("\n", max(earliest, at - _LINE_CHARACTERS), at - 1) + 1, earliest)
        line = text[above : at - 1]
        first = at == start  # only a key's last line may be shorter than 16 characters
        if not _is_line_behind_a_prefix(line if not first or len(line) > prefix + 16 else line + "==", prefix):
            break
        at = above
    return at


_JOINING = str.maketrans("\"',\\", "    ")


def _is_base64(word: str) -> bool:
    return word.translate(_BASE64_SIGNS).isalnum() and word.isascii()


_BASE64_SIGNS = str.maketrans("", "", "+/=")
