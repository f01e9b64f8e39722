"""The text that replaces a secret."""

from __future__ import annotations

MARK = "[scrubbed:"


def placeholder(kind: str) -> str:
    """The placeholder for a secret of this kind, for example ``[scrubbed: github token]``."""
    return f"{MARK} {kind}]"
