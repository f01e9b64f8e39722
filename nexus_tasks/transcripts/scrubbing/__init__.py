"""Scrubbing: replace the secrets in a text by placeholders before the text is written to disk.

A placeholder names the kind of secret, for example ``[scrubbed: password]``. ``services/ingestion.py`` scrubs every
message that is stored. ``transcripts/claude_code.py`` scrubs transcripts, and ``transcripts/events.py`` scrubs the
hook's events, because these are written to disk before that. These rules find secrets:

- :mod:`.key_blocks` replaces private keys, and :mod:`.shapes` tokens of a known shape, at any place in the text.
- :mod:`.places` replaces passwords in addresses, headers and commands.
- :mod:`.documents` replaces the values of documents that are secret as a whole.
- :mod:`.assignments` replaces values after names such as ``password``.
- :mod:`.tables` replaces the values of columns such as ``password``, in Markdown, CSV and SQL.
- :mod:`.random_values` replaces values that look generated, when a name or a sentence says that they are secret.
- :mod:`.sentences` replaces passwords that a sentence tells.
- This module replaces a base64 text when the decoded text contains a secret.

A rule may replace an ordinary value by mistake. Such a mistake does less harm than storing a secret. The time of every
rule grows linearly with the length of the text.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterable
from functools import cache
from typing import Any

from nexus_tasks.errors import InvalidInput
from nexus_tasks.transcripts.scrubbing.assignments import scrub_assignments, secret_name
from nexus_tasks.transcripts.scrubbing.documents import scrub_documents
from nexus_tasks.transcripts.scrubbing.key_blocks import scrub_private_keys
from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder
from nexus_tasks.transcripts.scrubbing.places import scrub_headers, scrub_urls
from nexus_tasks.transcripts.scrubbing.random_values import scrub_random_values
from nexus_tasks.transcripts.scrubbing.sentences import scrub_sentences
from nexus_tasks.transcripts.scrubbing.shapes import scrub_tokens
from nexus_tasks.transcripts.scrubbing.tables import scrub_tables

__all__ = ["refuse_tokens", "scrub", "scrub_value"]

_DEEPEST = 100  # levels of nesting in a JSON value; values that are nested deeper are left out
_DEEPEST_BASE64 = 3  # the largest number of nested base64 texts that are decoded
_LONGEST_BASE64 = 200_000  # characters; a longer base64 text is probably a picture or an archive, and is kept
# Colours of a terminal and characters that nobody sees. They may split a secret. A text with such a secret loses them.
# A message has lost the escape character of a colour before it is scrubbed, and `strip_hidden` removes some of the
# others when the message is read, which would put the secret together again.
_INVISIBLE = lazy(
    r"(?:\x1b|\\{1,4}(?:u001b|x1b|033|e))\[[0-9;]{0,20}[A-Za-z]|\[[0-9;]{0,20}m|\r(?!\n)|"
    r"[\u0080-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]|"
    r"\\{1,4}u(?:00[89][0-9a-f]|00ad|034f|061c|115f|1160|17b[45]|180[b-f]|200[b-f]|202[a-e]|206[0-9a-f]|3164|fe0[0-9a-f]|feff|"
    r"ffa0|db40\\{1,4}ud[c-f][0-9a-f]{2})",
    re.IGNORECASE,
)
_SIGNS = "\x1b\\[\r"  # in ASCII, one of these stands in whatever `_INVISIBLE` and `_ESCAPED_WIDE` match
_LONGEST_WORD = 500  # characters of a word of a command
_URL_SAFE = str.maketrans("-_", "+/")


def scrub(text: str) -> str:
    """``text`` with its secrets replaced. Scrubbing the result again changes nothing."""
    clean = _scrub_all(text)
    visible = _visible(text)
    if visible == text:
        return clean
    seen = _scrub_all(visible)
    split = seen != _visible(clean) and seen.count(MARK) >= clean.count(MARK)
    return seen if split else clean


def _visible(text: str) -> str:
    """``text`` without hidden characters, and with plain letters in place of wide, bold and circled ones."""
    if text.isascii() and not any(sign in text for sign in _SIGNS):
        return text
    text = _INVISIBLE().sub("", text)
    if "uff" in text:
        text = _ESCAPED_WIDE().sub(lambda match: chr(int(match[1], 16) + 0x20), text)
    return text.translate(_plain_letters()) if _DRESSED().search(text) else text


_ESCAPED_WIDE = lazy(r"\\{1,4}uff([0-5][0-9a-f])(?<!00)(?<!5f)", re.IGNORECASE)


_DRESSED = lazy(r"[\u24b6-\u24e9\uff01-\uff5e\U0001d400-\U0001d7ff]")


@cache
def _plain_letters() -> dict[int, str]:
    from unicodedata import normalize

    dressed = (*range(0x24B6, 0x24EA), *range(0xFF01, 0xFF5F), *range(0x1D400, 0x1D800))
    return {code: normalize("NFKC", chr(code)) for code in dressed}


def _scrub_all(text: str) -> str:
    return _scrub_base64(_scrub_plain(text))


def refuse_tokens(field_name: str, names: Iterable[str]) -> None:
    """Check that names, which are stored as they are, have no token of a known shape and no password in an address.

    Only these rules are used. Others go by a word beside a value, and would refuse the session key ``session:8f14e4``.

    Raises:
        InvalidInput: one of them has. The message does not quote it.
    """
    text = _visible("\n".join(names))
    if scrub_urls(scrub_tokens(text)) != text:
        raise InvalidInput(
            f"{field_name} has a secret, and names are stored and shown as they are.",
            remedy="Choose a name without it. `nexus namespaces set NAMESPACE --no-scrub` allows it.",
        )


def scrub_value(value: Any, depth: int = 0) -> Any:
    """A JSON value with the secrets in its texts and keys replaced. ``depth`` is the value's level of nesting."""
    if isinstance(value, str):
        return scrub(value)
    if depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        fields = {str(key): item for key, item in value.items()}
        named = next((fields[name] for name in _NAMES if isinstance(fields.get(name), str)), None)
        kept = _SIGNATURE if _is_thought(fields) else None
        return {
            scrub(key): scrub_value(item, depth + 1)
            if key == kept
            else _scrub_field(named if named and key in _VALUES else key, item, depth)
            for key, item in fields.items()
        }
    if isinstance(value, (list, tuple)):
        return _scrub_options([scrub_value(item, depth + 1) for item in value])
    return value


