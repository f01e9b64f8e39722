"""Secrets inside base64: what decodes to a text that holds one is replaced whole."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Callable
from functools import cache

from nexus_tasks.transcripts.scrubbing.placeholder import placeholder

_DEEPEST = 3  # base64 of base64 of base64
_LONGEST = 200_000  # characters; longer ones are pictures and archives


@cache
def _base64() -> re.Pattern[str]:
    return re.compile(r"[A-Za-z0-9+/_-]{20,}+={0,2}")


def scrub_wrapped(text: str, scrub: Callable[[str], str], depth: int = 0) -> str:
    """``text`` without base64 that ``scrub`` would change when decoded."""

    def replaced(match: re.Match[str]) -> str:
        inner = _decoded(match[0])
        if inner is None:
            return match[0]
        clean = scrub(inner)
        if clean == inner and depth + 1 < _DEEPEST:
            clean = scrub_wrapped(inner, scrub, depth + 1)
        return match[0] if clean == inner else placeholder("base64 of a secret")

    return _base64().sub(replaced, text)


def _decoded(token: str) -> str | None:
    """The text that ``token`` is base64 of, or ``None``."""
    if len(token) > _LONGEST:
        return None
    token = token.rstrip("=").translate(_URL_SAFE)
    if len(token) % 4 == 1:
        return None
    try:
        text = b64decode(token + "=" * (-len(token) % 4), validate=True).decode("ascii")
    except (Error, ValueError):
        return None
    return text if all(character.isprintable() or character in "\t\r\n" for character in text) else None


_URL_SAFE = str.maketrans("-_", "+/")
