"""Shortening a text to its beginning and its end, with secrets scrubbed."""

from __future__ import annotations

from collections.abc import Callable

_MARGIN = 4_000  # characters beyond the cut that are scrubbed too, so that a secret at the cut is found whole


def excerpt(text: str, most: int, scrub: Callable[[str], str] = str) -> str:
    """``text`` scrubbed and, when longer than ``most`` characters, without its middle.

    Of a long text only the two ends are scrubbed, so the time depends on ``most`` and not on the length of the text.
    """
    if len(text) <= 2 * (most + _MARGIN):
        clean = scrub(text)
        if len(clean) <= most:
            return clean
        head, tail = clean, clean
    else:
        head, tail = scrub(text[: most + _MARGIN]), scrub(text[-most - _MARGIN :])
    half = most // 2
    return f"{head[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{tail[-half:]}"
