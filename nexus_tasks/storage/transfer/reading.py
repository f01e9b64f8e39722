"""Importing an export (the memory of a namespace as JSON documents) into an empty namespace."""

from __future__ import annotations

import bisect
import json
import math
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, cast

from sqlalchemy import BigInteger, DateTime, Float, Integer, Table, text

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput
from nexus_tasks.event_time import check_zone
from nexus_tasks.storage import embeddings, namespaces
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.messages import UNBOUNDED_SEQ
from nexus_tasks.storage.models import Base, ErasedId, Topic
from nexus_tasks.storage.models.base import written_columns
from nexus_tasks.storage.topics import lines_among, lines_of
from nexus_tasks.storage.transfer.tables import FORMAT, SETTINGS, TABLES, VERSION
from nexus_tasks.transcripts.scrubbing import refuse_tokens, scrub, scrub_value
from nexus_tasks.types import ROLES, STANDINGS, Message, check_count, check_name, check_size, check_time, clean_text

AT_ONCE = 1_000  # rows per insert
CHARACTERS_AT_ONCE = 20_000_000  # of the lines of one insert, which bounds the memory
_MODELS = {model.__tablename__: model for model in TABLES}
_ORDER = {name: position for position, name in enumerate(_MODELS)}

# The standings of memories in an export of a release that did not store them: first of messages, then of facts, of
# conclusions and of digests, which get the lowest standing of their sources.
_STANDING = "CASE {0}.role WHEN 'user' THEN {1} WHEN 'assistant' THEN 3 WHEN 'tool' THEN 2 ELSE 1 END"
_LOWEST = """
    UPDATE memories AS m SET standing = (
        SELECT min({0}) FROM evidence AS e JOIN memories AS source ON source.id = e.source_id
        WHERE e.memory_id = m.id AND e.role IN ({1})
    )
    WHERE m.namespace_id = :n AND m.level IN ({2}) AND m.standing IS NULL
"""
_FILL_STANDINGS = (
    f"UPDATE memories AS m SET standing = {_STANDING.format('m', 5)}"
    " WHERE namespace_id = :n AND level = 'raw' AND standing IS NULL",
    _LOWEST.format(
        _STANDING.format("source", "CASE WHEN source.author = m.author THEN 5 ELSE 4 END"),
        "'derived_from'",
        "'explicit'",
    ),
    _LOWEST.format("source.standing", "'reinforces', 'contradicts', 'insight_support'", "'derived', 'contradiction'"),
    """
    UPDATE memories AS m SET standing = (
        SELECT min(said.standing) FROM session_digests AS d
        JOIN memories AS said ON said.session_id = d.session_id AND said.level = 'raw' AND said.seq <= d.end_seq
        WHERE d.memory_id = m.id
    )
    WHERE m.namespace_id = :n AND m.level IN ('summary_short', 'summary_long') AND m.standing IS NULL
    """,
)
# A session whose counter is below its messages would give the next message a number that is taken.
_RAISE_LAST_SEQ = """
    UPDATE sessions AS s SET last_seq = said.seq
    FROM (SELECT session_id, max(seq) AS seq FROM memories WHERE namespace_id = :n AND level = 'raw' GROUP BY 1) AS said
    WHERE s.id = said.session_id AND s.last_seq < said.seq
"""
# In an export of a release that did not store which lines of a topic no extraction wrote.
_FILL_OWN = (
    "UPDATE topics SET own = concat_ws(E'\\n', filename, name, description, content)"
    " WHERE namespace_id = :n AND own = ''"
    " AND NOT EXISTS (SELECT FROM topic_sources WHERE topic_sources.topic_id = topics.id)"
)
# A dead letter is not exported. Without it nobody could retry the job of a row that is dead.
_WANT_DEAD = (
    "UPDATE extractions SET state = 'wanted' WHERE namespace_id = :n AND state = 'dead'",
    "UPDATE observation_logs SET observing = 'wanted' WHERE namespace_id = :n AND observing = 'dead'",
    "UPDATE observation_logs SET reflecting = 'wanted' WHERE namespace_id = :n AND reflecting = 'dead'",
    "UPDATE perspectives SET dead = false WHERE namespace_id = :n AND dead",
    "UPDATE derivations SET state = 'wanted', batch = NULL WHERE namespace_id = :n AND state = 'dead'",
    "UPDATE digest_requests SET dead = false WHERE namespace_id = :n AND dead",
)
# Of two imports at a time into one namespace, the second waits, and then finds the sessions of the first.
_LOCK = text("SELECT id FROM namespaces WHERE id = :n FOR NO KEY UPDATE")

