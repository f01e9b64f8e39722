"""Find echoes: text from search or context that an agent repeats. No facts are derived from an echo."""

from __future__ import annotations

import re

# Matches a line that context() rendered, even when the agent quotes the line. The line may be a bullet with a citation
# id such as [m17], a heading, or the whole block as JSON. The MCP tool `recall` also puts citation ids before its hits.
_CITED = re.compile(
    r"^[\s>]*(?:"
    r"[\"']?(?:[-*]\s*)?\[m\d+\]"
    r"|## (?:Digest|Contradictions|Reflections|Facts|Not yet derived|Recent messages)\s*$"
    r"|\{\"namespace\":.*(?:\[m\d+\]|<observation-log>)"
    r"|\"(?:text|cited|short|long)\":.*(?:\[m\d+\]|<observation-log>)"
    r")"
)
# Matches a rendered observation log by its tags, because the lines of a log have no citation ids.
_LOG = re.compile(r"<observation-log>.*?</observation-log>", re.DOTALL)


def without_echo(text: str) -> str:
    """``text`` without its echoed lines. The result is empty when all lines are echoes."""
    kept, echo = list[str](), False
    for line in _LOG.sub("", text).splitlines():
        # context() indents the later lines of a message by four spaces. Such a line after an echo is an echo too.
        echo = bool(_CITED.match(line)) or (echo and line.startswith("    "))
        if not echo:
            kept.append(line)
    return "\n".join(kept).strip()


def is_echo(text: str) -> bool:
    """Whether ``text`` begins like a line that search or context rendered."""
    return bool(_CITED.match(text))
