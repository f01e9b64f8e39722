"""The client: writes memory, queues what follows, reads it back."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from pydantic import TypeAdapter, ValidationError

from nexus_tasks.cognition import reflect
from nexus_tasks.cognition.context import ContextRequest, Format, assemble, fit_to_count, render_as
from nexus_tasks.cognition.retrieval import search
from nexus_tasks.deployment import Deployment, default_deployment
from nexus_tasks.errors import EmbeddedError, InvalidInput, NotFound, OverBudget, StorageUnavailable, faults
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.services import admin, buffer_flush, erasure, markdown, observation, transfer
from nexus_tasks.services.ingestion import SessionWriter
from nexus_tasks.settings import Settings
from nexus_tasks.storage import digest_requests, extractions, memories, namespaces, observations, sessions, topics
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.tasks import digest_session, extract_session, finish_dream, follow_ups
from nexus_tasks.tasks.handler import dry_context
from nexus_tasks.types import (
    LEVELS,
    ContextBlock,
    Message,
    Recalls,
    Receipt,
    as_stored,
    check_name,
    check_namespace,
    to_utc,
)

P = ParamSpec("P")
R = TypeVar("R")

MOST_RESULTS = 1_000
MOST_TOKENS = 1_000_000
DEFAULT_TOKENS = 2_000  # of a context
_MESSAGE = TypeAdapter(Message)


def _twin(method: Callable[Concatenate[Nexus, P], R]) -> Callable[Concatenate[Nexus, P], Coroutine[Any, Any, R]]:
    """The asynchronous twin of a method: the same call in a thread, so that an event loop is never blocked."""

    async def twin(self: Nexus, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    functools.update_wrapper(twin, method)
    return twin


class Nexus:
    """Memory for agents. Connects on first use. Thread-safe.

    Args:
        deployment: the deployment to speak to, or the settings of one; ``None``: the default one, of the environment's
            ``NEXUS_*`` variables.

    Every method raises a :class:`~nexus_tasks.errors.NexusError` whose message says what to do, and has an
    asynchronous twin (``aingest``, ``asearch``, …).
    """

    def __init__(self, deployment: Deployment | Settings | None = None) -> None:
        self._deployment = Deployment(deployment) if isinstance(deployment, Settings) else deployment

    @property
    def deployment(self) -> Deployment:
        """The deployment that this client speaks to."""
        return self._deployment or default_deployment()

    def _existing(self, request: Request) -> JobResult:
        """The job that serves ``request``, without asking for another."""
        return task_of(self.deployment.engine, request.kind).existing_result(request)

    # --- writing ------------------------------------------------------------------------------------------------------
    def ingest(
        self,
        namespace: str,
        session_key: str,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        observers: Sequence[str] | None = None,
        observe: bool | None = None,
        end: bool = False,
    ) -> Receipt:
        """Store what was said, in one transaction, and queue what follows. Safe to repeat: see :class:`Message`.

        While Postgres is away the session buffer keeps it (the receipt's ``buffered`` says how many messages), and
        whoever has this machine's folder stores it later.

        Args:
            observers: who wants facts from these messages; ``None``: the namespace's own observers.
            observe: whether the session's old messages are observed from now on (see :meth:`context`); ``None``: as it
                is, which is as the namespace has it unless it was said before.
            end: end the session too (see :meth:`end_session`).

        Raises:
            InvalidInput: nothing was stored.
            BufferError: Postgres does not answer, and the session buffer cannot keep it either; nothing was stored.
        """
        check_namespace(namespace)
        session_key = check_name("session_key", session_key)
        said = [self._message(position, message) for position, message in enumerate(messages)]
        wanted = None if observers is None else [check_name("observers", observer) for observer in observers]
        try:
            buffer_flush.store_pending(self.deployment)  # what was said before goes first
            with self.deployment.database.transaction() as tx:
                writer = SessionWriter(self.deployment, tx, namespaces.ensure(tx, namespace), session_key)
                stored = writer.store(said, wanted, observe=observe)
                if end:
                    writer.end(stored.session)
        except (StorageUnavailable, EmbeddedError):
            return buffer_flush.keep(self.deployment, namespace, session_key, said, wanted, observe=observe, end=end)
        enqueued = writer.enqueue()
        return Receipt(
            namespaces=(namespace,),
            session_keys=(session_key,),
            messages=len(said),
            stored=len(stored.memory_ids),
            duplicates=stored.duplicates,
            enqueued=enqueued,
        )

    def _message(self, position: int, message: Message | Mapping[str, Any]) -> Message:
        if isinstance(message, Message):
            return message
        if not isinstance(message, Mapping):
            raise InvalidInput(f"messages[{position}] must be a Message or a mapping, not {type(message).__name__}.")
        try:
            return _MESSAGE.validate_python(dict(message))
        except ValidationError as error:
            raise InvalidInput(f"messages[{position}] is no message: {faults(error.errors(), root='it')}.") from None

    def remember(self, namespace: str, text: str, *, author: str = "user", session_key: str = "notes") -> Receipt:
        """Store one thing worth knowing, as a message of ``author``."""
        return self.ingest(namespace, session_key, [Message(content=text, author=author)])

    def end_session(self, namespace: str, session_key: str) -> JobResult | None:
        """End a session: what waits for company is derived now, then it is digested. ``None`` when nothing is new.

        Raises:
            NotFound: there is no such namespace or session.
        """
        check_namespace(namespace)
        session_key = check_name("session_key", session_key)
        with self.deployment.database.transaction() as tx:
            known = namespaces.get(tx, namespace)
            writer = SessionWriter(self.deployment, tx, known, session_key)
            writer.end(sessions.get(tx, known.id, session_key, lock=True))
        writer.enqueue()
        if not writer.digest_wanted:
            return None
        return self._existing(digest_session.request(namespace, session_key, "session_end"))

    def digest(self, namespace: str, session_key: str, *, rebuild: bool = False) -> JobResult:
        """Digest a session now; ``rebuild`` makes the digest again from scratch.

        Raises:
            NotFound: there is no such namespace or session.
        """
        check_namespace(namespace)
        reason: digest_session.Reason = "manual_rebuild" if rebuild else "manual_digest"
        with self.deployment.database.transaction() as tx:
            known = namespaces.get(tx, namespace)
            session = sessions.get(tx, known.id, check_name("session_key", session_key))
            digest_requests.add(tx, session, reason)
        return digest_session.digest_session.on(self.deployment).apply_async(
            kwargs={"namespace": namespace, "session_key": session_key, "reason": reason}
        )

    def extract(self, namespace: str, session_key: str) -> JobResult:
        """Extract topics and facts from what a session has said since the last time, as after a coding agent's turn.

        Few new messages wait for more, and so does a turn whose tools have not answered: see ``docs/extraction.md``.

        Raises:
            NotFound: there is no such namespace or session.
        """
        with self.deployment.database.transaction() as tx:
            known = namespaces.get(tx, check_namespace(namespace))
            extractions.want(tx, sessions.get(tx, known.id, check_name("session_key", session_key)))
        return extract_session.extract_session.on(self.deployment).apply_async(
            kwargs={"namespace": namespace, "session_key": session_key.strip()}
        )

    def undo(self, namespace: str, reflection: int | str) -> dict[str, Any]:
        """Reverse one reflection exactly: its memories go, and what it changed in facts is as it was before.

        What was said or reflected on since stays, and no later reflection does the same again. Undoing twice changes
        nothing.

        Args:
            reflection: its number (``memory(...)["reflection"]``), or the id of the job that made it.

        Raises:
            NotFound: there is no such namespace or reflection.
            UndoRefused: later work builds on it.
        """
        if isinstance(reflection, str):
            reflection = check_name("reflection", reflection)
        elif not 1 <= reflection < 2**63:
            raise InvalidInput(f"reflection must be a reflection's number, not {reflection!r}.")
        with self.deployment.database.transaction() as tx:
            known = namespaces.get(tx, check_namespace(namespace))
            return reflect.undo(tx, known.id, reflection)

    def dream(self, namespace: str) -> JobResult:
        """Consolidate a namespace now: digest every session with something new, then reflect. Its job ends after both.

        While a dream of the namespace is open this joins it (``created`` is false) and makes it live.

        Raises:
            NotFound: there is no such namespace.
        """
        started = finish_dream.start(self.deployment, check_namespace(namespace), urgency="live", reason="manual")
        result = self._existing(finish_dream.request(namespace, started.dream_id))
        result.created = started.opened
        return result

    def forget(
        self,
        namespace: str,
        *,
        memory_id: int | None = None,
        session_key: str | None = None,
        everything: bool = False,
    ) -> dict[str, Any]:
        """Erase a memory, a session, or everything that a namespace remembers, and all that was derived only from it.

        Facts that rest on other messages too lose the evidence, or are derived anew from those; digests and conclusions
        that rest on what goes are erased, and digests made again. See ``docs/erasure.md`` for what stays where.

        Returns:
            the receipt: ``{"deleted": {table: rows}, "ids": [memory ids], "requeued": [job ids]}``.

        Raises:
            InvalidInput: not exactly one of the three is given.
            NotFound: there is no such namespace, memory or session.
        """
        return erasure.forget(
            self.deployment,
            check_namespace(namespace),
            memory_id=memory_id,
            session_key=session_key,
            everything=everything,
        )

    def export(self, namespace: str, path: str | Path) -> dict[str, int]:
        """Write all that a namespace remembers to a file of JSON lines, without loss; returns the rows by table.

        Vectors are not in it (:meth:`import_` has them made anew), nor jobs, dead letters and the bill.

        Raises:
            NotFound: there is no such namespace.
            InvalidInput: the file cannot be written.
        """
        return transfer.export(self.deployment, check_namespace(namespace), Path(path))

    def import_(self, namespace: str, path: str | Path) -> dict[str, int]:
        """Read an export into a new namespace, or one that remembers nothing: all of it or nothing.

        Raises:
            InvalidInput: the file is no export or cut off, or the namespace is not empty.
        """
        return transfer.import_(self.deployment, check_namespace(namespace), Path(path))

    def export_markdown(self, namespace: str, folder: str | Path) -> dict[str, int]:
        """Write the namespace's topics and facts to a folder: ``MEMORY.md``, a file per topic, ``facts.md``.

        Raises:
            NotFound: there is no such namespace.
            InvalidInput: the folder cannot be written.
        """
        return markdown.export(self.deployment, check_namespace(namespace), Path(folder))

    def import_markdown(self, namespace: str, folder: str | Path) -> dict[str, int]:
        """Read the topics in a folder of Markdown, all of them or none; a topic of the same file name is replaced.

        Raises:
            InvalidInput: a file is no topic.
        """
        return markdown.import_(self.deployment, check_namespace(namespace), Path(folder))

    # --- reading ------------------------------------------------------------------------------------------------------
    def search(
        self,
        namespace: str,
        query: str,
        *,
        observer: str | None = None,
        subject: str | None = None,
        session_key: str | None = None,
        levels: Sequence[str] | None = None,
        categories: Sequence[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        as_of: datetime | None = None,
        limit: int = 10,
    ) -> Recalls:
        """The memories that best answer ``query``, best first, each with its score, why it was found and its evidence.

        Args:
            levels: only these; ``None``: all but archived messages and superseded memories.
            categories: only facts of these.
            since, until: only what occurred from the one and before the other.
            as_of: what held at that time, instead of now.
            limit: 1 to 1,000.
        """
        if not isinstance(query, str) or not query.strip():
            raise InvalidInput("query must be a non-empty text.")
        if not 1 <= limit <= MOST_RESULTS:
            raise InvalidInput(f"limit must be 1 to {MOST_RESULTS:,}, not {limit!r}.")
        buffer_flush.store_pending(self.deployment)
        with self.deployment.database.reading() as tx:
            wanted = self._filter(namespaces.get(tx, check_namespace(namespace)).id, observer, subject, levels, as_of)
            wanted = replace(
                wanted,
                session_key=session_key and as_stored(session_key),
                categories=tuple(categories) if categories else None,
                since=to_utc(since) if since else None,
                until=to_utc(until) if until else None,
            )
            return search(tx, self.deployment.embedder, wanted, query, limit)

    def context(
        self,
        namespace: str,
        *,
        session_key: str | None = None,
        query: str | None = None,
        observer: str | None = None,
        subject: str | None = None,
        max_tokens: int | None = None,
        format: Format = "text",
        observe: bool = False,
        count: Literal["estimate", "anthropic"] = "estimate",
    ) -> ContextBlock:
        """What an agent should know now, within ``max_tokens``, every line cited.

        With ``observe`` it is the session itself: its observation log, then what was said since, word for word. That
        may wait for an observation, at most 20 s, when the conversation has run ahead of it.

        Args:
            session_key: adds the session's digest and what it said that is not derived yet.
            query: chooses the facts; without it the recent and confirmed ones come first.
            max_tokens: 2,000 by default; with ``observe`` the whole session, which stays under its own bound (see
                ``docs/observation.md``), and when given, the oldest that does not fit is left out.
            format: ``text``, ``anthropic`` (``messages`` to put before the conversation) or ``json``.
            count: how tokens are counted: ``estimate`` (characters / 4), or ``anthropic``: Claude is asked, over the
                network; when it cannot be, the estimate has to do. ``ContextBlock.counted_by`` says which it was.
        """
        if count not in ("estimate", "anthropic"):
            raise InvalidInput(f"count must be estimate or anthropic, not {count!r}.")
        if max_tokens is not None and (not isinstance(max_tokens, int) or not 1 <= max_tokens <= MOST_TOKENS):
            raise InvalidInput(f"max_tokens must be 1 to {MOST_TOKENS:,}, not {max_tokens!r}.")
        if format not in ("text", "anthropic", "json"):
            raise InvalidInput(f"format must be text, anthropic or json, not {format!r}.")
        buffer_flush.store_pending(self.deployment)
        if observe:
            if session_key is None or query or observer or subject or count != "estimate":
                raise InvalidInput("observe reads one session whole: give session_key, and no query or perspective.")
            session_key = check_name("session_key", session_key)
            check_namespace(namespace)
            return observation.read(self.deployment, namespace, session_key, max_tokens=max_tokens, form=format)
        with self.deployment.database.reading() as tx:
            known = namespaces.get(tx, check_namespace(namespace))
            ask = ContextRequest(
                namespace=namespace,
                namespace_id=known.id,
                session_key=session_key,
                query=query or None,
                observer=observer,
                subject=subject,
                max_tokens=DEFAULT_TOKENS if max_tokens is None else max_tokens,
            )

            def within(bound: int) -> ContextBlock:
                return render_as(assemble(tx, self.deployment.embedder, replace(ask, max_tokens=bound)), format)

            if count == "anthropic":
                return fit_to_count(within, ask.max_tokens, self.deployment.claude.count_tokens)
            return within(ask.max_tokens)

    def memories(
        self,
        namespace: str,
        *,
        observer: str | None = None,
        subject: str | None = None,
        session_key: str | None = None,
        levels: Sequence[str] | None = None,
        as_of: datetime | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Memories that fit, newest first, without their evidence."""
        with self.deployment.database.transaction() as tx:
            wanted = self._filter(namespaces.get(tx, check_namespace(namespace)).id, observer, subject, levels, as_of)
            rows = memories.matching(tx, replace(wanted, session_key=session_key and as_stored(session_key)), limit)
        return [memories.summary(row) for row in rows]

    def memory(self, namespace: str, memory_id: int) -> dict[str, Any]:
        """One memory with its evidence, what rests on it, and what it superseded.

        Raises:
            NotFound: the namespace has no such memory.
        """
        with self.deployment.database.transaction() as tx:
            known = namespaces.get(tx, check_namespace(namespace))
            row = memories.get(tx, known.id, memory_id)
            if row is None:
                raise NotFound(f"There is no memory {memory_id} in {namespace}.")
            return memories.summary(row) | {
                "evidence": [
                    memories.citation_json(edge) for edge in memories.evidence_of(tx, [memory_id]).get(memory_id, ())
                ],
                "supports": memories.resting_on(tx, memory_id),
                "superseded": memories.ids_superseded_by(tx, memory_id),
            }

    def topics(self, namespace: str) -> list[dict[str, Any]]:
        """The namespace's topics, those that changed last first, without their content."""
        with self.deployment.database.transaction() as tx:
            found = topics.every(tx, namespaces.get(tx, check_namespace(namespace)).id)
            return [topics.summary(topic) for topic in found]

    def topic(self, namespace: str, filename: str) -> dict[str, Any]:
        """One topic with its content and the ids of the messages that it was written from.

        Raises:
            NotFound: the namespace has no such topic.
        """
        with self.deployment.database.transaction() as tx:
            known = namespaces.get(tx, check_namespace(namespace))
            found = topics.find(tx, known.id, filename)
            if found is None:
                raise NotFound(
                    f"There is no topic {filename!r} self.deployment.", remedy="See `nexus topics list --namespace NS`."
                )
            sources = sorted(topics.source_ids(tx, [found.id]))
            return topics.summary(found) | {"content": found.content, "sources": sources}

    def sessions(self, namespace: str) -> list[dict[str, Any]]:
        """The namespace's sessions, newest first."""
        with self.deployment.database.transaction() as tx:
            return list(sessions.every(tx, namespaces.get(tx, check_namespace(namespace)).id))

    def session(self, namespace: str, session_key: str) -> dict[str, Any]:
        """One session: its figures, its messages and its digests."""
        with self.deployment.database.transaction() as tx:
            known = namespaces.get(tx, check_namespace(namespace))
            session = sessions.get(tx, known.id, session_key)
            observed = observations.stats(tx, known.id, session.id)
            return sessions.details(tx, session) | {"observation": observed[0] if observed else None}

    def dream_plans(self, namespace: str) -> dict[str, Any]:
        """What a dream of the namespace would do now: the sessions it would digest, and every reflection's plan.

        The model is asked as the dream would ask it (which costs what it costs, within the budget); its answers are
        kept, and the dream uses them. Nothing else changes.

        Raises:
            NotFound: there is no such namespace.
            JobError: the model gave no answer.
        """
        with self.deployment.database.transaction() as tx:
            known = namespaces.get(tx, check_namespace(namespace))
        return reflect.plan_dream(self.deployment.resources, dry_context(self.deployment, known))

    # --- namespaces ---------------------------------------------------------------------------------------------------
    def namespaces(self) -> list[dict[str, Any]]:
        """Every namespace with its settings."""
        with self.deployment.database.transaction() as tx:
            return [namespaces.summary(known) for known in namespaces.every(tx)]

    def namespace(self, namespace: str) -> dict[str, Any]:
        """One namespace with its settings and memories by level."""
        with self.deployment.database.transaction() as tx:
            known = namespaces.get(tx, check_namespace(namespace))
            return namespaces.summary(known) | {"memories": admin.memory_counts(tx, known.id)}

    def create_namespace(self, namespace: str, /, **settings: Any) -> dict[str, Any]:
        """Make a namespace (one that exists stays) and set what is given, as :meth:`set_namespace` does."""
        with self.deployment.database.transaction() as tx:
            namespaces.ensure(tx, check_namespace(namespace))
        return self.set_namespace(namespace, **settings)

    def set_namespace(
        self,
        namespace: str,
        *,
        observers: Sequence[str] | None = None,
        budget_usd_per_day: float | None = None,
        concurrency: int | None = None,
        observe: bool | None = None,
        unset: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Change a namespace's settings; those named in ``unset`` go back to the process-wide ones."""
        if observers is not None and not observers:
            raise InvalidInput("observers must name at least one.")
        if budget_usd_per_day is not None and not 0 <= budget_usd_per_day < 1e8:
            raise InvalidInput("budget_usd_per_day must be 0 or more.")
        if concurrency is not None and concurrency < 1:
            raise InvalidInput("concurrency must be 1 or more.")
        if unknown := set(unset) - {"budget_usd_per_day", "concurrency"}:
            raise InvalidInput(f"{', '.join(sorted(unknown))} cannot be unset.")
        with self.deployment.database.transaction() as tx:
            namespaces.get(tx, check_namespace(namespace))
            known = namespaces.change(
                tx,
                namespace,
                observers=None if observers is None else [check_name("observers", name) for name in observers],
                budget_usd_per_day=budget_usd_per_day,
                concurrency=concurrency,
                observe=observe,
                unset=unset,
            )
        if budget_usd_per_day is not None or "budget_usd_per_day" in unset:
            follow_ups.hurry_all(self.deployment, OverBudget.wait_reason, namespace)
        return namespaces.summary(known)

    # --- what goes on -------------------------------------------------------------------------------------------------
    def status(self, namespace: str | None = None) -> dict[str, Any]:
        """What is waiting, running and dead, and why it waits; for one namespace or all."""
        return admin.status(self.deployment, None if namespace is None else check_namespace(namespace))

    def jobs(self, *, namespace: str | None = None, status: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        """Jobs: queued and running ones, dead letters, then recent runs, each newest first."""
        return admin.jobs(self.deployment, None if namespace is None else check_namespace(namespace), status, limit)

    def job(self, job_id: str) -> dict[str, Any]:
        """One job with everything that is known of it."""
        return admin.job(self.deployment, job_id)

    def retry_job(self, job_id: str) -> JobResult:
        """Run a dead letter again, its counters at 0. Retrying twice enqueues once."""
        return admin.retry(self.deployment, job_id)

    def drop_job(self, job_id: str) -> dict[str, Any]:
        """Give a dead letter up, or remove a queued job."""
        return admin.drop(self.deployment, job_id)

    def resume_jobs(self, kind: str | None = None) -> list[str]:
        """Lift the pause of a job kind, or of all; returns the kinds."""
        return admin.resume(self.deployment, kind)

    def _filter(
        self,
        namespace_id: int,
        observer: str | None,
        subject: str | None,
        levels: Sequence[str] | None,
        as_of: datetime | None,
    ) -> Filter:
        if unknown := set(levels or ()) - set(LEVELS):
            raise InvalidInput(f"levels: {', '.join(sorted(unknown))} is none of {', '.join(LEVELS)}.")
        return Filter(
            namespace_id=namespace_id,
            observer=observer and as_stored(observer),
            subject=subject and as_stored(subject),
            levels=tuple(levels) if levels else None,
            as_of=to_utc(as_of) if as_of else None,
        )

    aexport = _twin(export)
    aforget = _twin(forget)
    aimport_ = _twin(import_)
    aexport_markdown = _twin(export_markdown)
    aimport_markdown = _twin(import_markdown)
    aingest = _twin(ingest)
    aremember = _twin(remember)
    aend_session = _twin(end_session)
    adigest = _twin(digest)
    adream = _twin(dream)
    aextract = _twin(extract)
    aundo = _twin(undo)
    adream_plans = _twin(dream_plans)
    asearch = _twin(search)
    acontext = _twin(context)
    amemories = _twin(memories)
    amemory = _twin(memory)
    asessions = _twin(sessions)
    atopics = _twin(topics)
    atopic = _twin(topic)
    asession = _twin(session)
    anamespaces = _twin(namespaces)
    anamespace = _twin(namespace)
    acreate_namespace = _twin(create_namespace)
    aset_namespace = _twin(set_namespace)
    astatus = _twin(status)
    ajobs = _twin(jobs)
    ajob = _twin(job)
    aretry_job = _twin(retry_job)
    adrop_job = _twin(drop_job)
    aresume_jobs = _twin(resume_jobs)
