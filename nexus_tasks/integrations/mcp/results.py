"""The results of the MCP server's tools.

A result consists of structured data and a text. A client shows one of the two to its model. In each of them, a citation
such as [m17] comes before every memory. When the model repeats a line with its citation, no facts are derived from the
repeated line.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from nexus_tasks.types import Answer, ContextBlock, ForgetReceipt, MemoryDetails, Recall, SessionDetails, StatusReport


class Remembered(BaseModel):
    """The result of ``remember``."""

    namespace: str
    session_key: str
    stored: int = Field(description="1, or 0 when it was remembered already")
    buffered: int = Field(description="1 while the database is away: the text is kept on this machine and stored later")


class Source(BaseModel):
    """A piece of evidence: a memory that another memory rests on."""

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
    standing: str | None = Field(description="whose words it rests on: self, other, assistant, tool or import")
    event: str | None = Field(description="the time of which the fact speaks: a day, a month or a year")
    session_key: str | None
    observer: str | None
    subject: str | None
    evidence: list[Source]
    more_evidence: int = Field(default=0, description="number of the sources that are not in evidence")


class Recalled(BaseModel):
    """The result of ``recall``, best first."""

    namespace: str
    query: str
    results: list[Hit]

    def text(self) -> str:
        """The hits, one per line, each after its citation."""
        return "\n".join(hit.cited for hit in self.results) or "Nothing is remembered about that."


class Cited(BaseModel):
    """The memory that a citation in a context names."""

    id: int
    external_id: str | None


class Context(BaseModel):
    """The result of ``context``."""

    namespace: str
    text: str = Field(description="every line is cited as [m<id>], or belongs to an observation log")
    tokens: int
    max_tokens: int
    citations: dict[str, Cited]
    notes: list[str]


class Answered(BaseModel):
    """The result of ``ask``."""

    namespace: str
    question: str
    remembered: bool = Field(description="false: the memories do not tell")
    text: str = Field(description="one sentence a line, each after its citations")
    citations: dict[str, Cited]
    made_by: str
    notes: list[str]


class Corrected(BaseModel):
    """The result of ``revise`` and ``pin``: the fact that holds now."""

    namespace: str
    id: int
    cited: str = Field(description="the fact with its citation")
    superseded: list[int] = Field(description="ids of the facts that it replaced; do not cite them any more")
    pinned: bool
    reflection: int | None = Field(description="the number with which the operator can undo a correction")
    expires_at: datetime | None


class Digested(BaseModel):
    """A session's digest."""

    namespace: str
    session_key: str
    status: str = Field(description="completed, unchanged, empty, or running when the job did not end in time")
    job_id: str
    short: str | None = Field(description="the short summary, cited")
    long: str | None = Field(description="the long summary, cited")

    def text(self) -> str:
        """The text of the long digest, else the short digest, else the status of the job."""
        return self.long or self.short or f"{self.status} (job {self.job_id})"


class Forgotten(BaseModel):
    """The receipt of an erasure."""

    namespace: str
    deleted: dict[str, int] = Field(description="number of erased rows, by table")
    ids: list[int] = Field(description="ids of the erased memories; do not cite them any more")
    requeued: list[str] = Field(description="ids of the jobs that make facts and digests again")
    not_rewritten: list[str] = Field(default=[], description="tables that were too busy to be rewritten on disk")

    def text(self) -> str:
        """The receipt in one or two lines."""
        receipt = f"Erased {len(self.ids)} memories, {sum(self.deleted.values())} rows in all. There is no way back."
        busy = ", ".join(self.not_rewritten)
        return f"{receipt}\nToo busy to be rewritten on disk: {busy}. Forget it again later." if busy else receipt


class Waiting(BaseModel):
    """A job that waits, and the reason."""

    kind: str
    reason: str
    due_in_seconds: float | None


class Status(BaseModel):
    """The state of a namespace's memory."""

    namespace: str
    memories: dict[str, int]
    jobs: dict[str, int]
    underived: int
    waits: list[Waiting]
    spend_today_usd: float
    paused: list[str]


