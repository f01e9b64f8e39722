"""The client class ``Nexus``: it stores messages, searches memories, and shows and controls the background jobs."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TextIO, TypeVar

from nexus_tasks import limits, services
from nexus_tasks.deployment import Deployment, default_deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.services.arguments import checked_methods
from nexus_tasks.services.cells.routed import routed_methods
from nexus_tasks.services.cells.router import Cells
from nexus_tasks.services.limits import limited_methods
from nexus_tasks.services.spans import traced_methods
from nexus_tasks.settings import Settings
from nexus_tasks.types import (
    WEBHOOK_EVENTS,
    Answer,
    AnswerSentence,
    AuditEntry,
    ContextBlock,
    ContextFormat,
    DreamPlan,
    DroppedJob,
    DroppedJobs,
    FinishedJobs,
    ForgetReceipt,
    JobDetails,
    JobInfo,
    JobRepair,
    MarkdownExport,
    MarkdownImport,
    MemoryDetails,
    MemoryInfo,
    Message,
    NamespaceDetails,
    NamespaceInfo,
    NewToken,
    NewWebhook,
    ObservationText,
    PausedNamespace,
    PerspectiveInfo,
    QuarantinedMessage,
    Recalls,
    Receipt,
    RetriedJobs,
    SessionDetails,
    SessionInfo,
    SourcedFact,
    SpendReport,
    Standing,
    StatusReport,
    TokenInfo,
    TokenScope,
    TopicDetails,
    TopicInfo,
    TopicType,
    TransferReceipt,
    UndoReceipt,
    Urgency,
    WebhookEvent,
    WebhookInfo,
    check_namespace,
)

P = ParamSpec("P")
R = TypeVar("R")


# Methods that an application calls for each of its requests. `ingest` and `remember` look at the silence themselves.
_OFTEN = frozenset({"search", "context", "profile", "ask", "session"})


def _twin(method: Callable[Concatenate[Nexus, P], R]) -> Callable[Concatenate[Nexus, P], Coroutine[Any, Any, R]]:
    """Make the asynchronous twin of ``method``. It calls ``method`` in a thread, so the event loop is not blocked."""

    async def twin(self: Nexus, /, *args: P.args, **kwargs: P.kwargs) -> R:
        checked: Callable[..., R] = getattr(self, method.__name__)  # the class's decorator has replaced `method`
        call = functools.partial(checked, *args, **kwargs)
        if method.__name__ in _OFTEN:
            return await asyncio.to_thread(lambda: self.deployment.unless_silent(call))
        return await asyncio.to_thread(call)

    functools.update_wrapper(twin, method)
    return twin


def _file(given: str | Path | TextIO) -> Path | TextIO:
    return Path(given) if isinstance(given, str) else given


@traced_methods
@routed_methods
@limited_methods
@checked_methods
class Nexus:
    """The memory of agents: store messages, search memories, and control the jobs that make memories from messages.

    The client connects to Postgres and Redis on its first call. Threads may share one client. Every method has an
    asynchronous twin (``aingest``, ``asearch``, …).

    The docstring of a method lists the errors that this method raises. In addition, every method may raise:

    - :class:`InvalidInput`: an argument is wrong.
    - :class:`StorageUnavailable`: Postgres does not answer.
    - :class:`QueueUnavailable`: Redis or the broker does not answer.
    - :class:`NotAllowed`: the client is limited to other namespaces.

    All errors are :class:`~nexus_tasks.errors.NexusError`. The message of an error says what to do. Returned
    dataclasses are frozen. Their method ``to_dict()`` gives the document that ``nexus … --json`` prints.

    Args:
        deployment: the deployment to use, or the settings of a new one. Default: the deployment of the environment's
            ``NEXUS_*`` variables.
        namespaces: the only namespaces that this client may use. A call about another one raises :class:`NotAllowed`,
            and Postgres hides and protects the rows of the others (see ``docs/tenants.md``). Default: the deployment's
            setting ``NEXUS_NAMESPACES``, which by default allows all namespaces.
        cells: several deployments that share the namespaces: the path of a file of cells, or :class:`Cells` (see
            ``docs/cells.md``). A method with a namespace goes to the namespace's cell. A method without one asks every
            cell; its result names the cells that are ``away``. Default without ``deployment``: the file that
            ``NEXUS_CELLS`` names, unless ``NEXUS_CELL`` names one of its cells.

    Example::

        nexus = Nexus()
        nexus.ingest("acme", "chat-42", [Message(content="I moved to Lisbon.", author="ann")], end=True)
        for hit in nexus.search("acme", "where does ann live?", limit=3):
            print(hit.score, hit.content)
    """

    def __init__(
        self,
        deployment: Deployment | Settings | None = None,
        *,
        namespaces: Sequence[str] | None = None,
        cells: str | Path | Cells | None = None,
    ) -> None:
        if not isinstance(deployment, Deployment | Settings | None):
            raise InvalidInput(f"Nexus takes a Deployment or Settings, not {type(deployment).__name__}.")
        if not isinstance(cells, str | Path | Cells | None):
            raise InvalidInput(f"cells must be the path of a file of cells, or Cells, not {type(cells).__name__}.")
        if deployment is not None and cells is not None:
            raise InvalidInput("Nexus takes a deployment or cells, not both.")
        self._given_cells = cells
        self._deployment = Deployment(deployment) if isinstance(deployment, Settings) else deployment
        if isinstance(namespaces, str):
            raise InvalidInput("namespaces must be a list of names, not str.")
        self._namespaces = None if namespaces is None else tuple(check_namespace(name) for name in namespaces)

    @property
    def limit(self) -> tuple[str, ...] | None:
        """The only namespaces that this client may use; ``None`` when it may use all."""
        allowed = self.deployment.settings.namespaces
        if self._namespaces is None or allowed is None:
            return self._namespaces if allowed is None else allowed
        return tuple(name for name in self._namespaces if name in allowed)

    @property
    def deployment(self) -> Deployment:
        """The deployment that this client uses. With cells, it is the one that keeps the table of namespaces."""
        return self.cells.directory if self.cells else self._deployment or default_deployment()

    @property
    def cells(self) -> Cells | None:
        """The deployments that this client chooses from; ``None`` when it uses one deployment.

        Example::

            derive_memory.on(nexus.cells.deployment_of("acme")).delay(namespace="acme", memory_id=17)
        """
        return None if self._deployment is not None else self._cells

    @functools.cached_property
    def _cells(self) -> Cells | None:
        given = self._given_cells
        if given is None and not os.environ.get("NEXUS_CELL"):
            given = os.environ.get("NEXUS_CELLS") or None
        return given if isinstance(given, Cells | None) else Cells(str(given))

    @functools.cached_property
    def members(self) -> Mapping[str, Nexus]:
        """A client of each cell, with the limit of this client."""
        deployments = self.cells.deployments if self.cells else {}
        return {name: Nexus(deployment, namespaces=self._namespaces) for name, deployment in deployments.items()}

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
        replace: bool = False,
    ) -> Receipt:
        """Store messages in one transaction, and queue the jobs that derive facts from the messages.

        A repeated call stores no message twice: see :class:`Message`. While Postgres does not answer, the session
        buffer on this machine keeps the messages. ``Receipt.buffered`` is the number of these messages. Later a process
        that uses the same buffer folder stores them in Postgres.

        Args:
            namespace: the namespace (tenant). A missing namespace is made.
            session_key: the session. A missing session is made. An ended session is opened again.
            messages: the messages in the order of the conversation. A mapping has the fields of :class:`Message`.
            observers: the observers that get facts from these messages. Default: the namespace's observers.
            observe: whether the session is observed from now on. A job then writes notes on old messages, and in
                :meth:`context` the notes can replace these messages. Default: an existing session keeps its setting,
                and a new session takes the namespace's setting.
            end: also end the session, as :meth:`end_session` does.
            replace: a message whose ``id`` the session has with another text, author, role or data takes the place of
                the stored message, which is erased together with what was derived from it alone. Default: such a
                message is refused. While Postgres does not answer, a call with ``replace`` fails, and nothing is
                buffered.

        Returns:
            How many messages were stored, known already or buffered, and how many jobs were queued.

        Raises:
            InvalidInput: an argument or a message is wrong, or a message has changed. Nothing was stored.
            BufferError: Postgres does not answer, and the session buffer cannot keep the messages. Nothing was stored.

        Example::

            nexus.ingest("acme", "chat-42", [{"content": "I moved to Lisbon.", "author": "ann", "id": "m1"}])
        """
        return services.intake.ingest(
            self.deployment,
            namespace,
            session_key,
            messages,
            observers=observers,
            observe=observe,
            end=end,
            replace=replace,
        )

    def remember(
        self,
        namespace: str,
        text: str,
        *,
        author: str = "user",
        session_key: str = "notes",
        expires_at: datetime | None = None,
        erase_expired: bool = False,
    ) -> Receipt:
        """Store one text to remember, as a message.

        Args:
            namespace: the namespace. A missing namespace is made.
            text: the text, at most 1,000,000 characters. The text should be clear without other messages.
            author: the message's author.
            session_key: the session that the message is appended to. A missing session is made.
            expires_at: from this time on, the text and what was derived from it alone count as superseded. A naive time
                means UTC. Default: they do not expire.
            erase_expired: erase them within an hour after that time, as :meth:`forget` does.

        Returns:
            The receipt of :meth:`ingest`.

        Raises:
            InvalidInput: an argument is wrong.
            BufferError: Postgres does not answer, and the session buffer cannot keep the message.
        """
        message = Message(content=text, author=author, expires_at=expires_at, erase_expired=erase_expired)
        return self.ingest(namespace, session_key, [message])

    def end_session(self, namespace: str, session_key: str) -> JobResult | None:
        """End a session. The session's waiting derivations run now, and then a job digests the session.

        Returns:
            The job that digests the session; ``None`` when the session has no new message since its last digest.

        Raises:
            NotFound: there is no such namespace or session.

        Example::

            if job := nexus.end_session("acme", "chat-42"):
                job.wait(timeout=60)
        """
        return services.sessions.end_session(self.deployment, namespace, session_key)

    def digest(self, namespace: str, session_key: str, *, rebuild: bool = False) -> JobResult:
        """Digest a session now, even if only few messages are new.

        Args:
            namespace: the namespace.
            session_key: the session.
            rebuild: make the digest again, from the session's first message to its last.

        Returns:
            The job. The job's outcome is ``unchanged`` when the session has no new message.

        Raises:
            NotFound: there is no such namespace or session.
        """
        return services.sessions.digest(self.deployment, namespace, session_key, rebuild=rebuild)

    def extract(self, namespace: str, session_key: str) -> JobResult:
        """Extract topics and facts from the messages that the session got since its last extraction.

        The job does nothing (its outcome is ``skipped``) when too few messages are new, or when a tool call of the last
        turn has no answer. See ``docs/extraction.md``.

        Returns:
            The job. The ``details`` of the job's outcome contain the numbers of ``topics`` and ``facts``.

        Raises:
            NotFound: there is no such namespace or session.
        """
        return services.sessions.extract(self.deployment, namespace, session_key)

    def undo(self, namespace: str, reflection: int | str) -> UndoReceipt:
        """Undo one reflection: delete its memories, and restore the facts that it changed.

        Messages and reflections that came after it stay. Later reflections do not repeat the undone changes. A second
        undo of the same reflection changes nothing.

        Args:
            namespace: the namespace.
            reflection: the reflection's number (:attr:`MemoryInfo.reflection`), or the id of the job that reflected.

        Returns:
            The ids of the memories that were deleted, of the facts that hold again, and of the facts that got back
            their earlier figures.

        Raises:
            NotFound: there is no such namespace or reflection.
            UndoRefused: later memories rest on the reflection's memories. The message names the later memories.

        Example::

            nexus.memories("acme", levels=["derived"])[0].reflection  # 12
            nexus.undo("acme", 12)
        """
        return services.dreams.undo(self.deployment, namespace, reflection)

    def dream(self, namespace: str) -> JobResult:
        """Consolidate a namespace now: digest every session that has new messages, then reflect.

        A namespace has at most one open dream. When a dream is open already, the call starts no second dream, and gives
        the open dream the urgency ``live``.

        Returns:
            The job that ends after all digests and reflections. Its ``created`` is false when a dream was open already.

        Raises:
            NotFound: there is no such namespace.
        """
        return services.dreams.dream(self.deployment, namespace)

    def forget(
        self,
        namespace: str,
        *,
        memory_id: int | None = None,
        session_key: str | None = None,
        everything: bool = False,
    ) -> ForgetReceipt:
        """Erase a memory, a session or a whole namespace's memories. An erasure cannot be undone.

        A fact is erased when it rests only on erased messages. When it also rests on other messages, it either stays
        without the erased evidence, or is derived again from the other messages. Digests and derived memories that rest
        on erased memories are erased too. The digests are made again. ``docs/erasure.md`` lists the data that stay.

        Args:
            namespace: the namespace.
            memory_id: erase this memory.
            session_key: erase this session.
            everything: erase all memories. The namespace, its settings and the record of its costs stay.

        Returns:
            The erased rows and memories, and the jobs that make facts and digests again from the remaining messages.

        Raises:
            InvalidInput: not exactly one of ``memory_id``, ``session_key`` and ``everything`` is given.
            NotFound: there is no such namespace, memory or session.
        """
        return services.erasure.forget(
            self.deployment, namespace, memory_id=memory_id, session_key=session_key, everything=everything
        )

    def revise(
        self,
        namespace: str,
        memory_id: int,
        content: str,
        *,
        author: str = "user",
        expires_at: datetime | None = None,
        erase_expired: bool = False,
    ) -> MemoryDetails:
        """Replace a fact or a reflection by a corrected fact.

        The new fact rests on a message of ``author``, in the session ``corrections``. It supersedes the old memory,
        which stays readable (``as_of``), and so does a message that says the old fact: :meth:`context` marks it.
        ``undo`` with the new fact's ``reflection`` reverses the correction. Repeating the call changes nothing.

        Args:
            namespace: the namespace.
            memory_id: the memory to correct, of level ``explicit`` or ``derived``. Only this observer's memory changes.
            content: the corrected fact, at most 500 characters. It should be clear without the old one.
            author: who corrects it.
            expires_at: from this time on, the new fact counts as superseded. A naive time means UTC.
            erase_expired: erase the new fact within an hour after that time. The old one then holds again.

        Returns:
            The memory that holds now. When a fact with this content exists already, it is that fact.

        Raises:
            InvalidInput: an argument is wrong, the memory is a message, digest or contradiction, or it is superseded.
            NotFound: there is no such namespace or memory.

        Example::

            corrected = nexus.revise("acme", 17, "Ann is allergic to peanuts, and not to walnuts.", author="ann")
            nexus.undo("acme", corrected.reflection)
        """
        return services.correcting.revise(
            self.deployment,
            namespace,
            memory_id,
            content,
            author=author,
            expires_at=expires_at,
            erase_expired=erase_expired,
        )

    def pin(self, namespace: str, memory_id: int) -> MemoryDetails:
        """Pin a fact or a reflection: it comes first in its subject's profile and in contexts without a query.

        A pinned memory stays valid when a later message contradicts it: the contradiction is recorded, and shown, but
        only :meth:`revise` and :meth:`forget` end the memory. Pinning twice changes nothing.

        Args:
            namespace: the namespace.
            memory_id: the memory, of level ``explicit`` or ``derived``.

        Raises:
            InvalidInput: the memory is a message, digest or contradiction, or it is superseded.
            NotFound: there is no such namespace or memory.
        """
        return services.correcting.pin(self.deployment, namespace, memory_id, pinned=True)

    def unpin(self, namespace: str, memory_id: int) -> MemoryDetails:
        """Take back :meth:`pin`. A memory that is not pinned stays as it is.

        Args:
            namespace: the namespace.
            memory_id: the memory, of level ``explicit`` or ``derived``.

        Raises:
            InvalidInput: the memory is a message, digest or contradiction.
            NotFound: there is no such namespace or memory.
        """
        return services.correcting.pin(self.deployment, namespace, memory_id, pinned=False)

    def export(self, namespace: str, path: str | Path | TextIO, *, overwrite: bool = True) -> TransferReceipt:
        """Write all messages and memories of a namespace to a file of JSON lines.

        The file contains no vectors, jobs, dead letters or costs. After an import, a job computes the vectors again.

        Args:
            namespace: the namespace.
            path: the file, or an open text stream such as ``sys.stdout``. An existing regular file is replaced when the
                new file is complete. A link, a device or a folder is refused.
            overwrite: whether a file that exists is replaced. With ``False`` it is refused.

        Returns:
            The number of written rows of each table.

        Raises:
            NotFound: there is no such namespace.
            InvalidInput: the file cannot be written, or may not be replaced.
        """
        return services.transfer.export(self.deployment, namespace, _file(path), overwrite=overwrite)

    def import_(self, namespace: str, path: str | Path | TextIO) -> TransferReceipt:
        """Read an export into an empty namespace. After an error, nothing is stored.

        Args:
            namespace: the namespace. A missing namespace is made.
            path: the file that :meth:`export` wrote, or an open text stream such as ``sys.stdin``.

        Returns:
            The number of stored rows of each table.

        Raises:
            InvalidInput: the file is not an export, the file is cut off, or the namespace is not empty. Nothing was
                stored.
        """
        return services.transfer.import_(self.deployment, namespace, _file(path))

    def export_markdown(self, namespace: str, folder: str | Path) -> MarkdownExport:
        """Write the namespace's topics and facts to a folder: ``MEMORY.md``, a file per topic, ``facts.md``.

        Args:
            namespace: the namespace.
            folder: the folder to write to. A missing folder is made. In each file, only the section between two marks
                is written. What stands outside of them, and what was written by hand, stays.

        Returns:
            The numbers of topics and facts.

        Raises:
            NotFound: there is no such namespace.
            InvalidInput: a section has edits that :meth:`import_markdown` has not read, or a name belongs to a link,
                or the folder cannot be written.
        """
        return services.markdown.export(self.deployment, namespace, Path(folder))

    def import_markdown(self, namespace: str, folder: str | Path) -> MarkdownImport:
        """Read topics from a folder of Markdown files. After an error, no topic is stored.

        A file replaces the stored topic with the same file name. In a folder that :meth:`export_markdown` wrote from
        this namespace, only changed files are read. A changed line in its ``facts.md`` revises the fact
        (see :meth:`revise`). When a topic has changed since the export, the file's new lines are added to the topic.

        Args:
            namespace: the namespace. A missing namespace is made.
            folder: the folder. All its ``.md`` files are read, except ``MEMORY.md``.

        Returns:
            The numbers of topics that were read, of topics that changed, and of facts that were revised.

        Raises:
            InvalidInput: a file is not a topic, or cannot be read. Nothing was stored.
        """
        return services.markdown.import_(self.deployment, namespace, Path(folder))

    # --- reading ------------------------------------------------------------------------------------------------------
    def search(
        self,
        namespace: str,
        query: str,
        *,
        observer: str | None = None,
        subject: str | None = None,
        session_key: str | None = None,
        session_prefix: str | None = None,
        levels: Sequence[str] | None = None,
        categories: Sequence[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        as_of: datetime | None = None,
        min_standing: Standing | None = None,
        heard_only: bool = False,
        limit: int = 10,
        collapse: bool = True,
    ) -> Recalls:
        """Find the memories that best answer a question. The search calls no language model.

        Args:
            namespace: the namespace.
            query: a question, or some words.
            observer: only memories of this observer, and the messages and digests of all sessions. Default: memories of
                all observers.
            subject: only memories about this subject, and messages by this author.
            session_key: only memories of this session.
            session_prefix: only memories of sessions whose key begins with this text.
            levels: only memories of these levels: ``raw`` (messages), ``explicit`` (facts), ``derived`` (conclusions
                from facts), ``contradiction``, ``summary_short`` and ``summary_long`` (digests). Default: all levels,
                without archived messages.
            categories: only facts of these categories.
            since: only memories of this time or later: the time of which a fact speaks when it is known, or else the
                time when it was said. A naive time means UTC.
            until: only memories of a time before this one. A naive time means UTC.
            as_of: only memories that were valid at this time. Default: memories that are valid now.
            min_standing: only memories that rest on words of at least this standing: ``self`` (a person's words about
                themselves), ``other`` (another person's), ``assistant``, ``tool`` or ``import``. Default: all.
            heard_only: with ``observer``: only messages that this observer heard (those that were ingested for this
                observer), and no digests, because a digest tells what all observers heard.
            limit: the largest number of hits, 1 to 1,000.
            collapse: make one hit of memories that say the same: a fact and its message, the same fact of several
                observers, and the two digests of a session. The evidence of the hit has the others. ``False`` shows
                each memory as a hit.

        Returns:
            The hits, best first. Each hit has its score, the parts of the score and its evidence.

        Raises:
            InvalidInput: an argument is wrong.
            NotFound: there is no such namespace.

        Example::

            for hit in nexus.search("acme", "where does ann live?", levels=["explicit"], limit=3):
                print(f"{hit.score:.2f}  {hit.subject}: {hit.content}")
        """
        return services.recall.search(
            self.deployment,
            namespace,
            query,
            observer=observer,
            subject=subject,
            session_key=session_key,
            session_prefix=session_prefix,
            levels=levels,
            categories=categories,
            since=since,
            until=until,
            as_of=as_of,
            min_standing=min_standing,
            heard_only=heard_only,
            limit=limit,
            collapse=collapse,
        )

    def context(
        self,
        namespace: str,
        *,
        session_key: str | None = None,
        query: str | None = None,
        observer: str | None = None,
        subject: str | None = None,
        min_standing: Standing | None = None,
        heard_only: bool = False,
        profile: bool | None = None,
        max_tokens: int | None = None,
        format: ContextFormat = "text",
        observe: bool = False,
        count: Literal["estimate", "anthropic"] = "estimate",
    ) -> ContextBlock:
        """Assemble a context block: memories for an agent's prompt, with at most ``max_tokens`` tokens.

        Every line of the block has a citation. With ``observe`` the block shows one session: first its observation log
        (notes on the old messages), then the later messages word for word. When a call with ``observe`` finds too many
        messages without notes, it waits up to 20 s for the job that writes the notes.

        Args:
            namespace: the namespace.
            session_key: add the session's digest, and the session's messages that are not derived yet.
            query: choose the facts and messages that fit this query. A message is left out when the shown facts tell
                what it says. A message of which a fact no longer holds cites the later fact. Contradictions and
                reflections that do not touch the query are left out. Default: recent and confirmed facts first.
            observer: only memories of this observer, and messages. Default: memories of all observers.
            subject: only memories about this subject. Default: memories about all subjects.
            min_standing: only memories that rest on words of at least this standing (see :meth:`search`).
            heard_only: with ``observer``: only messages that this observer heard, and no digest.
            profile: begin with the :meth:`profile` of ``subject``, or without a subject with that of the author with
                the most recent messages of role ``user``. Default: only when ``subject`` is given. ``observe``
                leaves the profile out.
            max_tokens: the largest number of tokens, 1 to 1,000,000. Default without ``observe``: 2,000. Default with
                ``observe``: the whole session (see ``docs/observation.md``). With ``observe`` the oldest part that does
                not fit is left out.
            format: ``text``, ``json``, or ``anthropic`` or ``openai`` (``messages`` to put before the conversation, in
                the form of Anthropic's Messages API or of OpenAI's Chat Completions API).
            observe: show one whole session. ``session_key`` is then required. With ``query``, the memories that fit it
                stand between the log and the messages: at most 2,000 tokens, and at most a quarter of ``max_tokens``.
                ``observer``, ``subject`` and ``min_standing`` need a ``query``.
            count: how tokens are counted. ``estimate`` divides the characters by 4. ``anthropic`` asks Claude over the
                network, and estimates when Claude does not answer. ``ContextBlock.counted_by`` names the method used.
                With ``observe``, only ``estimate`` is allowed.

        Returns:
            The block. ``str(block)`` is its text.

        Raises:
            InvalidInput: an argument is wrong.
            NotFound: there is no such namespace.

        Example::

            block = nexus.context("acme", session_key="chat-42", query="ann and tea", max_tokens=500)
            prompt = f"{block}\\n\\n{question}"
        """
        return services.recall.context(
            self.deployment,
            namespace,
            session_key=session_key,
            query=query,
            observer=observer,
            subject=subject,
            min_standing=min_standing,
            heard_only=heard_only,
            profile=profile,
            max_tokens=max_tokens,
            form=format,
            observe=observe,
            count=count,
        )

    def profile(
        self, namespace: str, subject: str, *, observer: str | None = None, max_tokens: int = 500
    ) -> ContextBlock:
        """Show what to know about someone at any time: who they are, and what they like, want and must not have.

        The profile has the facts that hold now and the conclusions of reflections, without single events and opinions.
        What was confirmed most often comes in first. No language model is called. As long as the memories do not
        change, the same call gives the same bytes.

        Args:
            namespace: the namespace.
            subject: the person or thing.
            observer: only memories of this observer. Default: memories of all observers.
            max_tokens: the largest number of tokens, 1 to 1,000,000.

        Returns:
            A block with one section, in which every line has a citation. It is empty when nothing is known.

        Raises:
            InvalidInput: an argument is wrong.
            NotFound: there is no such namespace.

        Example::

            print(nexus.profile("acme", "ann"))
        """
        return services.recall.profile(self.deployment, namespace, subject, observer=observer, max_tokens=max_tokens)

    def ask(
        self,
        namespace: str,
        question: str,
        *,
        observer: str | None = None,
        subject: str | None = None,
        heard_only: bool = False,
        on_sentence: Callable[[AnswerSentence], None] | None = None,
    ) -> Answer:
        """Answer a question from memory, with citations, or say that the answer is not remembered.

        A search comes first. The model answers from what the search found. Before that it may search again, read the
        turns around a memory, or read a span of time, at most four times together. A sentence that cites no memory that
        the model was shown is dropped. Without any line that fits, no model is asked. The model calls count toward the
        namespace's budget (purpose ``answer``). The same question about unchanged memories is paid once a month.

        The offline model answers with the best lines, word for word; ``notes`` says so.

        Args:
            namespace: the namespace.
            question: the question, at most 100,000 characters.
            observer: as in :meth:`search`.
            subject: as in :meth:`search`. Turns around a memory, and spans of time, have the messages of everyone.
            heard_only: as in :meth:`search`.
            on_sentence: called with each sentence as soon as it has arrived and its citations are checked.

        Returns:
            The answer. ``str(answer)`` is its text with citations such as ``[m17]``.

        Raises:
            InvalidInput: an argument is wrong.
            NotFound: there is no such namespace.
            JobError: the model gave no answer, or the budget does not allow the call (:class:`OverBudget`).

        Example::

            answer = nexus.ask("acme", "Where did Clara get married?")
            print(answer if answer.remembered else "I do not know that yet.")
        """
        return services.recall.ask(
            self.deployment,
            namespace,
            question,
            observer=observer,
            subject=subject,
            heard_only=heard_only,
            on_sentence=on_sentence,
        )

    def memories(
        self,
        namespace: str,
        *,
        observer: str | None = None,
        subject: str | None = None,
        session_key: str | None = None,
        session_prefix: str | None = None,
        levels: Sequence[str] | None = None,
        as_of: datetime | None = None,
        superseded: bool = False,
        limit: int = 100,
        offset: int = 0,
    ) -> list[MemoryInfo]:
        """List memories, newest first.

        Args:
            namespace: the namespace.
            observer: as in :meth:`search`.
            subject: as in :meth:`search`.
            session_key: as in :meth:`search`.
            session_prefix: as in :meth:`search`.
            levels: as in :meth:`search`.
            as_of: as in :meth:`search`.
            superseded: also list memories that are superseded or have expired. ``as_of`` overrides it.
            limit: the largest number of memories, at most 1,000.
            offset: the number of memories to leave out at the beginning of the list.

        Returns:
            The memories, without their evidence.

        Raises:
            InvalidInput: there is no such level.
            NotFound: there is no such namespace.
        """
        return services.memories.list_memories(
            self.deployment,
            namespace,
            observer=observer,
            subject=subject,
            session_key=session_key,
            session_prefix=session_prefix,
            levels=levels,
            as_of=as_of,
            superseded=superseded,
            limit=limit,
            offset=offset,
        )

    def perspectives(self, namespace: str, *, limit: int = 100, offset: int = 0) -> list[PerspectiveInfo]:
        """List who holds memories about whom, sorted by observer and subject.

        Args:
            namespace: the namespace.
            limit: the largest number of perspectives, at most 1,000.
            offset: the number of perspectives to leave out at the beginning of the list.

        Raises:
            NotFound: there is no such namespace.
        """
        return services.memories.list_perspectives(self.deployment, namespace, limit=limit, offset=offset)

    def memory(self, namespace: str, memory_id: int) -> MemoryDetails:
        """Show one memory with its sources, and with the memories that it supports or superseded.

        Args:
            namespace: the namespace.
            memory_id: the memory's id: 17 for the citation ``[m17]``. The memory may be superseded or archived.

        Returns:
            The memory.

        Raises:
            NotFound: there is no such namespace or memory.
        """
        return services.memories.show_memory(self.deployment, namespace, memory_id)

    def topics(self, namespace: str, *, limit: int = 100, offset: int = 0) -> list[TopicInfo]:
        """List topics without their content. The most recently changed topic comes first.

        Args:
            namespace: the namespace.
            limit: the largest number of topics, at most 1,000.
            offset: the number of topics to leave out at the beginning of the list.

        Raises:
            NotFound: there is no such namespace.
        """
        return services.topics.list_topics(self.deployment, namespace, limit=limit, offset=offset)

    def topic(self, namespace: str, filename: str) -> TopicDetails:
        """Show one topic with its content and the ids of the messages that the topic was written from.

        Raises:
            NotFound: there is no such namespace or topic.
        """
        return services.topics.show_topic(self.deployment, namespace, filename)

    def write_topic(
        self,
        namespace: str,
        filename: str,
        content: str,
        *,
        name: str | None = None,
        description: str | None = None,
        type: TopicType | None = None,
        author: str = "user",
        revision: int | None = None,
    ) -> TopicDetails:
        """Write a topic: make it, or replace its content.

        Later extractions may add to the topic. Its messages stay its sources, so an erasure of them still reaches it:
        it deletes what extractions wrote, and of your lines those with a word that only the erased messages have.

        Args:
            namespace: the namespace. A missing namespace is made.
            filename: the topic's file name. ``.md`` is added when it is missing, and letters become lower case.
            content: the whole content as Markdown, at most 8,000 characters.
            name: a name for people. Default: the present name, or the file name without ``.md``.
            description: one line. Default: the present description, or the content's first line.
            type: ``user``, ``feedback``, ``project`` or ``reference``. Default: the present type, or ``reference``.
            author: who writes it; ``made_by`` shows it.
            revision: write only when the topic still has this revision; 0 means that there is no such topic. Default:
                write whatever is stored.

        Returns:
            The topic as it is stored. Secrets are replaced as in messages.

        Raises:
            InvalidInput: an argument is wrong.
            Conflict: the topic has another revision.

        Example::

            topic = nexus.topic("acme", "deploys.md")
            nexus.write_topic("acme", "deploys.md", topic.content + "\\n- Not on Fridays.", revision=topic.revision)
        """
        return services.topics.write_topic(
            self.deployment,
            namespace,
            filename,
            content,
            name=name,
            description=description,
            kind=type,
            author=author,
            revision=revision,
        )

    def rename_topic(self, namespace: str, filename: str, new_filename: str) -> TopicDetails:
        """Give a topic another file name.

        Args:
            namespace: the namespace.
            filename: the topic's file name.
            new_filename: its new file name, as in :meth:`write_topic`.

        Raises:
            InvalidInput: the new name is no file name of a topic.
            NotFound: there is no such namespace or topic.
            Conflict: there is a topic with the new name.
        """
        return services.topics.rename_topic(self.deployment, namespace, filename, new_filename)

    def delete_topic(self, namespace: str, filename: str) -> None:
        """Delete a topic. The messages that it was written from stay: :meth:`forget` erases messages.

        Raises:
            NotFound: there is no such namespace or topic.
        """
        services.topics.delete_topic(self.deployment, namespace, filename)

    def sessions(
        self, namespace: str, *, session_prefix: str = "", limit: int = 100, offset: int = 0
    ) -> list[SessionInfo]:
        """List sessions with their figures. The newest session comes first.

        Args:
            namespace: the namespace.
            session_prefix: only sessions whose key begins with this text.
            limit: the largest number of sessions, at most 1,000.
            offset: the number of sessions to leave out at the beginning of the list.

        Raises:
            NotFound: there is no such namespace.
        """
        return services.sessions.list_sessions(
            self.deployment, namespace, prefix=session_prefix, limit=limit, offset=offset
        )

    def session(
        self,
        namespace: str,
        session_key: str,
        *,
        after: int = 0,
        before: int | None = None,
        newest: bool = False,
        ids: Sequence[str] | None = None,
        limit: int = limits.PAGE_ROWS,
    ) -> SessionDetails:
        """Show one session: its figures, its digests and a page of its messages.

        Args:
            namespace: the namespace.
            session_key: the session.
            after: only messages whose ``seq`` is greater than this number. For the next page, pass the ``next_after``
                of this page.
            before: only messages whose ``seq`` is less than this number. Default: no bound.
            newest: of the messages that pass, show the newest ones, in the order of the conversation. For the page
                before it, pass its ``next_before`` as ``before``. Default: the oldest ones.
            ids: only messages with these ids, which their producer gave them (:attr:`Message.id`).
            limit: the largest number of messages, 0 to 1,000.

        Raises:
            NotFound: there is no such namespace or session.

        Example::

            page = nexus.session("acme", "chat-42")
            while page.next_after is not None:
                page = nexus.session("acme", "chat-42", after=page.next_after)
            last = nexus.session("acme", "chat-42", newest=True, limit=10).said
        """
        return services.sessions.show_session(
            self.deployment,
            namespace,
            session_key,
            after=after,
            before=before,
            newest=newest,
            ids=ids,
            limit=limit,
        )

    def session_facts(
        self,
        namespace: str,
        session_key: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 100,
        offset: int = 0,
        superseded: bool = False,
    ) -> list[SourcedFact]:
        """List the facts that rest on messages of a session, in the order of the messages.

        Args:
            namespace: the namespace.
            session_key: the session.
            after: only facts of messages with a greater ``seq``, as in :meth:`session`.
            before: only facts of messages with a smaller ``seq``. Default: of all later messages.
            limit: the largest number of facts, 0 to 1,000.
            offset: the number of facts to skip, at most 1,000,000: the pages before this one.
            superseded: also list facts that are superseded or have expired.

        Raises:
            NotFound: there is no such namespace or session.
        """
        return services.sessions.session_facts(
            self.deployment,
            namespace,
            session_key,
            after=after,
            before=before,
            limit=limit,
            offset=offset,
            superseded=superseded,
        )

    def observation_log(self, namespace: str, session_key: str, *, generation: int | None = None) -> ObservationText:
        """Show the observation log of a session, and what its condensations have replaced.

        Args:
            namespace: the namespace.
            session_key: the session.
            generation: show the text that this generation of the log has replaced (see ``earlier`` of the result).
                Default: the present log.

        Raises:
            NotFound: there is no such namespace or session, the session was never observed, or the text of that
                generation is not kept.
        """
        return services.observation_log.show(self.deployment, namespace, session_key, generation=generation)

    def undo_condensation(self, namespace: str, session_key: str) -> ObservationText:
        """Undo the last condensation of a session's observation log. The notes that came since then stay.

        A condensation can be undone for seven days. When a message that the log covers is erased, it can no longer be
        undone. The log is condensed again when it has grown by a quarter.

        Returns:
            The log as it is now.

        Raises:
            NotFound: there is no such namespace or session, the session was never observed, or no condensation can be
                undone.
        """
        return services.observation_log.undo(self.deployment, namespace, session_key)

    def clear_task(self, namespace: str, session_key: str) -> bool:
        """Clear the current task and the suggested response of a session's observation log.

        Later notes may name a task again.

        Returns:
            Whether there was a task or a suggested response.

        Raises:
            NotFound: there is no such namespace or session, or the session was never observed.
        """
        return services.observation_log.clear_task(self.deployment, namespace, session_key)

    def dream_plans(self, namespace: str) -> DreamPlan:
        """Show the sessions that a dream would digest now, and the changes that its reflections would make.

        The call asks the model the questions that the dream would ask. The answers cost as much as in a dream, and
        count toward the budget. They are saved, so a later dream does not pay for them again. Nothing else changes.

        Raises:
            NotFound: there is no such namespace.
            JobError: the model gave no answer.
        """
        return services.dreams.plan(self.deployment, namespace)

    # --- namespaces ---------------------------------------------------------------------------------------------------
    def namespaces(self, *, limit: int = 100, offset: int = 0) -> list[NamespaceInfo]:
        """List namespaces with their settings, sorted by name.

        Args:
            limit: the largest number of namespaces, at most 1,000.
            offset: the number of namespaces to leave out at the beginning of the list.
        """
        return services.namespaces.list_namespaces(self.deployment, limit=limit, offset=offset)

    def namespace(self, namespace: str) -> NamespaceDetails:
        """Show one namespace with its settings and the number of its memories at each level.

        Raises:
            NotFound: there is no such namespace.
        """
        return services.namespaces.show_namespace(self.deployment, namespace)

    def create_namespace(
        self,
        namespace: str,
        *,
        observers: Sequence[str] | None = None,
        budget_usd_per_day: float | None = None,
        concurrency: int | None = None,
        observe: bool | None = None,
        scrub: bool | None = None,
        time_zone: str | None = None,
        language: str | None = None,
        instructions: str | None = None,
        unset: Sequence[str] = (),
    ) -> NamespaceInfo:
        """Make a namespace if it does not exist, and change the given settings.

        :meth:`set_namespace` describes the settings in more detail.

        Args:
            namespace: the name: 1 to 128 letters, digits and ``. _ - : /``, without a dot in front.
            observers: the namespace's observers, at least one.
            budget_usd_per_day: US dollars per day (UTC), 0 or more.
            concurrency: the largest number of jobs that run at a time, 1 or more.
            observe: whether long conversations are observed.
            scrub: whether secrets in messages are replaced before the messages are stored.
            time_zone: the time zone of speakers whose messages name none, such as ``Europe/Lisbon``.
            language: the language of all texts, such as ``german``. Default: guessed for each text.
            instructions: what models should keep, and what they should leave out.
            unset: names of settings to reset.

        Returns:
            The namespace with its settings.

        Raises:
            InvalidInput: the name or a setting is wrong. The namespace is made even if a setting is wrong.
        """
        services.namespaces.create_namespace(self.deployment, namespace)
        return self.set_namespace(
            namespace,
            observers=observers,
            budget_usd_per_day=budget_usd_per_day,
            concurrency=concurrency,
            observe=observe,
            scrub=scrub,
            time_zone=time_zone,
            language=language,
            instructions=instructions,
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
        scrub: bool | None = None,
        time_zone: str | None = None,
        language: str | None = None,
        instructions: str | None = None,
        unset: Sequence[str] = (),
    ) -> NamespaceInfo:
        """Change the given settings of a namespace. The other settings stay as they are.

        Args:
            namespace: the namespace.
            observers: the namespace's observers, at least one. Each observer gets facts of its own from later messages.
            budget_usd_per_day: US dollars per day (UTC), 0 or more. A job that would exceed the budget waits for the
                next day. A higher budget wakes the waiting jobs.
            concurrency: the largest number of jobs that run at a time, 1 or more.
            observe: whether long conversations are observed: a job writes notes that replace their old messages in
                :meth:`context`. ``ingest(observe=...)`` overrides this setting for a session.
            scrub: whether secrets in messages are replaced before the messages are stored. Default of a new namespace:
                yes. The hook of a coding agent, and the session buffer while Postgres is away, always replace secrets.
            time_zone: the time zone of speakers whose messages name none, such as ``Europe/Lisbon`` or ``+05:30``.
                Words such as "yesterday" mean a day there. It holds for messages that are stored from now on. Default
                of a new namespace: UTC.
            language: the language of all texts, such as ``german``: a search finds other forms of its words. Default:
                guessed for each text. After a change, a worker indexes the stored memories again. Until it has ended,
                a search may miss some of them. The error for an unknown language lists the known ones.
            instructions: what models should keep, and what they should leave out ("remember allergies, ignore small
                talk"), at most 2,000 characters. Claude reads them with every prompt that makes facts, digests, topics
                or notes; the offline model does not. An empty text removes them.
            unset: names of settings (``budget_usd_per_day``, ``concurrency``, ``language``) to reset to their default.

        Returns:
            The namespace with its settings.

        Raises:
            InvalidInput: a setting is wrong. Nothing was changed.
            NotFound: there is no such namespace.
        """
        return services.namespaces.change_namespace(
            self.deployment,
            namespace,
            observers=observers,
            budget_usd_per_day=budget_usd_per_day,
            concurrency=concurrency,
            observe=observe,
            scrub=scrub,
            time_zone=time_zone,
            language=language,
            instructions=instructions,
            unset=unset,
        )

    # --- access -------------------------------------------------------------------------------------------------------
    def create_token(
        self,
        namespace: str,
        name: str,
        *,
        scopes: Sequence[TokenScope] = ("read",),
        expires_at: datetime | None = None,
    ) -> NewToken:
        """Make an access token for one namespace. MCP over HTTP and the HTTP API take it.

        The secret in the token has 256 random bits. The database contains only a SHA-256 of the secret, so no later
        call can return it.

        Args:
            namespace: the namespace. The token gives access to no other one.
            name: a name for people. A namespace has at most one valid token of a name.
            scopes: what the token may do: ``read``, ``write`` (store messages, and with ``read`` also correct) and
                ``erase``.
            expires_at: the end of its validity, by Postgres' clock. A naive time means UTC. Default: it has no end.

        Raises:
            InvalidInput: an argument is wrong, or there is a valid token of this name.
            NotFound: there is no such namespace.

        Example::

            made = nexus.create_token("acme", "support agent", scopes=["read", "write"])
            print(made.token)  # nexus_… : give it to the agent
        """
        return services.access.create_token(self.deployment, namespace, name, scopes=scopes, expires_at=expires_at)

    def tokens(self, namespace: str, *, limit: int = 100, offset: int = 0) -> list[TokenInfo]:
        """List the tokens of a namespace without their secrets, newest first, with those revoked and expired.

        Args:
            namespace: the namespace.
            limit: the largest number of tokens, at most 1,000.
            offset: the number of tokens to leave out at the beginning of the list.

        Raises:
            NotFound: there is no such namespace.
        """
        return services.access.list_tokens(self.deployment, namespace, limit=limit, offset=offset)

    def rotate_token(self, namespace: str, token_id: str, *, grace: float = 0.0) -> NewToken:
        """Give a token a new secret. Its id, name, scopes and end stay.

        Args:
            namespace: the token's namespace.
            token_id: the token's id, as :meth:`tokens` shows it.
            grace: seconds for which the old secret also stays valid, 0 to 2,592,000 (30 days).

        Raises:
            NotFound: there is no such namespace or token, or the token is revoked.
        """
        return services.access.rotate_token(self.deployment, namespace, token_id, grace=grace)

    def revoke_token(self, namespace: str, token_id: str) -> TokenInfo:
        """Refuse a token from now on. This cannot be undone. A second call changes nothing.

        Args:
            namespace: the token's namespace.
            token_id: the token's id, as :meth:`tokens` shows it.

        Raises:
            NotFound: there is no such namespace or token.
        """
        return services.access.revoke_token(self.deployment, namespace, token_id)

    def create_webhook(
        self, namespace: str, url: str, *, events: Sequence[WebhookEvent] = WEBHOOK_EVENTS
    ) -> NewWebhook:
        """Let an address be told of events in a namespace. See ``docs/webhooks.md``.

        An event is told by a job of the kind ``deliver_webhook``, within about 10 s of the commit that made it happen,
        at least once. What is sent has names and ids, and no content. It is signed with the secret.

        Args:
            namespace: the namespace.
            url: the address, which begins with ``https://``. Addresses of private networks are not called, unless
                the deployment allows them (``NEXUS_WEBHOOK_PRIVATE``).
            events: ``session.digested``, ``dream.finished``, ``contradiction.found`` and ``job.dead``, or some of them.

        Returns:
            The webhook with its secret, which no later call returns.

        Raises:
            InvalidInput: an argument is wrong.
            NotFound: there is no such namespace.
        """
        return services.webhooks.create_webhook(self.deployment, namespace, url, events=events)

    def webhooks(self, namespace: str, *, limit: int = 100, offset: int = 0) -> list[WebhookInfo]:
        """List the webhooks of a namespace without their secrets, newest first.

        Args:
            namespace: the namespace.
            limit: the largest number of webhooks, at most 1,000.
            offset: the number of webhooks to leave out at the beginning of the list.

        Raises:
            NotFound: there is no such namespace.
        """
        return services.webhooks.list_webhooks(self.deployment, namespace, limit=limit, offset=offset)

    def resume_webhook(self, namespace: str, webhook_id: str) -> WebhookInfo:
        """Let a webhook be told again that is paused, or that waits after a failure. What waits is told within 10 s.

        Args:
            namespace: the namespace.
            webhook_id: the webhook's id.

        Raises:
            NotFound: there is no such namespace or webhook.
        """
        return services.webhooks.resume_webhook(self.deployment, namespace, webhook_id)

    def delete_webhook(self, namespace: str, webhook_id: str) -> WebhookInfo:
        """Delete a webhook, and what it was still to be told. Returns the deleted webhook.

        Args:
            namespace: the namespace.
            webhook_id: the webhook's id.

        Raises:
            NotFound: there is no such namespace or webhook.
        """
        return services.webhooks.delete_webhook(self.deployment, namespace, webhook_id)

    def audit(
        self,
        namespace: str | None = None,
        *,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[AuditEntry]:
        """Read the audit log, newest first: erasures, exports, corrections, changes of webhooks, and tokens.

        An entry contains no content and no secret. Entries are never deleted. They outlive the erasure of a namespace.

        Args:
            namespace: only entries of this namespace, which need not exist any more. Default: all entries.
            action: only entries of this action, such as ``erase.session``, or of this group, such as ``erase``.
                :class:`AuditEntry` lists the actions.
            since: only entries of this time or later. A naive time means UTC.
            until: only entries before this time.
            limit: the largest number of entries, at most 1,000.
            offset: the number of entries to leave out at the beginning of the list.

        Raises:
            InvalidInput: an argument is wrong.
        """
        return services.access.read_audit(
            self.deployment,
            namespace,
            action=action,
            since=since,
            until=until,
            limit=limit,
            offset=offset,
        )

    # --- operating ----------------------------------------------------------------------------------------------------
    def status(self, namespace: str | None = None, *, limit: int = 20, memories: bool = True) -> StatusReport:
        """Show how many jobs wait, run or are dead letters, why jobs wait, and the USD spent today (UTC).

        Args:
            namespace: only this namespace. Default: all namespaces.
            limit: the largest number of namespaces in the report. When there are more namespaces, the report has the
                ones with the most jobs. The report's total ``jobs`` also counts the jobs of the other namespaces.
            memories: whether to count the memories, which reads all of them: 0.1 s for 100,000 memories. Without it,
                ``memories`` of each namespace is empty.

        Raises:
            NotFound: there is no such namespace.

        Example::

            [acme] = nexus.status("acme").namespaces
            print(acme.underived, "messages to derive,", acme.jobs.dead, "dead letters")
        """
        return services.status.status(self.deployment, namespace, limit=limit, memories=memories)

    def spend(
        self, namespace: str | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> SpendReport:
        """Show what model calls have cost, by day (UTC) and purpose.

        Args:
            namespace: only calls of this namespace. Default: calls of all namespaces.
            since: only calls of this time or later. A naive time means UTC. Default: 30 days before ``until``.
            until: only calls before this time. Default: now.

        Returns:
            The numbers of calls and tokens, and the cost in US dollars. The record outlives the erasure of memories.

        Raises:
            NotFound: there is no such namespace.

        Example::

            for entry in nexus.spend("acme").entries:
                print(entry.day, entry.purpose, f"{entry.cost_usd:.2f} USD")
        """
        return services.spending.spend(self.deployment, namespace, since, until)

    def jobs(
        self,
        *,
        namespace: str | None = None,
        status: str | None = None,
        kind: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[JobInfo]:
        """List the jobs that are queued or run, the dead letters, and the finished runs.

        Running jobs come first (the longest running before the others). Waiting and pending jobs follow, roughly the
        oldest first. Dead letters and finished runs come last, the newest first.

        Args:
            namespace: only jobs of this namespace. Default: jobs of all namespaces.
            status: only jobs of this status: ``waiting`` (for a time or a condition), ``pending`` (in a Celery queue),
                ``running``, ``dead`` (a dead letter), or the status with which a run ended, such as ``completed``.
                ``retried`` and ``dropped`` also find the dead letters that an operator retried or dropped.
            kind: only jobs of this kind, such as ``derive_memory``.
            limit: the largest number of jobs, at most 1,000.
            offset: the number of jobs to leave out at the beginning of the list.

        Raises:
            NotFound: there is no such namespace.
            InvalidInput: there is no such status.
        """
        return services.jobs.list_jobs(self.deployment, namespace, status, limit, kind=kind, offset=offset)

    def finished_jobs(
        self, *, namespace: str | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> FinishedJobs:
        """Count the jobs that have finished, by kind and by how they ended.

        Args:
            namespace: only jobs of this namespace. Default: jobs of all namespaces.
            since: only jobs that finished at this time or later. Default: a day ago. Runs are kept for 30 days.
            until: only jobs that finished before this time. Default: now.

        Raises:
            NotFound: there is no such namespace.

        Example::

            nexus.finished_jobs().counts["derive_memory"].get("dead", 0)
        """
        return services.jobs.finished(self.deployment, namespace, since, until)

    def job(self, job_id: str) -> JobDetails:
        """Show the details of one job.

        Raises:
            NotFound: there is no such job. Finished jobs are kept for 30 days.
        """
        return services.jobs.show_job(self.deployment, job_id)

    def retry_job(self, job_id: str, *, urgency: Urgency | None = None) -> JobResult:
        """Run a dead letter again with its counters of attempts at 0, or release a reflection that is held for review.

        The job keeps the dead letter's flags: reasons, urgency, and ``force`` (whether the job also runs below its
        threshold). Retrying a dead letter twice queues only one job.

        Args:
            urgency: ``live`` or ``dream``. Default: the urgency of the dead letter.

        Returns:
            The job that does the work now.

        Raises:
            NotFound: there is no open dead letter and no held reflection with this id.
            ConfigurationError: this process does not know the job's kind. The dead letter stays open.
        """
        return services.jobs.retry(self.deployment, job_id, urgency=urgency)

    def retry_jobs(
        self,
        *,
        namespace: str | None = None,
        kind: str | None = None,
        error: str | None = None,
        urgency: Urgency | None = None,
    ) -> RetriedJobs:
        """Run many dead letters again, the oldest first, as :meth:`retry_job` does.

        Without ``namespace``, ``kind`` and ``error``, all open dead letters are run again.

        Args:
            namespace: only dead letters of this namespace.
            kind: only dead letters of this job kind, such as ``derive_memory``.
            error: only dead letters whose error is of this class, such as ``Refused``.
            urgency: ``live`` or ``dream``. Default: the urgency of each dead letter.

        Raises:
            NotFound: there is no such namespace.
            QueueUnavailable: Redis does not answer. Some of the dead letters may have been retried already.
        """
        return services.jobs.retry_many(self.deployment, namespace, kind, error, urgency)

    def drop_job(self, job_id: str) -> DroppedJob:
        """Drop a dead letter, a reflection that is held for review, or a queued job. The dropped work is not done.

        Raises:
            NotFound: there is no open dead letter, no held reflection and no queued job with this id.
        """
        return services.jobs.drop(self.deployment, job_id)

    def quarantined(self, *, limit: int = 100, offset: int = 0) -> list[QuarantinedMessage]:
        """List the messages that no worker could read, newest first. The newest 1,000 are kept.

        Args:
            limit: the largest number of messages, at most 1,000.
            offset: the number of messages to leave out at the beginning of the list.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        from nexus_tasks.idempotency import quarantine

        return quarantine.quarantined(self.deployment.claims, limit, offset)

    def drop_quarantined(self, ids: Sequence[str] | None = None) -> int:
        """Delete messages from the quarantine. Returns the number of deleted messages.

        Args:
            ids: the ids of the messages to delete. Default: all messages are deleted.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        from nexus_tasks.idempotency import quarantine

        return quarantine.drop(self.deployment.claims, ids)

    def repair_jobs(self) -> JobRepair:
        """Correct the counters and indexes in Redis that differ from the jobs' own records.

        Keys of a wrong type, which another program has made, are renamed to ``<prefix>:damaged:<name>`` and kept for 30
        days. Jobs go on during the repair. Without this call, the workers' sweep corrects the counters of running jobs
        only, and repairs the rest when it meets a key of a wrong type.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        from nexus_tasks.idempotency.repair import repair

        return repair(self.deployment.claims)

    def drop_jobs(
        self, *, namespace: str | None = None, kind: str | None = None, status: str | None = None
    ) -> DroppedJobs:
        """Drop many jobs or dead letters. Their work is not done.

        Without an argument, every job that has not begun is dropped.

        Args:
            namespace: only jobs of this namespace.
            kind: only jobs of this kind, such as ``derive_memory``.
            status: ``waiting``, ``pending``, ``running`` or ``dead``. Default: waiting and pending jobs.

        Raises:
            NotFound: there is no such namespace.
            InvalidInput: jobs of this status cannot be dropped.
        """
        return services.jobs.drop_many(self.deployment, namespace, kind, status)

    def pause_namespace(self, namespace: str, reason: str = "") -> PausedNamespace:
        """Let no job of a namespace begin until :meth:`resume_namespace` is called. Workers obey within 10 s.

        Jobs that run already go on. New jobs are queued. The pause is stored in Postgres.

        Args:
            reason: a text that ``nexus status`` shows.

        Raises:
            NotFound: there is no such namespace.
        """
        return services.jobs.pause_namespace(self.deployment, namespace, reason)

    def resume_namespace(self, namespace: str) -> bool:
        """Let the jobs of a paused namespace run again. Returns whether the namespace was paused.

        Raises:
            NotFound: there is no such namespace.
        """
        return services.jobs.resume_namespace(self.deployment, namespace)

    def resume_jobs(self, kind: str | None = None) -> tuple[str, ...]:
        """Let a paused job kind run again. Call this method after the cause of the pause is corrected.

        Args:
            kind: the name of the kind, such as ``derive_memory``. Default: every paused kind.

        Returns:
            The kinds that were resumed.

        Raises:
            InvalidInput: there is no such kind.
        """
        return services.jobs.resume(self.deployment, kind)

    aexport = _twin(export)
    aforget = _twin(forget)
    aimport_ = _twin(import_)
    aexport_markdown = _twin(export_markdown)
    aimport_markdown = _twin(import_markdown)
    aingest = _twin(ingest)
    aremember = _twin(remember)
    arevise = _twin(revise)
    apin = _twin(pin)
    aunpin = _twin(unpin)
    aend_session = _twin(end_session)
    adigest = _twin(digest)
    adream = _twin(dream)
    aextract = _twin(extract)
    aundo = _twin(undo)
    adream_plans = _twin(dream_plans)
    asearch = _twin(search)
    acontext = _twin(context)
    aprofile = _twin(profile)
    aask = _twin(ask)
    amemories = _twin(memories)
    amemory = _twin(memory)
    aperspectives = _twin(perspectives)
    asessions = _twin(sessions)
    atopics = _twin(topics)
    aobservation_log = _twin(observation_log)
    aundo_condensation = _twin(undo_condensation)
    aclear_task = _twin(clear_task)
    atopic = _twin(topic)
    awrite_topic = _twin(write_topic)
    arename_topic = _twin(rename_topic)
    adelete_topic = _twin(delete_topic)
    asession = _twin(session)
    asession_facts = _twin(session_facts)
    anamespaces = _twin(namespaces)
    anamespace = _twin(namespace)
    acreate_namespace = _twin(create_namespace)
    aset_namespace = _twin(set_namespace)
    astatus = _twin(status)
    aspend = _twin(spend)
    ajobs = _twin(jobs)
    ajob = _twin(job)
    afinished_jobs = _twin(finished_jobs)
    aretry_job = _twin(retry_job)
    aretry_jobs = _twin(retry_jobs)
    adrop_job = _twin(drop_job)
    aquarantined = _twin(quarantined)
    adrop_quarantined = _twin(drop_quarantined)
    arepair_jobs = _twin(repair_jobs)
    adrop_jobs = _twin(drop_jobs)
    apause_namespace = _twin(pause_namespace)
    aresume_namespace = _twin(resume_namespace)
    aresume_jobs = _twin(resume_jobs)
    acreate_token = _twin(create_token)
    atokens = _twin(tokens)
    arotate_token = _twin(rotate_token)
    arevoke_token = _twin(revoke_token)
    aaudit = _twin(audit)
    acreate_webhook = _twin(create_webhook)
    awebhooks = _twin(webhooks)
    aresume_webhook = _twin(resume_webhook)
    adelete_webhook = _twin(delete_webhook)
