"""Scrubbing: replace the secrets in a text by placeholders before the text is written to disk.

A placeholder names the kind of secret, for example ``[scrubbed: password]``. ``services/ingestion.py`` scrubs every
message that is stored. ``transcripts/claude_code.py`` scrubs transcripts, and ``transcripts/events.py`` scrubs the
hook's events, because these are written to disk before that. These rules find secrets:

- :mod:`.key_blocks` replaces private keys, and :mod:`.shapes` tokens of a known shape, at any place in the text.
- :mod:`.places` replaces passwords in addresses, headers and commands.
- :mod:`.documents` replaces the values of documents that are secret as a whole.
- :mod:`.assignments` replaces values after names such as ``password``.
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
from functools import cache
from typing import Any

from nexus_tasks.transcripts.scrubbing.assignments import scrub_assignments, secret_name
from nexus_tasks.transcripts.scrubbing.documents import scrub_documents
from nexus_tasks.transcripts.scrubbing.key_blocks import scrub_private_keys
from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder
from nexus_tasks.transcripts.scrubbing.places import scrub_headers, scrub_urls
from nexus_tasks.transcripts.scrubbing.random_values import scrub_random_values
from nexus_tasks.transcripts.scrubbing.sentences import scrub_sentences
from nexus_tasks.transcripts.scrubbing.shapes import scrub_tokens

__all__ = ["scrub", "scrub_value"]

_DEEPEST = 100  # levels of nesting in a JSON value; values that are nested deeper are left out
_DEEPEST_BASE64 = 3  # the largest number of nested base64 texts that are decoded
_LONGEST_BASE64 = 200_000  # characters; a longer base64 text is probably a picture or an archive, and is kept
# Colours of a terminal and characters without width. They may split a secret. A text with such a secret loses them.
_INVISIBLE = lazy(
    r"(?:\x1b|\\{1,4}(?:u001b|x1b|033|e))\[[0-9;]{0,20}[A-Za-z]|[\u00ad\u200b-\u200d\u2060\ufeff]|"
    r"\\{1,4}u(?:00ad|200[b-d]|2060|feff)",
    re.IGNORECASE,
)
_URL_SAFE = str.maketrans("-_", "+/")


def scrub(text: str) -> str:
    """``text`` with its secrets replaced. Scrubbing the result again changes nothing."""
    clean = _scrub_all(text)
    visible = _INVISIBLE().sub("", text)
    if visible == text:
        return clean
    seen = _scrub_all(visible)
    return seen if seen.count(MARK) > clean.count(MARK) else clean


def _scrub_all(text: str) -> str:
    return _scrub_base64(_scrub_plain(text))


def scrub_value(value: Any, depth: int = 0) -> Any:
    """A JSON value with the secrets in its texts and keys replaced. ``depth`` is the value's level of nesting."""
    if isinstance(value, str):
        return scrub(value)
    if depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        return {scrub(str(key)): _scrub_field(str(key), item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub_value(item, depth + 1) for item in value]
    return value


def _scrub_field(key: str, value: Any, depth: int) -> Any:
    kind = secret_name(key, value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    return placeholder(kind) if kind else scrub_value(value, depth + 1)


_RULES = (
    scrub_private_keys,
    scrub_urls,
    scrub_tokens,
    scrub_headers,
    scrub_documents,
    scrub_assignments,
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
    return re.compile(r"[A-Za-z0-9+/_-]{20,}+={0,2}")


def _scrub_base64(text: str, depth: int = 0) -> str:
    """Replace each base64 token in ``text`` whose decoded text contains a secret. The whole token is replaced."""

    def replaced(match: re.Match[str]) -> str:
        inner = _decoded(match[0])
        if inner is None:
            return match[0]
        clean = _scrub_plain(inner)
        if clean == inner and depth + 1 < _DEEPEST_BASE64:
            clean = _scrub_base64(inner, depth + 1)
        return match[0] if clean == inner else placeholder("base64 of a secret")

    return _base64().sub(replaced, text)


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
