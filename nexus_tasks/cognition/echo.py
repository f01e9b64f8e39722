"""Find echoes: text that search or context gave to an agent and that the agent repeats. Echoes are not derived."""

from __future__ import annotations

import re

# Matches a line that context() rendered, even when the agent quotes the line. Such a line is a bullet with a citation
# id, a heading, or the whole block as JSON. The MCP tool `recall` renders its hits with the same ids.
_CITED = re.compile(
    r"^[\s>]*(?:"
    r"[\"']?(?:[-*]\s*)?\[m\d+\]"
    r"|## (?:Digest|Contradictions|Reflections|Facts|Not yet derived|Recent messages)\s*$"
    r"|\{\"namespace\":.*(?:\[m\d+\]|<observation-log>)"
    r"|\"(?:text|cited|short|long)\":.*(?:\[m\d+\]|<observation-log>)"
    r")"
)
# A rendered observation log has tags and no citations, so the tags identify the log.
_LOG = re.compile(r"<observation-log>.*?</observation-log>", re.DOTALL)


def without_echo(text: str) -> str:
    """``text`` without its echoed lines. The result is empty when all lines are echoes."""
    kept, echo = list[str](), False
    for line in _LOG.sub("", text).splitlines():
        # The later lines of a rendered message are indented by four spaces.
        echo = bool(_CITED.match(line)) or (echo and line.startswith("    "))
        if not echo:
            kept.append(line)
    return "\n".join(kept).strip()


def is_echo(text: str) -> bool:
    """Whether ``text`` begins like a line that search or context rendered."""
    return bool(_CITED.match(text))
