"""Scrub the columns of tables whose heads name a secret: Markdown, psql, CSV, TSV, and the INSERT statements of SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from nexus_tasks.transcripts.scrubbing.assignments import secret_name
from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.names import ABROAD, kind_of, secret_words
from nexus_tasks.transcripts.scrubbing.occurrences import Words, occurrences
from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder
from nexus_tasks.transcripts.scrubbing.sentences import looks_like_a_password

_HEADS = ("pass", "pswd", "pwd", "secret", "token", "key", "cred", *ABROAD)
_HEAD_WORDS = Words(_HEADS)
_LONGEST_LINE = 4_000  # characters; a longer line is no row of a table
_MOST_ROWS = 2_000  # of an INSERT statement
# A line break may be escaped, in a JSON text. The table may begin and end within the text.
_BREAK = lazy(r"(\r?\n|(?:\\{1,4}r)?\\{1,4}n|\": \"|\"(?=[,}\]]))")
_PLAIN_NAME = lazy(r"[\"']?[^\W\d][\w.-]{0,40}[\"']?")
_PLAIN_HEAD = lazy(r"[\w.\"'-]{1,43}(?:(?:[,;\t]|\\t)[\w.\"'-]{1,43}){1,100}")
_RULE = lazy(r"[ \t|+:=-]{3,}")  # the line below the head
_QUOTES = " \t\"'`*"


def scrub_tables(text: str) -> str:
    """``text`` without the secrets in columns of tables."""
    lowered = text.lower()
    if "insert" in lowered and "values" in lowered:
        text = _scrub_inserts(text)
    if '","' in text or '";"' in text:
        text = _scrub_quoted(text)
    return _scrub_lines(text) if _may_have_a_head(text) else text


def _may_have_a_head(text: str) -> bool:
    """Whether a line may be the head of a table. Few texts have one, and splitting a text into its lines takes long."""
    done = 0
    for at in occurrences(text, _HEAD_WORDS):
        if at < done:
            continue
        start, end = text.rfind("\n", done, at) + 1, text.find("\n", at)
        line = text[start : end if end >= 0 else len(text)]
        done = start + len(line)
        if "|" in line or "\\n" in line or _PLAIN_HEAD().fullmatch(line.rstrip("\r")):
            return True
    return False


# --- tables of lines --------------------------------------------------------------------------------------------------
def _scrub_lines(text: str) -> str:
    parts = _BREAK().split(text)  # line, break, line, break, …, line
    position, changed = 0, False
    while position < len(parts) - 2:
        above = parts[position - 2] if position else ""
        secret = _secret_columns(above, parts[position], parts[position + 2])
        if secret is None:
            position += 2
            continue
        separator, columns, width, ruled = secret
        position += 4 if ruled else 2
        for row in range(position, len(parts), 2):
            cells = parts[row].split(separator) if len(parts[row]) <= _LONGEST_LINE else []
            if len(cells) != width:
                break
            scrubbed = [_without_secret(cell, columns[at]) if at in columns else cell for at, cell in enumerate(cells)]
            if scrubbed != cells:
                parts[row], changed = separator.join(scrubbed), True
            position = row + 2
    return "".join(parts) if changed else text


def _secret_columns(above: str, head: str, below: str) -> tuple[str, dict[int, str], int, bool] | None:
    """The separator, the names of the secret columns, the number of columns, and whether a rule is below the head."""
    if len(head) > 1_000 or len(below) > _LONGEST_LINE:
        return None
    lowered = head.lower()
    if not any(word in lowered for word in _HEADS):
        return None
    ruled = "|" in head and "-" in below and _RULE().fullmatch(below) is not None
    separators = ("|",) if ruled else ("\t", "\\t", ",", ";")
    for separator in separators:
        cells = head.split(separator)
        if len(cells) < 2:
            continue
        if not ruled and (len(below.split(separator)) != len(cells) or len(above.split(separator)) == len(cells)):
            continue  # no rows follow, or the line is itself a row
        if ruled or all(_PLAIN_NAME().fullmatch(cell) for cell in cells):
            columns = {at: cell.strip(_QUOTES) for at, cell in enumerate(cells) if _names_one(cell.strip(_QUOTES))}
            if columns:
                return separator, columns, len(cells), ruled
    return None


def _names_one(name: str) -> bool:
    """Whether a column of this name has secrets: ``password`` has, ``password_changed_at`` has not."""
    return any(one.end() == len(name) and kind_of(one["word"], one["suffix"]) for one in secret_words(name))


def _without_secret(cell: str, name: str) -> str:
    value = cell.strip(_QUOTES)
    kind = secret_name(name, value) if len(value) >= 4 and MARK not in cell else None
    return cell.replace(value, placeholder(kind), 1) if kind else cell


# --- CSV with quotes --------------------------------------------------------------------------------------------------
# Browsers and password managers export such tables.
_QUOTED_HEAD = lazy(r'^"[^",;\n]{1,40}"(?:[,;]"[^",;\n]{1,40}"){1,60}(?=\r?\n)', re.MULTILINE)
_QUOTED_CELL = lazy(r'(?<![^,;\n])("(?:[^"\n]|""){0,2000}+"|[^",;\n]{0,2000}+)(?:([,;])|(?=\r?\n|\Z))')


def _scrub_quoted(text: str) -> str:
    """``text`` without the secrets in CSV tables whose first line has the name of each column in quotes."""
    parts, done = list[str](), 0
    for head in _QUOTED_HEAD().finditer(text):
        names = [name.strip('"') for name in re.split("[,;]", head[0])]
        columns = {at: name for at, name in enumerate(names) if _names_one(name)}
        if not columns or head.start() < done or _follows_a_row(text, head.start(), len(names)):
            continue
        start = text.find("\n", head.end()) + 1
        while (cells := _quoted_cells(text, start)) and len(cells) == len(names):
            for at, name in columns.items():
                cell = cells[at][1]
                parts += [text[done : cells[at].start(1)], _without_secret(cell, name)]
                done = cells[at].end(1)
            start = cells[-1].end()
            start += 2 if text.startswith("\r\n", start) else 1
    return "".join((*parts, text[done:])) if parts else text


def _follows_a_row(text: str, at: int, width: int) -> bool:
    """Whether the line before ``at`` has as many cells. Then the line at ``at`` is a row, and no head."""
    above = text.rfind("\n", max(at - _LONGEST_LINE, 0), max(at - 1, 0)) + 1
    return at > 0 and len(_quoted_cells(text, above)) == width


def _quoted_cells(text: str, start: int) -> list[re.Match[str]]:
    """The cells of the line that begins at ``start``."""
    cells, at = list[re.Match[str]](), start
    while at < len(text) and len(cells) <= 61 and (cell := _QUOTED_CELL().match(text, at)):
        cells.append(cell)
        at = cell.end()
        if cell[2] is None:
            break
    return cells


# --- INSERT -----------------------------------------------------------------------------------------------------------
@cache
def _insert() -> re.Pattern[str]:
    return re.compile(
        r"\binsert\s{1,4}(?:ignore\s{1,4})?into\s{1,4}(?P<table>[\w.\"`\[\]]{1,100})\s{0,4}"
        r"(?:\((?P<columns>[^()]{1,2000})\)\s{0,8})?values\s{0,8}(?=\()",
        re.IGNORECASE,
    )


_VALUE = lazy(r"\\?'(?P<text>(?:[^'\\]|''|\\[^'])*)\\?'|[^,()']+|\([^()']*\)|(?P<end>\))|,")
_PEOPLE = lazy(r"user|account|member|login|credential|admin|customer|auth|people|person|employee", re.IGNORECASE)
_ADDRESS = lazy(r"[^\s@]{1,100}@[\w.-]{1,100}|[0-9a-fA-F-]{32,36}")  # of mail; or a UUID


def _scrub_inserts(text: str) -> str:
    """``text`` without the secrets in INSERT statements. Without names, the table must be one of people."""
    parts, done = list[str](), 0
    for match in _insert().finditer(text):
        if match.start() < done:
            continue
        columns = match["columns"]
        names = [name.strip(' \t\r\n"`[]\\') for name in columns.split(",")] if columns else None
        if names is None and not _PEOPLE().search(match["table"]):
            continue
        if names is not None and not any(map(_names_one, names)):
            continue
        at = match.end()
        for _ in range(_MOST_ROWS):
            at, spans = _row(text, at, names)
            for start, end, kind in spans:
                parts += [text[done:start], placeholder(kind)]
                done = end
            follows = re.compile(r"\s{0,8},\s{0,8}(?=\()").match(text, at)
            if follows is None:
                break
            at = follows.end()
    return "".join((*parts, text[done:])) if parts else text


def _row(text: str, start: int, names: Sequence[str] | None) -> tuple[int, list[tuple[int, int, str]]]:
    """The end of the row that begins at ``start``, and the spans of its secrets."""
    spans, column, at, limit = list[tuple[int, int, str]](), 0, start + 1, start + 20_000
    while at < limit and (value := _VALUE().match(text, at)):
        at = value.end()
        if value["end"]:
            break
        if value[0] == ",":
            column += 1
        elif value["text"] is not None and MARK not in value[0]:
            kind = _kind(value["text"], column, names)
            if kind:
                spans.append((*value.span("text"), kind))
    return at, spans


def _kind(value: str, column: int, names: Sequence[str] | None) -> str | None:
    if names is not None:
        return secret_name(names[column], value) if column < len(names) and len(value) >= 4 else None
    plain = column > 0 and not any(map(str.isspace, value)) and _ADDRESS().fullmatch(value) is None
    return "password" if plain and looks_like_a_password(value) else None
