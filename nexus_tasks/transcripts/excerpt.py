"""Scrub secrets from a text, and shorten the text to its beginning and its end."""

from __future__ import annotations

from collections.abc import Callable

# Scrubbing also reads this many characters beyond each cut, so that it finds a secret that crosses the cut.
_MARGIN = 4_000
_HEAD = 2_000  # the most characters of a table's head


def excerpt(text: str, most: int, scrub: Callable[[str], str] = str) -> str:
    """Scrub ``text``. When the text is longer than ``most`` characters, also cut out its middle.

    Of a long text, only the two ends are scrubbed. So the time depends on ``most``, not on the length of the text.
    """
    if len(text) <= 2 * (most + _MARGIN):
        clean = scrub(text)
        if len(clean) <= most:
            return clean
        head, tail = clean, clean
    else:
        head, tail = scrub(text[: most + _MARGIN]), scrub(_end(text, most + _MARGIN))
    half = most // 2
    return f"{head[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{tail[-half:]}"


def _end(text: str, length: int) -> str:
    """The last whole lines of ``text``, at most ``length`` characters, behind its first two lines.

    When the text is a table, its first two lines say which columns are secret. A row that is cut would end the table.
    """
    end = text[-length:]
    first = [f"{line}\n" for line in text[:_HEAD].split("\n", 2)[:-1]]
    return "".join(first) + end[end.find("\n", 0, _MARGIN) + 1 :]