class DigestEntry(BaseModel):
    """A session, and the URI of its digest."""

    session_key: str
    uri: str
    messages: int
    digested_through: int


def hit(found: Recall) -> Hit:
    """Convert a search hit to a hit of the tool ``recall``, with the citation before the content."""
    subject = f"{found.subject}: " if found.subject else ""
    event = f" ({found.event})" if found.event and found.event not in found.content else ""
    return Hit(
        id=found.id,
        cited=cited(found.id, f"{found.occurred_at:%Y-%m-%d} {subject}{found.content}{event}"),
        external_id=found.external_id,
        level=found.level,
        score=found.score,
        confidence=found.confidence,
        occurred_at=found.occurred_at,
        standing=found.standing,
        event=found.event,
        session_key=found.session_key,
        observer=found.observer,
        subject=found.subject,
        evidence=[Source(id=edge.id, external_id=edge.external_id, role=edge.role) for edge in found.evidence],
        more_evidence=found.more_evidence,
    )


def cited(memory_id: int, content: str) -> str:
    """Write the citation of a memory and the memory's ``content`` on one line."""
    return f"[m{memory_id}] {' '.join(content.split())}"


def context(block: ContextBlock) -> Context:
    """Convert a context block to the result of the tool ``context``."""
    return Context(
        namespace=block.namespace,
        text=block.text,
        tokens=block.tokens,
        max_tokens=block.max_tokens,
        citations={
            name: Cited(id=memory.id, external_id=memory.external_id) for name, memory in block.citations.items()
        },
        notes=list(block.notes),
    )


def answered(found: Answer) -> Answered:
    """Convert an answer to the result of the tool ``ask``, with the citations before each sentence."""
    lines = [f"{''.join(f'[m{i}]' for i in one.citations)} {one.text}" for one in found.sentences]
    return Answered(
        namespace=found.namespace,
        question=found.question,
        remembered=found.remembered,
        text="\n".join(lines) or found.text,
        citations={name: Cited(id=one.id, external_id=one.external_id) for name, one in found.citations.items()},
        made_by=found.made_by,
        notes=list(found.notes),
    )


def corrected(namespace: str, found: MemoryDetails) -> Corrected:
    """The result of the tools ``revise`` and ``pin``."""
    return Corrected(
        namespace=namespace,
        id=found.id,
        cited=cited(found.id, f"{found.subject}: {found.content}"),
        superseded=list(found.superseded),
        pinned=found.pinned,
        reflection=found.reflection,
        expires_at=found.expires_at,
    )


def digested(namespace: str, session: SessionDetails, status: str, job_id: str) -> Digested:
    """The result of the tool ``digest_session``, with the digests that the session has."""
    made = {level: cited(digest.id, digest.content) for level, digest in session.digests.items()}
    return Digested(
        namespace=namespace,
        session_key=session.session_key,
        status=status,
        job_id=job_id,
        short=made.get("summary_short"),
        long=made.get("summary_long"),
    )


def forgotten(namespace: str, receipt: ForgetReceipt) -> Forgotten:
    """Convert the receipt of :meth:`nexus_tasks.client.Nexus.forget` to the result of the tool ``forget``."""
    return Forgotten.model_validate({"namespace": namespace, **receipt.to_dict()})


def status(found: StatusReport) -> Status:
    """The result of the tool ``memory_status``: one namespace of ``nexus status``, without the fields for operators."""
    [one] = found.namespaces
    return Status(
        namespace=one.namespace,
        memories=dict(one.memories),
        jobs=one.jobs.to_dict(),
        underived=one.underived,
        waits=[Waiting(kind=wait.kind, reason=wait.reason, due_in_seconds=wait.due_in_seconds) for wait in one.waits],
        spend_today_usd=one.spend_today_usd,
        paused=[paused.kind for paused in found.paused],
    )
