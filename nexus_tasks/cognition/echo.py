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
# The tags of a rendered observation log. The lines of a log have no citation ids.
_LOG, _END_OF_LOG = "<observation-log>", "</observation-log>"


def without_echo(text: str) -> str:
    """``text`` without its echoed lines. The result is empty when all lines are echoes."""
    kept, echo = list[str](), False
    for line in _without_logs(text).splitlines():
        # context() indents the later lines of a message by four spaces. Such a line after an echo is an echo too.
        echo = bool(_CITED.match(line)) or (echo and line.startswith("    "))
        if not echo:
            kept.append(line)
    return "\n".join(kept).strip()


def _without_logs(text: str) -> str:
    """``text`` without its observation logs. A regular expression would search for the end of each unended log."""
    parts, done = list[str](), 0
    while (start := text.find(_LOG, done)) >= 0 and (end := text.find(_END_OF_LOG, start)) >= 0:
        parts.append(text[done:start])
        done = end + len(_END_OF_LOG)
    return "".join((*parts, text[done:]))


def is_echo(text: str) -> bool:
    """Whether ``text`` begins like a line that search or context rendered."""
    return bool(_CITED.match(text))
