"""Echoes: what search or context gave an agent, and the agent said again. It is no news and is not derived anew."""

from __future__ import annotations

import re

# A line that context() rendered: its bullet and citation id. `recall` over MCP renders its hits the same way.
_CITED = re.compile(r"^\s*(?:[-*]\s*)?\[m\d+\]")


def without_echo(text: str) -> str:
    """``text`` without the lines that carry a citation id of ours; empty when nothing else is in it."""
    return "\n".join(line for line in text.splitlines() if not _CITED.match(line)).strip()


def is_echo(text: str) -> bool:
    """Whether a statement is a cited line."""
    return bool(_CITED.match(text))