_SHA256 = re.compile("[0-9a-f]{64}")

Line = tuple[int, Any, int]  # the line's number, its document, and its length in characters
Ids = dict[str, dict[int, int]]  # table → exported id → new id


def store(tx: Transaction, namespace_id: int, documents: Iterable[Line]) -> dict[str, int]:
    """Store the documents of an export. Returns the number of stored rows of each table.

    Each row gets a new id, and the references between rows get the new ids. After an error nothing is stored, because
    the caller's transaction is rolled back.

    Args:
        namespace_id: the namespace to import into.
        documents: the lines of the export.

    Raises:
        InvalidInput: the namespace has sessions already, or the documents are not a complete and valid export of this
            version of the format.
    """
    tx.execute(_LOCK, {"n": namespace_id})
    if tx.scalar(text("SELECT 1 FROM sessions WHERE namespace_id = :n LIMIT 1"), {"n": namespace_id}):
        raise InvalidInput(
            "The namespace has sessions already.", remedy="Import into a new one: choose another --namespace."
        )
    _Reading(tx, namespace_id).read(documents)
    for statement in (*_FILL_STANDINGS, _RAISE_LAST_SEQ, _FILL_OWN, *_WANT_DEAD):
        tx.execute(text(statement), {"n": namespace_id})
    embeddings.record_gap(tx, namespace_id)
    counts = {name: _count(tx, name, namespace_id) for name in _MODELS}
    return {name: count for name, count in counts.items() if count}


