"""The client: stores messages, reads memory back, and shows and controls the background jobs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from nexus_tasks.cognition.context import Format
from nexus_tasks.deployment import Deployment, default_deployment
from nexus_tasks.idempotency import quarantine
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.services import (
    dreams,
    erasure,
    intake,
    jobs,
    markdown,
    memories,
    namespaces,
    recall,
    sessions,
    status,
    topics,
    transfer,
)
from nexus_tasks.settings import Settings
from nexus_tasks.types import (
    ContextBlock,
    DreamPlan,
    DroppedJob,
    ForgetReceipt,
    JobDetails,
    JobInfo,
    MarkdownExport,
    MarkdownImport,
    MemoryDetails,
    MemoryInfo,
    Message,
    NamespaceDetails,
    NamespaceInfo,
    QuarantinedMessage,
    Recalls,
    Receipt,
    SessionDetails,
    SessionInfo,
    StatusReport,
    TopicDetails,
    TopicInfo,
    TransferReceipt,
    UndoReceipt,
)

P = ParamSpec("P")
R = TypeVar("R")


def _twin(method: Callable[Concatenate[Nexus, P], R]) -> Callable[Concatenate[Nexus, P], Coroutine[Any, Any, R]]:
    """The asynchronous twin of a method: it makes the same call in a thread, so that the event loop is not blocked."""

    async def twin(self: Nexus, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    functools.update_wrapper(twin, method)
    return twin


class Nexus:
    """Memory for agents. Connects on first use. Thread-safe.

    Every method has an asynchronous twin (``aingest``, ``asearch``, …). Besides the errors in its text, every method
    raises a :class:`~nexus_tasks.errors.NexusError` whose message says what to do: :class:`InvalidInput` for a wrong
    argument, :class:`StorageUnavailable` while Postgres does not answer, :class:`QueueUnavailable` while Redis or the
    broker does not. Returned dataclasses are frozen; their ``to_dict()`` is the document of ``nexus … --json``.

    Args:
        deployment: the deployment to use, or the settings of a new one. Default: the deployment of the environment's
            ``NEXUS_*`` variables.

    Example::

        nexus = Nexus()
        nexus.ingest("acme", "chat-42", [Message(content="I moved to Lisbon.", author="ann")], end=True)
        for hit in nexus.search("acme", "where does ann live?", limit=3):
            print(hit.score, hit.content)
    """

    def __init__(self, deployment: Deployment | Settings | None = None) -> None:
        self._deployment = Deployment(deployment) if isinstance(deployment, Settings) else deployment

    @property
    def deployment(self) -> Deployment:
        """The deployment that this client uses."""
        return self._deployment or default_deployment()

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
        """Store messages in one transaction and queue the jobs for them. Safe to repeat: see :class:`Message`.

        While Postgres does not answer, the session buffer on this machine keeps the messages (``Receipt.buffered`` is
        their number). Later any process that uses the same buffer folder stores them.

        Args:
            namespace: the namespace (tenant); it is made when it is missing.
            session_key: the session; it is made when it is missing, and reopened when it had ended.
            messages: in the order of the conversation; a mapping has the fields of :class:`Message`.
            observers: the observers that get facts from these messages. Default: the namespace's observers.
            observe: whether the session's old messages are observed from now on (see :meth:`context`). Default: no
                change; for a new session, the namespace's setting.
            end: end the session too, as :meth:`end_session` does.

        Returns:
            The numbers of messages that were stored, already known and buffered, and of jobs that were queued.

        Raises:
            InvalidInput: an argument or a message is wrong; nothing was stored.
            BufferError: Postgres does not answer, and the session buffer cannot keep the messages; nothing was stored.

        Example::

            nexus.ingest("acme", "chat-42", [{"content": "I moved to Lisbon.", "author": "ann", "id": "m1"}])
        """
        return intake.ingest(
            self.deployment, namespace, session_key, messages, observers=observers, observe=observe, end=end
        )

    def remember(self, namespace: str, text: str, *, author: str = "user", session_key: str = "notes") -> Receipt:
        """Store one thing worth knowing, as a message.

        Args:
            namespace: the namespace; it is made when it is missing.
            text: the text, complete without a conversation around it; at most 1,000,000 characters.
            author: the message's author.
            session_key: the session that the message is appended to.

        Returns:
            As :meth:`ingest`.

        Raises:
            InvalidInput: an argument is wrong.
            BufferError: as in :meth:`ingest`.
        """
        return self.ingest(namespace, session_key, [Message(content=text, author=author)])

    def end_session(self, namespace: str, session_key: str) -> JobResult | None:
        """End a session: its waiting derivations run now, and then the session is digested.

        Returns:
            The digest's job; ``None`` when nothing is new since the last digest.

        Raises:
            NotFound: there is no such namespace or session.

        Example::

            if job := nexus.end_session("acme", "chat-42"):
                job.wait(timeout=60)
        """
        return sessions.end_session(self.deployment, namespace, session_key)

    def digest(self, namespace: str, session_key: str, *, rebuild: bool = False) -> JobResult:
        """Digest a session now, even if only few messages are new.

        Args:
            namespace: the namespace.
            session_key: the session.
            rebuild: make the digest again from the first message on.

        Returns:
            The job. Its outcome is ``unchanged`` when nothing is new.

        Raises:
            NotFound: there is no such namespace or session.
        """
        return sessions.digest(self.deployment, namespace, session_key, rebuild=rebuild)

    def extract(self, namespace: str, session_key: str) -> JobResult:
        """Extract topics and facts from the session's messages since the last extraction.

        The job waits while only few messages are new, and while tools of the last turn have not answered: see
        ``docs/extraction.md``.

        Returns:
            The job. The ``details`` of its outcome have the numbers of ``topics`` and ``facts``.

        Raises:
            NotFound: there is no such namespace or session.
        """
        return sessions.extract(self.deployment, namespace, session_key)

    def undo(self, namespace: str, reflection: int | str) -> UndoReceipt:
        """Reverse one reflection exactly: delete its memories, and restore the facts that the reflection changed.

        Later messages and reflections stay, and no later reflection makes the same changes again. Undoing twice
        changes nothing.

        Args:
            namespace: the namespace.
            reflection: its number (:attr:`MemoryInfo.reflection`), or the id of the job that made it.

        Returns:
            The ids of the memories that the undo removed, revived and restored.

        Raises:
            NotFound: there is no such namespace or reflection.
            UndoRefused: later memories rest on the reflection; the message names these memories.

        Example::

            nexus.memories("acme", levels=["derived"])[0].reflection  # 12
            nexus.undo("acme", 12)
        """
        return dreams.undo(self.deployment, namespace, reflection)

    def dream(self, namespace: str) -> JobResult:
        """Consolidate a namespace now: digest every session that has new messages, then reflect.

        While a dream of the namespace is open, the call starts no second dream and makes the open dream urgent.

        Returns:
            The job that ends after all digests and reflections; ``created`` is false when a dream was open already.

        Raises:
            NotFound: there is no such namespace.
        """
        return dreams.dream(self.deployment, namespace)

    def forget(
        self,
        namespace: str,
        *,
        memory_id: int | None = None,
        session_key: str | None = None,
        everything: bool = False,
    ) -> ForgetReceipt:
        """Erase a memory, a session or everything, with all memories derived only from it. This cannot be undone.

        A fact that also rests on other messages either stays without the erased evidence, or is derived again from the
        other messages. Digests and conclusions that rest on erased memories are erased too. The digests are made again.
        ``docs/erasure.md`` lists what stays.

        Args:
            namespace: the namespace.
            memory_id: erase this memory.
            session_key: erase this session.
            everything: erase all memories; the namespace, its settings and the record of its costs stay.

        Returns:
            The erased rows and memories, and the jobs that derive and digest again from the messages that stay.

        Raises:
            InvalidInput: not exactly one of the three is given.
            NotFound: there is no such namespace, memory or session.
        """
        return erasure.forget(
            self.deployment, namespace, memory_id=memory_id, session_key=session_key, everything=everything
        )

    def export(self, namespace: str, path: str | Path) -> TransferReceipt:
        """Write everything that a namespace remembers to a file of JSON lines, without loss.

        The file has no vectors (:meth:`import_` asks for new ones), no jobs, no dead letters and no costs.

        Args:
            namespace: the namespace.
            path: the file; an existing file is replaced when the new file is complete.

        Returns:
            The rows written, by table.

        Raises:
            NotFound: there is no such namespace.
            InvalidInput: the file cannot be written.
        """
        return transfer.export(self.deployment, namespace, Path(path))

    def import_(self, namespace: str, path: str | Path) -> TransferReceipt:
        """Read an export into an empty namespace. Either the whole file is stored, or nothing.

        Args:
            namespace: the namespace; it is made when it is missing.
            path: the file that :meth:`export` wrote.

        Returns:
            The rows read, by table.

        Raises:
            InvalidInput: the file is no export or is cut off, or the namespace is not empty; nothing was stored.
        """
        return transfer.import_(self.deployment, namespace, Path(path))

    def export_markdown(self, namespace: str, folder: str | Path) -> MarkdownExport:
        """Write the namespace's topics and facts to a folder: ``MEMORY.md``, a file per topic, ``facts.md``.

        Args:
            namespace: the namespace.
            folder: it is made when it is missing; files of the same names are replaced, others stay.

        Returns:
            The numbers of topics and facts.

        Raises:
            NotFound: there is no such namespace.
            InvalidInput: the folder cannot be written.
        """
        return markdown.export(self.deployment, namespace, Path(folder))

    def import_markdown(self, namespace: str, folder: str | Path) -> MarkdownImport:
        """Read the topics in a folder of Markdown, all of them or none; a topic of the same file name is replaced.

        Args:
            namespace: the namespace; it is made when it is missing.
            folder: all its ``.md`` files are read, except ``MEMORY.md`` and ``facts.md``.

        Returns:
            The numbers of topics read and changed.

        Raises:
            InvalidInput: a file is no topic, or cannot be read; nothing was stored.
        """
        return markdown.import_(self.deployment, namespace, Path(folder))

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
        """Find the memories that best answer a question. It calls no language model.

        Args:
            namespace: the namespace.
            query: a question, or words.
            observer: only memories of this observer. Default: of all.
            subject: only memories about this subject, and messages by this author.
            session_key: only memories of this session.
            levels: only these of ``raw`` (messages), ``explicit`` (facts), ``derived``, ``contradiction``,
                ``summary_short`` and ``summary_long``. Default: all but archived messages.
            categories: only facts of these categories.
            since: only what was said at this time or later; a naive time means UTC.
            until: only what was said before this time.
            as_of: only memories that held at this time. Default: memories that hold now.
            limit: the largest number of hits, 1 to 1,000.

        Returns:
            The hits, best first, each with its score, the parts of the score and its evidence.

        Raises:
            InvalidInput: an argument is wrong.
            NotFound: there is no such namespace.

        Example::

            for hit in nexus.search("acme", "where does ann live?", levels=["explicit"], limit=3):
                print(f"{hit.score:.2f}  {hit.subject}: {hit.content}")
        """
        return recall.search(
            self.deployment,
            namespace,
            query,
            observer=observer,
            subject=subject,
            session_key=session_key,
            levels=levels,
            categories=categories,
            since=since,
            until=until,
            as_of=as_of,
            limit=limit,
        )

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
        """Assemble what an agent should know now, within ``max_tokens``. Every line has a citation.

        With ``observe`` the block is the session itself: its observation log, then the later messages word for word.
        When too many messages are not observed yet, the call waits for their observation, at most 20 s.

        Args:
            namespace: the namespace.
            session_key: add the session's digest and its messages that are not derived yet.
            query: choose the facts that fit this query. Default: recent and confirmed facts first.
            observer: only memories of this observer. Default: of all.
            subject: only memories about this subject. Default: about all.
            max_tokens: 1 to 1,000,000. Default: 2,000; with ``observe`` the whole session (see
                ``docs/observation.md``). With ``observe`` the oldest part that does not fit is left out.
            format: ``text``, ``anthropic`` (``messages`` to put before the conversation) or ``json``.
            observe: read one session whole; needs ``session_key``, and takes no query or perspective.
            count: how tokens are counted: ``estimate`` (characters / 4), or ``anthropic`` (Claude is asked, over the
                network; when it does not answer, tokens are estimated). ``ContextBlock.counted_by`` names the way.

        Returns:
            The block; ``str(block)`` is its text.

        Raises:
            InvalidInput: an argument is wrong.
            NotFound: there is no such namespace.

        Example::

            block = nexus.context("acme", session_key="chat-42", query="ann and tea", max_tokens=500)
            prompt = f"{block}\\n\\n{question}"
        """
        return recall.context(
            self.deployment,
            namespace,
            session_key=session_key,
            query=query,
            observer=observer,
            subject=subject,
            max_tokens=max_tokens,
            form=format,
            observe=observe,
            count=count,
        )

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
    ) -> list[MemoryInfo]:
        """List memories, newest first.

        Args:
            namespace: the namespace.
            observer: as in :meth:`search`.
            subject: as in :meth:`search`.
            session_key: as in :meth:`search`.
            levels: as in :meth:`search`.
            as_of: as in :meth:`search`.
            limit: the largest number of memories.

        Returns:
            The memories, without their evidence.

        Raises:
            InvalidInput: there is no such level.
            NotFound: there is no such namespace.
        """
        return memories.list_memories(
            self.deployment,
            namespace,
            observer=observer,
            subject=subject,
            session_key=session_key,
            levels=levels,
            as_of=as_of,
            limit=limit,
        )

    def memory(self, namespace: str, memory_id: int) -> MemoryDetails:
        """Show one memory with its evidence, the memories that rest on it, and the memories that it superseded.

        Args:
            namespace: the namespace.
            memory_id: 17 for the citation ``[m17]``. A superseded or archived memory is shown too.

        Returns:
            The memory.

        Raises:
            NotFound: there is no such namespace or memory.
        """
        return memories.show_memory(self.deployment, namespace, memory_id)

    def topics(self, namespace: str) -> list[TopicInfo]:
        """List topics, the last changed first, without their content.

        Raises:
            NotFound: there is no such namespace.
        """
        return topics.list_topics(self.deployment, namespace)

    def topic(self, namespace: str, filename: str) -> TopicDetails:
        """Show one topic with its content and the ids of its messages.

        Raises:
            NotFound: there is no such namespace or topic.
        """
        return topics.show_topic(self.deployment, namespace, filename)

    def sessions(self, namespace: str) -> list[SessionInfo]:
        """List sessions with their figures, newest first.

        Raises:
            NotFound: there is no such namespace.
        """
        return sessions.list_sessions(self.deployment, namespace)

    def session(self, namespace: str, session_key: str) -> SessionDetails:
        """Show one session: its figures, its digests and all its messages.

        Raises:
            NotFound: there is no such namespace or session.
        """
        return sessions.show_session(self.deployment, namespace, session_key)

    def dream_plans(self, namespace: str) -> DreamPlan:
        """Show what a dream would do now: the sessions that it would digest, and every reflection's changes.

        The call asks the model the dream's questions, at the same cost and within the budget. The answers are saved for
        the dream. Nothing else changes.

        Raises:
            NotFound: there is no such namespace.
            JobError: the model gave no answer.
        """
        return dreams.plan(self.deployment, namespace)

    # --- namespaces ---------------------------------------------------------------------------------------------------
    def namespaces(self) -> list[NamespaceInfo]:
        """List all namespaces with their settings, by name."""
        return namespaces.list_namespaces(self.deployment)

    def namespace(self, namespace: str) -> NamespaceDetails:
        """Show one namespace with its settings and the number of its memories by level.

        Raises:
            NotFound: there is no such namespace.
        """
        return namespaces.show_namespace(self.deployment, namespace)

    def create_namespace(
        self,
        namespace: str,
        *,
        observers: Sequence[str] | None = None,
        budget_usd_per_day: float | None = None,
        concurrency: int | None = None,
        observe: bool | None = None,
        unset: Sequence[str] = (),
    ) -> NamespaceInfo:
        """Make a namespace, unless it exists, and change the given settings.

        Args:
            namespace: its name: 1 to 128 letters, digits and ``. _ - : /``, without a dot in front.
            observers: see :meth:`set_namespace`, also for the other settings.
            budget_usd_per_day: US dollars.
            concurrency: jobs that run at a time.
            observe: whether long conversations are observed.
            unset: names of settings to reset.

        Returns:
            The namespace with its settings.

        Raises:
            InvalidInput: the name or a setting is wrong. The namespace is made even if a setting is wrong.
        """
        namespaces.create_namespace(self.deployment, namespace)
        return self.set_namespace(
            namespace,
            observers=observers,
            budget_usd_per_day=budget_usd_per_day,
            concurrency=concurrency,
            observe=observe,
            unset=unset,
        )

    def set_namespace(
        self,
        namespace: str,
        *,
        observers: Sequence[str] | None = None,
        budget_usd_per_day: float | None = None,
        concurrency: int | None = None,
        observe: bool | None = None,
        unset: Sequence[str] = (),
    ) -> NamespaceInfo:
        """Change the given settings of a namespace; the others stay.

        Args:
            namespace: the namespace.
            observers: at least one observer; each gets facts of its own from every later message.
            budget_usd_per_day: US dollars per day (UTC), 0 or more. Jobs that would exceed it wait for the next day.
                A higher budget wakes them.
            concurrency: the largest number of jobs that run at a time, 1 or more.
            observe: whether long conversations are observed unless an :meth:`ingest` says otherwise.
            unset: settings (``budget_usd_per_day``, ``concurrency``) that take the process-wide value again.

        Returns:
            The namespace with its settings.

        Raises:
            InvalidInput: a setting is wrong; nothing was changed.
            NotFound: there is no such namespace.
        """
        return namespaces.change_namespace(
            self.deployment,
            namespace,
            observers=observers,
            budget_usd_per_day=budget_usd_per_day,
            concurrency=concurrency,
            observe=observe,
            unset=unset,
        )

    # --- operating ----------------------------------------------------------------------------------------------------
    def status(self, namespace: str | None = None) -> StatusReport:
        """Show what waits, runs and is dead, why it waits, and what was spent today (UTC).

        Args:
            namespace: only this namespace. Default: all.

        Raises:
            NotFound: there is no such namespace.

        Example::

            [acme] = nexus.status("acme").namespaces
            print(acme.underived, "messages to derive,", acme.jobs.dead, "dead letters")
        """
        return status.status(self.deployment, namespace)

    def jobs(self, *, namespace: str | None = None, status: str | None = None, limit: int = 50) -> list[JobInfo]:
        """List jobs: queued and running ones, then dead letters, then finished runs, newest first.

        Args:
            namespace: only jobs of this namespace. Default: of all.
            status: only jobs of this status: ``waiting``, ``pending``, ``running``, ``dead``, or how a run ended, such
                as ``completed``.
            limit: the largest number of jobs.

        Raises:
            NotFound: there is no such namespace.
        """
        return jobs.list_jobs(self.deployment, namespace, status, limit)

    def job(self, job_id: str) -> JobDetails:
        """Show everything that is known of a job.

        Raises:
            NotFound: there is no such job. Finished runs are kept for 30 days.
        """
        return jobs.show_job(self.deployment, job_id)

    def retry_job(self, job_id: str) -> JobResult:
        """Run a dead letter again with its counters at 0, or release a reflection that is held for review.

        Retrying twice queues one job.

        Returns:
            The job that does the work now.

        Raises:
            NotFound: there is no open dead letter and no held reflection with this id.
            ConfigurationError: the job's kind is not known here; the letter stays open.
        """
        return jobs.retry(self.deployment, job_id)

    def drop_job(self, job_id: str) -> DroppedJob:
        """Drop a dead letter, a reflection that is held for review, or a queued job. Its work is not done.

        Raises:
            NotFound: there is no open dead letter, no held reflection and no queued job with this id.
        """
        return jobs.drop(self.deployment, job_id)

    def quarantined(self) -> list[QuarantinedMessage]:
        """List the messages that no worker could read, newest first. The newest 1,000 are kept.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        return quarantine.quarantined(self.deployment.claims)

    def drop_quarantined(self, ids: Sequence[str] | None = None) -> int:
        """Delete messages from quarantine. Returns how many were deleted.

        Args:
            ids: of the messages to delete. Default: all.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        return quarantine.drop(self.deployment.claims, ids)

    def resume_jobs(self, kind: str | None = None) -> tuple[str, ...]:
        """Let a paused job kind run again. Call this when the cause of the pause is corrected.

        Args:
            kind: such as ``derive_memory``. Default: every paused kind.

        Returns:
            The kinds that were resumed.

        Raises:
            InvalidInput: there is no such kind.
        """
        return jobs.resume(self.deployment, kind)

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
    aquarantined = _twin(quarantined)
    adrop_quarantined = _twin(drop_quarantined)
    aresume_jobs = _twin(resume_jobs)
