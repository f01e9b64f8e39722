"""A namespace of any size: copies of LoCoMo's turns and observations, with other names and numbers.

Every copy of a conversation has its own speakers, so that names stay rare. Of five memories, four are turns (``raw``)
and one is a fact about the speaker (``explicit``, from LoCoMo's observations, with its evidence). Each session has a
digest besides: the beginnings of its turns.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import text

from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Database, Transaction
from nexus_tasks.storage.models import Evidence, Memory, PerspectiveRow, SessionDigest, SessionRow
from nexus_tasks.text import content_key, estimate_tokens

BEGINNING = 120  # characters of a turn in its session's digest
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
SYLLABLES = ("ka", "lo", "mi", "ra", "ten", "vo", "sha", "ni", "bel", "dor", "fe", "gri", "hu", "jo", "pa", "qui")


@dataclass(frozen=True)
class Copy:
    """One copy of a conversation, with other names and numbers."""

    number: int
    sample: Mapping[str, Any]

    @property
    def names(self) -> dict[str, str]:
        """The names of the two speakers in this copy."""
        talk = self.sample["conversation"]
        drawn = random.Random(self.number)
        return {
            talk[role]: "".join(drawn.choice(SYLLABLES) for _ in range(3)).capitalize()
            for role in ("speaker_a", "speaker_b")
        }

    def varied(self, said: str) -> str:
        """A text with this copy's names and numbers."""
        for name, other in self.names.items():
            said = re.sub(rf"\b{re.escape(name)}\b", other, said)
        return re.sub(r"\d+", lambda found: str((int(found[0]) * 7 + self.number) % 9_973), said)

    def sessions(self) -> Iterator[tuple[str, list[dict[str, Any]], list[tuple[str, str, str]]]]:
        """Each session's key, its turns, and its facts as (subject, fact, turn)."""
        talk = self.sample["conversation"]
        for key in sorted(filter(re.compile(r"session_\d+").fullmatch, talk), key=lambda key: int(key[8:])):
            observed = self.sample["observation"].get(f"{key}_observation", {})
            facts = [
                (self.names.get(who, who), self.varied(fact), turn if isinstance(turn, str) else turn[0])
                for who, facts in observed.items()
                for fact, turn in facts
            ]
            yield f"{self.number}/{key}", talk[key], facts


def fill(database: Database, embedder: Embedder, namespace_id: int, size: int, data: Path) -> list[str]:
    """Fill a namespace with ``size`` memories and their vectors; returns LoCoMo's questions with the copies' names."""
    samples = json.loads(data.read_text(encoding="utf-8"))
    questions: list[str] = []
    left, number = size, 0
    while left > 0:
        copy = Copy(number, samples[number % len(samples)])
        with database.transaction() as tx:
            left -= _store(tx, embedder, namespace_id, copy, left)
        asked = [one["question"] for one in copy.sample["qa"] if one["category"] != 5]
        drawn = random.Random(number)
        questions += [copy.varied(one) for one in drawn.sample(asked, min(20, len(asked)))]
        number += 1
    random.Random(0).shuffle(questions)
    with database.dedicated_connection() as connection:  # autovacuum would do this later
        connection.execute(text("VACUUM ANALYZE memories, embeddings, postings, evidence, search_totals, sessions"))
    return questions


def _store(tx: Transaction, embedder: Embedder, namespace_id: int, copy: Copy, most: int) -> int:
    owners = {
        name: insert_rows(
            tx,
            PerspectiveRow,
            [{"namespace_id": namespace_id, "observer": "assistant", "subject": name}],
            on_conflict="(namespace_id, observer, subject) DO UPDATE SET subject = excluded.subject",
            returning="id",
        )[0][0]
        for name in copy.names.values()
    }
    stored = 0
    texts: dict[int, str] = {}
    for place, (key, every_turn, every_fact) in enumerate(copy.sessions()):
        turns = every_turn[: most - stored]
        facts = every_fact[: max(min(len(turns) // 4, most - stored - len(turns)), 0)]
        if not turns:
            break
        when = BEGIN + timedelta(days=copy.number % 600 + place)
        session = [{"namespace_id": namespace_id, "session_key": key, "last_seq": len(turns)}]
        session_id = insert_rows(tx, SessionRow, session, returning="id")[0][0]
        said = [
            _row(namespace_id, session_id, "raw", copy.names[turn["speaker"]], copy.varied(turn["text"]), when)
            | {"seq": seq, "role": "user", "external_id": f"{copy.number}:{turn['dia_id']}", "message_key": str(seq)}
            for seq, turn in enumerate(turns, 1)
        ]
        known = [
            _row(namespace_id, session_id, "explicit", who, fact, when)
            | {"perspective_id": owners[who], "content_key": content_key(f"{key}{n}{fact}"), "confidence": 0.9}
            | {"valid_from": when, "category": "fact"}
            for n, (who, fact, _) in enumerate(facts)
            if who in owners
        ]
        ids = [row[0] for rows in (said, known) for row in insert_rows(tx, Memory, rows, returning="id")]
        texts |= dict(zip(ids, [row["content"] for row in (*said, *known)], strict=True))
        by_turn = {turn["dia_id"]: memory_id for turn, memory_id in zip(turns, ids, strict=False)}
        edges = [
            {"namespace_id": namespace_id, "memory_id": fact_id, "source_id": by_turn[turn], "role": "derived_from"}
            for fact_id, (_, _, turn) in zip(ids[len(said) :], [f for f in facts if f[0] in owners], strict=True)
            if turn in by_turn
        ]
        insert_rows(tx, Evidence, edges)
        told = "\n".join(row["content"][:BEGINNING] for row in said)
        digest = _row(namespace_id, session_id, "summary_long", None, told, when) | {"valid_from": when}
        digest_id = insert_rows(tx, Memory, [digest], returning="id")[0][0]
        one = {"session_id": session_id, "memory_id": digest_id, "kind": "long", "end_seq": len(turns), "generation": 0}
        insert_rows(tx, SessionDigest, [{"namespace_id": namespace_id, **one}])
        texts[digest_id] = told
        stored += len(ids) + 1
    _embed(tx, embedder, namespace_id, texts)
    return stored


def _row(
    namespace_id: int, session_id: int, level: str, author: str | None, content: str, when: datetime
) -> dict[str, Any]:
    return {
        "namespace_id": namespace_id,
        "session_id": session_id,
        "level": level,
        "author": author,
        "content": content,
        "tokens": estimate_tokens(content),
        "occurred_at": when,
    }


def _embed(tx: Transaction, embedder: Embedder, namespace_id: int, texts: Mapping[int, str]) -> None:
    vectors: Sequence[Any] = embedder.embed(list(texts.values()))
    driver = tx.connection().connection.driver_connection
    assert driver
    with driver.cursor().copy("COPY embeddings (memory_id, model, namespace_id, vector) FROM STDIN") as copying:
        for memory_id, vector in zip(texts, vectors, strict=True):
            numbers = ",".join(f"{value:.4g}" for value in vector)
            copying.write_row((memory_id, embedder.name, namespace_id, f"[{numbers}]"))