class _Reading:
    def __init__(self, tx: Transaction, namespace_id: int) -> None:
        self.tx, self.namespace_id = tx, namespace_id
        self.scrub = True  # the setting of the namespace, which the header may change
        self.ids: Ids = {name: {} for name in _MODELS}
        self.superseded: list[tuple[int, int]] = []  # (new memory id, exported id of the superseding memory)
        # The exported rows of two tables. These rows refer to memories, which come later in the export.
        self.perspectives: list[dict[str, Any]] = []
        self.reflections: list[dict[str, Any]] = []

    def read(self, documents: Iterable[Line]) -> None:
        numbered = iter(documents)
        self._header(*next(numbered, (1, None, 0))[:2])
        rows, ended, reached = 0, None, -1
        groups = groupby(numbered, key=_kind)
        for name, run in groups:
            if name == "end":
                [(_, end, _), *more] = run
                ended = end["end"]
                if more or next(groups, None) is not None:
                    raise InvalidInput("Lines follow the end of the export.")
                break
            if name not in _MODELS or _ORDER[name] < reached:
                raise InvalidInput(f"Rows of {name!r} are out of order, or this version does not know them.")
            reached = _ORDER[name]
            rows += self._rows(_MODELS[name], run)
        if ended != rows:
            raise InvalidInput("The export is cut off.", remedy="Write it again with `nexus export`.")
        self._fill_references()

    def _header(self, line: int, header: Any) -> None:
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise InvalidInput(f"Line {line} is not the header of an export.", remedy="Write one: `nexus export`.")
        if header.get("version") != VERSION:
            raise InvalidInput(
                f"The export has version {header.get('version')}, this release reads {VERSION}.",
                remedy="Upgrade nexus-tasks.",
            )
        given = header.get("settings", {})
        settings = {name: given[name] for name in SETTINGS if name in given}
        _check_settings(line, settings, namespaces.languages(self.tx))
        self.scrub = bool(settings.get("scrub", self._scrubs()))
        if self.scrub and settings.get("instructions"):
            settings["instructions"] = scrub(settings["instructions"])[: limits.INSTRUCTIONS_CHARACTERS]
        if self.scrub:
            refuse_tokens(f"Line {line}: observers", settings.get("observers") or ())
        if settings:
            tables = ", ".join(f"{name} = s.{name}" for name in settings)
            self.tx.execute(
                text(
                    f"UPDATE namespaces AS n SET {tables} FROM jsonb_populate_record(NULL::namespaces,"
                    " CAST(:settings AS jsonb)) AS s WHERE n.id = :n"
                ),
                {"settings": _json(settings), "n": self.namespace_id},
            )

    def _scrubs(self) -> bool:
        return bool(self.tx.scalar(text("SELECT scrub FROM namespaces WHERE id = :n"), {"n": self.namespace_id}))

    def _rows(self, model: type[Base], run: Iterable[Line]) -> int:
        count, page, characters = 0, list[tuple[int, dict[str, Any]]](), 0
        for line, document, length in run:
            row = {key: value for key, value in document.items() if key != "table"}
            if page and row.keys() != page[0][1].keys():  # all rows of an insert have the same columns
                count += self._store(model, page)
                page, characters = [], 0
            page.append((line, row))
            characters += length
            if len(page) == AT_ONCE or characters >= CHARACTERS_AT_ONCE:
                count += self._store(model, page)
                page, characters = [], 0
        return count + self._store(model, page)

    def _store(self, model: type[Base], page: list[tuple[int, dict[str, Any]]]) -> int:
        if not page:
            return 0
        table = cast(Table, model.__table__)
        expected = set(written_columns(table))
        rows = []
        for line, row in page:
            if "id" in expected and not isinstance(row.get("id"), int):
                raise InvalidInput(f"Line {line} has no id.")
            if unknown := row.keys() - expected:
                raise InvalidInput(
                    f"Line {line} has fields that this version does not know: {', '.join(sorted(unknown))}."
                )
            _check_row(line, row, table)
            if self.scrub:
                _scrub_row(line, row)
            rows.append({"namespace_id": self.namespace_id, **self._translated(table, line, row)})
        own = "id" in table.c
        # The namespace may know an erased id already: its own messages were erased before this import.
        conflict = "DO NOTHING" if model is ErasedId else ""
        made = insert_rows(self.tx, model, rows, returning="id" if own else "", on_conflict=conflict)
        if own:
            self.ids[table.name].update((row["id"], here) for (_, row), (here,) in zip(page, made, strict=True))
        self._note(table.name, page, made)
        return len(page)

    def _translated(self, table: Table, line: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with new ids in its references. :meth:`_fill_references` later sets the references to later rows."""
        translated = {key: value for key, value in row.items() if key != "id"}
        if table.name == "memories":
            translated["superseded_by"] = None
        if "own" in translated:
            translated["own"] = lines_among(lines_of(Topic(**translated)), translated["own"])
        for name in translated:
            [target] = {key.column.table.name for key in table.c[name].foreign_keys} or {""}
            if target and translated[name] is not None:
                if translated[name] not in self.ids[target]:
                    raise InvalidInput(f"Line {line} refers to a row that the export does not contain ({name}).")
                translated[name] = self.ids[target][translated[name]]
        return translated

    def _note(self, name: str, page: list[tuple[int, dict[str, Any]]], made: list[tuple[Any, ...]]) -> None:
        rows = [row for _, row in page]
        if name == "memories":
            pairs = zip(rows, made, strict=True)
            self.superseded += [(here, row["superseded_by"]) for row, (here,) in pairs if row.get("superseded_by")]
        elif name == "perspectives":
            self.perspectives += rows
        elif name == "reflections":
            self.reflections += rows

    def _fill_references(self) -> None:
        """Set the references from exported rows to memories that come later in the export."""
        memories = self.ids["memories"]
        self._update("memories", "superseded_by", [(here, memories.get(there)) for here, there in self.superseded])
        known = sorted(memories)

        def through(there: int) -> int:
            position = bisect.bisect_right(known, there)
            return memories[known[position - 1]] if position else 0

        own = self.ids["perspectives"]
        marks = [(own[row["id"]], through(row["reflected_through"])) for row in self.perspectives]
        self._update("perspectives", "reflected_through", marks)
        held = [
            (own[row["id"]], _translate_plan(row["held"], memories, through))
            for row in self.perspectives
            if row.get("held") is not None
        ]
        self._update("perspectives", "held", held)
        again = [
            (own[row["id"]], sorted(memories[i] for i in row["again"] if i in memories))
            for row in self.perspectives
            if row.get("again")
        ]
        self._update("perspectives", "again", again)
        made = self.ids["reflections"]
        judged = [(made[row["id"]], _translate_judged(row["judged"], memories)) for row in self.reflections]
        self._update("reflections", "judged", judged)

    def _update(self, table: str, column: str, values: list[tuple[int, Any]]) -> None:
        if not values:
            return
        kind = {"held": "jsonb", "judged": "jsonb", "again": "bigint[]"}.get(column, "bigint")
        self.tx.execute(
            text(
                f"UPDATE {table} AS t SET {column} = v.value"
                f" FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS v (id bigint, value {kind}) WHERE t.id = v.id"
            ),
            {"rows": _json([{"id": here, "value": value} for here, value in values])},
        )


_OF_A_PLAN = {"job_id": str, "facts": int, "held_at": str}  # what `nexus status` reads of a plan


def _translate_plan(plan: Mapping[str, Any], ids: Mapping[int, int], through: Any) -> dict[str, Any]:
    """A reflection's plan (it waits for review) with the new ids of its facts. The id of an erased fact becomes 0.

    The plan gets a new id: a run of the exported namespace has the old one. ``services/transfer.py`` writes its run.
    """
    relations = [
        {**one, "new_id": ids.get(one["new_id"], 0), "old_id": ids.get(one["old_id"], 0)} for one in plan["relations"]
    ]
    insights = [{**one, "support": [ids.get(i, 0) for i in one["support"]]} for one in plan["insights"]]
    supersedes = [ids.get(i, 0) for i in plan["supersedes"]]
    if not all(isinstance(plan[name], kind) for name, kind in _OF_A_PLAN.items()):
        raise TypeError
    seen = {str(ids[int(i)]): _translate_seen(state, ids) for i, state in plan.get("seen", {}).items() if int(i) in ids}
    return {
        **plan,
        "job_id": str(uuid.uuid4()),
        "again": sorted(ids[i] for i in plan.get("again", ()) if i in ids),
        "through": through(plan["through"]),
        "supersedes": supersedes,
        "relations": relations,
        "insights": insights,
        "seen": seen,
    }


def _translate_seen(state: Sequence[Any], ids: Mapping[int, int]) -> list[Any]:
    """What a plan knows of a fact, with the new id of the last message that said it."""
    content, message_id, times = state
    return [content, ids.get(message_id, 0), times]


def _translate_judged(judged: Mapping[str, Any], ids: Mapping[int, int]) -> dict[str, Any]:
    return {name: [[ids.get(i, 0) for i in one] for one in several] for name, several in judged.items()}


def _check_settings(line: int, settings: Mapping[str, Any], known_languages: Sequence[str]) -> None:
    """Refuse settings that ``nexus namespaces set`` refuses. A negative budget would stop every job."""
    budget, concurrency = settings.get("budget_usd_per_day"), settings.get("concurrency")
    if budget is not None and not 0 <= _number(line, "budget_usd_per_day", budget) < 1e8:
        raise InvalidInput(f"Line {line}: budget_usd_per_day must be 0 or more, and less than 100,000,000.")
    if concurrency is not None and not 1 <= concurrency < 2**31:
        raise InvalidInput(f"Line {line}: concurrency must be 1 or more.")
    if len(settings.get("instructions") or "") > limits.INSTRUCTIONS_CHARACTERS:
        raise InvalidInput(f"Line {line}: instructions may have {limits.INSTRUCTIONS_CHARACTERS:,} characters.")
    if settings.get("language") is not None and settings["language"] not in known_languages:
        raise InvalidInput(f"Line {line}: language must be one of {', '.join(known_languages)}.")
    if "time_zone" in settings:
        check_zone(f"Line {line}: time_zone", settings["time_zone"])
    check_count(f"Line {line}: observers", settings.get("observers") or (), limits.OBSERVERS_PER_CALL)
    for observer in settings.get("observers") or ():
        check_name("observers", observer)


# The columns that no call could fill with more than a limit, in whichever table they are.
_NAMES = ("session_key", "observer", "subject", "author", "external_id")


def _number(line: int, name: str, value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidInput(f"Line {line}: {name} is no number.") from None


def _check_row(line: int, row: Mapping[str, Any], table: Table) -> None:
    """Refuse a row that no call could store: too long a text or name, control characters, or an impossible value.

    Postgres takes times that Python cannot read, such as ``infinity``. A namespace with one could not be read.

    Raises:
        InvalidInput: the row is refused. The message names the line.
    """
    try:
        for name, value in row.items():
            if value is not None:
                _check_value(name, value, table)
        for name in _NAMES:
            # A topic or an old release may have no author. An empty subject belongs to facts about nobody.
            if row.get(name) or (row.get(name) is not None and name not in ("author", "subject")):
                check_name(name, row[name])
        if "content" in row:
            _check_content(row)
    except InvalidInput as error:
        raise InvalidInput(f"Line {line}: {error.message}", remedy=error.remedy) from None


# The columns with texts of people and models. `_check_content` bounds what they have together.
_TEXTS = (
    *("content", "own", "author", "made_by", "name", "description"),
    *("observations", "current_task", "suggested_response"),
)


def _scrub_row(line: int, row: dict[str, Any]) -> None:
    """Replace the secrets in a row, as ``services/ingestion.py`` does in a message. Refuse names with one."""
    refuse_tokens(f"Line {line}: a name", [row[name] for name in _NAMES if name != "author" and row.get(name)])
    for name in _TEXTS:
        if isinstance(row.get(name), str):
            row[name] = scrub(row[name])
    if row.get("category"):
        row["category"] = scrub(row["category"])
    if row.get("labels"):
        row["labels"] = [scrub(label) for label in row["labels"]]
    if row.get("author"):
        row["author"] = row["author"][: limits.NAME_CHARACTERS]
    if row.get("tool_calls"):
        row["tool_calls"] = [scrub_value(call) for call in row["tool_calls"]]
    if row.get("data"):
        row["data"] = json.dumps(scrub_value(_data(row["data"])), ensure_ascii=False)


def _check_value(name: str, value: Any, table: Table) -> None:
    kind = table.c[name].type
    if isinstance(kind, DateTime):
        try:
            check_time(name, datetime.fromisoformat(value))
        except (ValueError, TypeError):
            raise InvalidInput(f"{name} is no time in ISO 8601, in the years 1 to 9999.") from None
    elif name == "standing":
        if value not in range(1, len(STANDINGS) + 1):
            raise InvalidInput(f"{name} must be 1 to {len(STANDINGS)}.")
    elif name == "id_hash":
        if not (isinstance(value, str) and _SHA256.fullmatch(value)):
            raise InvalidInput(f"{name} must be a SHA-256 in 64 hexadecimal digits.")
    elif name == "role" and table.name == "memories":
        if value not in ROLES:
            raise InvalidInput(f"{name} must be one of {', '.join(ROLES)}.")
    elif isinstance(kind, (BigInteger, Integer)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < UNBOUNDED_SEQ:
            raise InvalidInput(f"{name} must be a whole number, 0 or more.")
    elif isinstance(kind, Float) and not (isinstance(value, (int, float)) and math.isfinite(value)):
        raise InvalidInput(f"{name} must be a finite number.")


def _check_content(row: Mapping[str, Any]) -> None:
    content = row["content"]
    if not isinstance(content, str):
        raise InvalidInput("content must be text.")
    if row.get("data") is not None and row.get("level") != "raw":
        raise InvalidInput("only a message has data.")
    if row.get("level") == "raw":
        calls = tuple(row.get("tool_calls") or ())
        said = Message(content=content, tool_calls=calls, data=_data(row.get("data")))
        check_size(said)  # a message is at least as strict as a row
        if clean_text(content) != content:
            raise InvalidInput("content holds control characters, which no message has.")
    elif len(content) > limits.MESSAGE_CHARACTERS:
        most = limits.MESSAGE_CHARACTERS
        raise InvalidInput(f"content has {len(content):,} characters; at most {most:,} are stored.")


def _data(given: object) -> Any:
    try:
        return given and json.loads(given) if isinstance(given, str | None) else given
    except (ValueError, RecursionError):
        raise InvalidInput("data must be a text with a JSON object.") from None


def _kind(numbered: Line) -> str:
    line, document, _ = numbered
    if not isinstance(document, dict) or not ("end" in document or isinstance(document.get("table"), str)):
        raise InvalidInput(f"Line {line} is no row of an export.")
    return "end" if "end" in document else str(document["table"])


def _count(tx: Transaction, name: str, namespace_id: int) -> int:
    return int(tx.scalar(text(f"SELECT count(*) FROM {name} WHERE namespace_id = :n"), {"n": namespace_id}) or 0)


def _json(value: object) -> str:
    return json.dumps(value)
