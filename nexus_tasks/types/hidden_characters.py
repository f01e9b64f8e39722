"""Make characters visible, or remove them, that control a terminal or hide text from a reader.

Stored text comes from users, tools and web pages. An escape sequence in it could rewrite a terminal's screen. Bidi
overrides change the order in which a line is shown. Tag characters, runs of variation selectors or of joiners, and
invisible signs of mathematics are invisible to people, and models read what is spelled with them.
"""

from __future__ import annotations

import re

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
_BIDI = (
    "\u202a-\u202e\u2066-\u2069"  # embeddings, overrides, isolates; the marks of Arabic and Hebrew text are harmless
)
_TAGS = "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"  # tags, and code points without a sign
_INVISIBLE = "\u2061-\u2064\u206a-\u206f"  # signs of mathematics, and formats that Unicode gave up
# A variation selector chooses the form of the sign before it. The selectors after the 16th choose forms of ideographs.
_SELECTORS, _OF_IDEOGRAPHS = "\ufe00-\ufe0f", "\U000e0100-\U000e01ef"
_IDEOGRAPHS = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_JOINERS = "\u200b-\u200d\u2060\ufeff"  # in a word or an emoji each stands alone
_HIDDEN = re.compile(
    f"[{_CONTROLS}{_BIDI}{_TAGS}{_INVISIBLE}]|(?<![{_IDEOGRAPHS}])[{_OF_IDEOGRAPHS}]"
    f"|(?<=[{_SELECTORS}{_OF_IDEOGRAPHS}])[{_SELECTORS}]|(?<=[{_JOINERS}])[{_JOINERS}]"
)


def show_hidden(text: str) -> str:
    """``text`` for a terminal: such characters become escapes such as ``\\x1b``, and CR LF becomes a line feed."""
    return _HIDDEN.sub(lambda found: _escape(found[0]), text.replace("\r\n", "\n"))


def strip_hidden(text: str) -> str:
    """``text`` for a prompt, without such characters."""
    return _HIDDEN.sub("", text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def escape_in_json(document: str) -> str:
    """A JSON document whose strings show such characters as JSON's escapes (``\\u202e``). The values stay the same."""
    return _HIDDEN.sub(lambda found: _utf16(found[0]), document)


def _utf16(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
