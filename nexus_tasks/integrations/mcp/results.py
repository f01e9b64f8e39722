"""What the tools return. Whatever was said or learned stands behind its citation, so that it is recognised as an echo.

A result is structured data and text at once; clients show a model either. Both carry content only in cited form.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from nexus_tasks.types import ContextBlock, Recall


class Remembered(BaseModel):
    """What ``remember`` did."""

    namespace: str
    session_key: str
    stored: int = Field(description="1, or 0 when it was remembered already")
    buffered: int = Field(description="1 while the database is away: it is kept on this machine and stored later")


class Source(BaseModel):
    """A memory that another one rests on."""

    id: int
    external_id: str | None
    role: str


class Hit(BaseModel):
    """One memory that was found."""

    id: int
    cited: str = Field(description="the memory with its citation; cite it as [m<id>]")
    external_id: str | None
    level: str
    score: float
    confidence: float
    occurred_at: datetime
    session_key: str | None
    observer: str | None
    subject: str | None
    evidence: list[Source]


class Recalled(BaseModel):
    """What ``recall`` found, best first."""

    namespace: str
    query: str
    results: list[Hit]

    def text(self) -> str:
        """The hits as cited lines."""
        return "\n".join(hit.cited for hit in self.results) or "Nothing is remembered about that."


class Cited(BaseModel):
    """What a citation of a context stands for."""

    id: int
    external_id: str | None


class Context(BaseModel):
    """What ``context`` assembled."""

    namespace: str
    text: str = Field(description="every line is cited as [m<id>], or stands in an observation log")
    tokens: int
    max_tokens: int
    citations: dict[str, Cited]
    notes: list[str]


class Digested(BaseModel):
    """A session's digest."""

    namespace: str
    session_key: str
    status: str = Field(description="completed, unchanged, empty, or running when it was not done in time")
    job_id: str
    short: str | None = Field(description="the gist, cited")
    long: str | None = Field(description="the same in full, cited")

    def text(self) -> str:
        """The digest, or how the job stands."""
        return self.long or self.short or f"{self.status} (job {self.job_id})"


class Forgotten(BaseModel):
    """The receipt of an erasure."""

    namespace: str
    deleted: dict[str, int] = Field(description="rows that were erased, by table")
    ids: list[int] = Field(description="the memories that were erased; their citations are void now")
    requeued: list[str] = Field(description="jobs that make anew what rested on other messages, too")
    not_rewritten: list[str] = Field(default=[], description="tables that were too busy to be rewritten on disk")

    def text(self) -> str:
        """The receipt in a line or two."""
        said = f"Erased {len(self.ids)} memories, {sum(self.deleted.values())} rows in all. There is no way back."
        busy = ", ".join(self.not_rewritten)
        return f"{said}\nToo busy to be rewritten on disk: {busy}. Forget it again later." if busy else said


class Waiting(BaseModel):
    """Something that waits, and why."""

    kind: str
    reason: str
    due_in_seconds: float


class Status(BaseModel):
    """How a namespace's memory stands."""

    namespace: str
    memories: dict[str, int]
    jobs: dict[str, int]
    underived: int
    waits: list[Waiting]
    spend_today_usd: float
    paused: list[str]


class DigestEntry(BaseModel):
    """A session, and where its digest is read."""

    session_key: str
    uri: str
    messages: int
    digested_through: int


def hit(found: Recall) -> Hit:
    """A search hit with its content behind its citation."""
    who = f"{found.subject}: " if found.subject else ""
    return Hit(
        id=found.id,
        cited=cited(found.id, f"{found.occurred_at:%Y-%m-%d} {who}{found.content}"),
        external_id=found.external_id,
        level=found.level,
        score=found.score,
        confidence=found.confidence,
        occurred_at=found.occurred_at,
        session_key=found.session_key,
        observer=found.observer,
        subject=found.subject,
        evidence=[Source(id=edge.id, external_id=edge.external_id, role=edge.role) for edge in found.evidence],
    )


def cited(memory_id: int, content: str) -> str:
    """``content`` on one line behind its citation."""
    return f"[m{memory_id}] {' '.join(content.split())}"


def context(block: ContextBlock) -> Context:
    """A context block."""
    return Context(
        namespace=block.namespace,
        text=block.text,
        tokens=block.tokens,
        max_tokens=block.max_tokens,
        citations={name: Cited.model_validate(ids) for name, ids in block.citations.items()},
        notes=list(block.notes),
    )


def digested(namespace: str, session: Mapping[str, Any], status: str, job_id: str) -> Digested:
    """The digests that a session has."""
    made = {level: cited(digest["id"], digest["content"]) for level, digest in session["digests"].items()}
    return Digested(
        namespace=namespace,
        session_key=session["session_key"],
        status=status,
        job_id=job_id,
        short=made.get("summary_short"),
        long=made.get("summary_long"),
    )


def forgotten(namespace: str, receipt: Mapping[str, Any]) -> Forgotten:
    """The receipt of :meth:`nexus_tasks.client.Nexus.forget`."""
    return Forgotten.model_validate({"namespace": namespace, **receipt})


def status(found: Mapping[str, Any]) -> Status:
    """The document of ``nexus status`` for one namespace, without what only operators need."""
    [one] = found["namespaces"]
    return Status(
        namespace=one["namespace"],
        memories=one["memories"],
        jobs=one["jobs"],
        underived=one["underived"],
        waits=[Waiting.model_validate(wait) for wait in one["waits"]],
        spend_today_usd=one["spend_today_usd"],
        paused=[paused["kind"] for paused in found["paused"]],
    )