# {"name": "API_TOKEN", "value": "…"}, {"password": {"value": "…"}}
_NAMES, _VALUES = ("name", "key", "Name", "Key"), frozenset(("value", "Value", "default"))
# The signature of a model's thought is no secret. The provider takes the thought back only with its signature.
_SIGNATURE, _THOUGHTS = "signature", ("thinking", "redacted_thinking", "reasoning")


def _is_thought(fields: dict[str, Any]) -> bool:
    kind = fields.get("part_kind", fields.get("type"))
    return isinstance(kind, str) and kind.startswith(_THOUGHTS)


def _scrub_field(key: str, value: Any, depth: int) -> Any:
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        kind = secret_name(key, value)
        return placeholder(kind) if kind else scrub_value(value, depth + 1)
    if depth < _DEEPEST and isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return _scrub_options([_scrub_field(key, one, depth) for one in value])
    if depth < _DEEPEST and isinstance(value, dict) and not _VALUES.isdisjoint(map(str, value)):
        value = {name: _scrub_field(key, item, depth) if name in _VALUES else item for name, item in value.items()}
    return scrub_value(value, depth + 1)


def _scrub_options(words: list[Any]) -> list[Any]:
    """The words of a command without the secrets that only the words before them tell, such as ``--password``."""
    if not any(isinstance(word, str) and word.startswith("-") for word in words):
        return words
    for position, word in enumerate(words):
        before = words[max(0, position - 4) : position]
        if before and all(isinstance(one, str) and len(one) <= _LONGEST_WORD for one in (*before, word)):
            command = " ".join(before)
            line = _scrub_plain(f"{command} {word}")
            if line.startswith(f"{command} "):
                words[position] = line[len(command) + 1 :]
    return words


_RULES = (
    scrub_private_keys,
    scrub_urls,
    scrub_tokens,
    scrub_headers,
    scrub_documents,
    scrub_assignments,
    scrub_tables,
    scrub_random_values,
    scrub_sentences,
)


def _scrub_plain(text: str) -> str:
    for rule in _RULES:
        text = rule(text)
    return text


# --- base64 -----------------------------------------------------------------------------------------------------------
@cache
def _base64() -> re.Pattern[str]:
    """A base64 text, which may go on in the next lines. A line break may be escaped."""
    return re.compile(
        r"[A-Za-z0-9+/_-]{20,}+(?:(?:\r?\n|\\{1,4}n)[ \t]{0,20}[A-Za-z0-9+/_-]{4,}+(?![^\s=\"'\\])){0,1000}={0,2}"
    )


@cache
def _base64_line() -> re.Pattern[str]:
    return re.compile(r"[A-Za-z0-9+/_-]{20,}+={0,2}")


@cache
def _joint() -> re.Pattern[str]:
    return re.compile(r"(?:\r?\n|\\{1,4}n)[ \t]{0,20}")


def _scrub_base64(text: str, depth: int = 0) -> str:
    """Replace each base64 token in ``text`` whose decoded text contains a secret. The whole token is replaced."""

    def replaced(match: re.Match[str]) -> str:
        found = match[0]
        whole = _joint().sub("", found)
        if _hides_a_secret(whole, depth):
            return placeholder("base64 of a secret")
        return found if whole == found else _base64_line().sub(line_replaced, found)

    def line_replaced(match: re.Match[str]) -> str:
        return placeholder("base64 of a secret") if _hides_a_secret(match[0], depth) else match[0]

    return _base64().sub(replaced, text)


def _hides_a_secret(token: str, depth: int) -> bool:
    inner = _decoded(token)
    if inner is None:
        return False
    clean = _scrub_plain(inner)
    if clean == inner and depth + 1 < _DEEPEST_BASE64:
        clean = _scrub_base64(inner, depth + 1)
    return clean != inner


def _decoded(token: str) -> str | None:
    """Decode ``token`` from base64. ``None`` when the result is not printable text, or when ``token`` is too long."""
    if len(token) > _LONGEST_BASE64:
        return None
    token = token.rstrip("=").translate(_URL_SAFE)
    if len(token) % 4 == 1:
        return None
    try:
        text = b64decode(token + "=" * (-len(token) % 4), validate=True).decode("ascii")
    except (Error, ValueError):
        return None
    return text if all(character.isprintable() or character in "\t\r\n" for character in text) else None
