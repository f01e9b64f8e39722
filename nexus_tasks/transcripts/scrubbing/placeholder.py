"""What stands where a secret was."""

from __future__ import annotations

MARK = "[scrubbed:"


def placeholder(kind: str) -> str:
    """For example ``[scrubbed: github token]``."""
    return f"{MARK} {kind}]"
