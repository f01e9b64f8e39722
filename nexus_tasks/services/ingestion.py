"""Store messages, end a session, and ask for the jobs that follow.

Every message is stored by this module. ``intake.py`` calls it for the client, and ``buffer_flush.py`` calls it for the
session buffer (files that keep messages while Postgres is away). The importers call the client. While Redis is away,
this module asks for no jobs. When Redis is back, reconcile (a loop of the workers) finds the rows in Postgres that ask
for jobs, and queues these jobs.

    with deployment.database.transaction() as tx:
        writer = SessionWriter(deployment, tx, namespaces.ensure(tx, "acme"), "chat-42")
        stored = writer.store(messages)
        writer.end(stored.session)
    enqueued = writer.enqueue()  # after the commit
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Literal

from nexus_tasks import limits
from nexus_tasks.cognition import erasure
from nexus_tasks.cognition.observing import observe as observing
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.idempotency.task import AT_ONCE
from nexus_tasks.storage import audit, digest_requests, extractions, sessions
from nexus_tasks.storage import messages as turns
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.messages import KnownMessage, StoredMessages
from nexus_tasks.storage.models import SessionRow
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.tasks import derive_memory, digest_session, extract_session, follow_ups, observe_session
from nexus_tasks.text import shorten
from nexus_tasks.transcripts.scrubbing import refuse_tokens, scrub, scrub_value
from nexus_tasks.transcripts.scrubbing.placeholder import MARK
from nexus_tasks.types import MAX_CONTENT, MAX_NAME, Message, json_size

log = logging.getLogger(__name__)

# Only the job of a call's first message is sent to a worker at once. The run of this job also derives the call's other
# messages. Their own jobs become due after at least this many seconds, in case the run does not derive all of them.
SHORTEST_WAIT = 5.0


def scrubbed(message: Message, names: Callable[[str], str] = scrub) -> Message:
    """``message`` with placeholders for the secrets in its content, author, tool calls and data.

    The hash that recognises a repeated message is made from the result. So it says nothing about a secret, and a
    message has one hash whether it was scrubbed here or before, in the session buffer.

    Args:
        names: scrubs the author. Many messages have the same author.
    """
    author = None if message.author is None else names(message.author)[:MAX_NAME]
    content = scrub(message.content)
    if not message.tool_calls and message.data is None:  # of most messages, which `replace` would check once more
        if (content, author) == (message.content, message.author):
            return message
        return replace(message, author=author, content=content[:MAX_CONTENT])
    clean = replace(
        message,
        author=author,
        tool_calls=tuple(scrub_value(call) for call in message.tool_calls),
        data=None if message.data is None else scrub_value(dict(message.data)),
    )
    room = max(MAX_CONTENT - json_size(clean), 0)  # placeholders may be longer than the secrets
    return replace(clean, content=content[:room])


def without_secrets(messages: Sequence[Message]) -> list[Message]:
    """The messages after :func:`scrubbed`."""
    names = cache(scrub)
    return [scrubbed(message, names) for message in messages]


def check_names(session_key: str, messages: Sequence[Message], observers: Sequence[str]) -> None:
    """Check that no name of a call has a secret. Names cannot be scrubbed: two of them might become one.

    Raises:
        InvalidInput: one has.
    """
    refuse_tokens("session_key", [session_key])
    refuse_tokens("observers", observers)
    refuse_tokens("id", [message.id for message in messages if message.id is not None])


def check_derivations(messages: Sequence[Message], observers: Sequence[str]) -> None:
    """Check that one call does not ask for too many derivations: each observer gets facts from each message.

    Raises:
        InvalidInput: it does.
    """
    wanted = len(messages) * len(observers)
    if wanted > limits.DERIVATIONS_PER_CALL:
        raise InvalidInput(
            f"{len(messages):,} messages for {len(observers):,} observers make {wanted:,} derivations; at most"
            f" {limits.DERIVATIONS_PER_CALL:,} are allowed.",
            remedy="Make several calls with fewer messages each; nothing was stored.",
        )


Changed = Mapping[str, tuple[KnownMessage, Message]]  # key → the stored message, and the message that was given
_SHOWN = 200  # characters of a text in an error


def _same(one: Message, other: Message) -> bool:
    return _said(one) == _said(other)


def _said(message: Message) -> tuple[object, ...]:
    return message.content, message.author or message.role, message.role, message.data


def _says_scrubbed(known: KnownMessage, given: Message) -> bool:
    """Whether the two differ only in secrets. The namespace's setting ``scrub`` has changed since the first call.

    One of the two then has a placeholder. Other texts are not scrubbed: a call may change thousands of messages, and
    Postgres ends a transaction that is idle for 8 s.
    """
    if not known.whole or not (_has_placeholder(known) or _has_placeholder(given)):
        return False
    clean = known._replace(
        content=scrub(known.content), author=scrub(known.author), data=known.data and scrub_value(known.data)
    )
    return clean.says(scrubbed(given))


def _has_placeholder(said: KnownMessage | Message) -> bool:
    return MARK in said.content or MARK in (said.author or "") or (bool(said.data) and MARK in json.dumps(said.data))


def _changed(session_key: str, stored: str, given: Message) -> InvalidInput:
    before, now = shorten(stored, _SHOWN), shorten(given.content, _SHOWN)
    said = (
        f"The session {session_key} has the message {given.id} with another text, author, role or data. Nothing was"
        " stored."
    )
    error = InvalidInput(
        f"{said} Stored: {before!r}. Given: {now!r}.",
        remedy="Give the new message an id of its own, or replace the stored one with replace=True (--replace).",
    )
    error.without_words = said
    return error


class SessionWriter:
    """Writes to one session in one transaction. After the commit, :meth:`enqueue` asks for the jobs that follow."""

    def __init__(self, deployment: Deployment, tx: Transaction, namespace: NamespaceSettings, session_key: str) -> None:
        self.deployment, self.tx, self.namespace, self.session_key = deployment, tx, namespace, session_key
        self.stored = list[StoredMessages]()
        self.digest_wanted = False  # whether :meth:`end` requested a digest
        self._ended = False
        # (memory id, observer) of each derivation (of facts from a message, for an observer) that is still to be done
        # when the session ends.
        self._underived = list[tuple[int, str]]()
        self._observe = self._extract = False
        # After a replacement: derivations (memory id, observer) to make again, and whether to digest the session again.
        self._again = list[tuple[int, str]]()
        self._rebuild = False

    def session(self) -> SessionRow | None:
        """The session as it is now, or ``None`` before its first message."""
        return sessions.find(self.tx, self.namespace.id, self.session_key)

    def lock(self) -> None:
        """Wait for other transactions that change the session, and keep later ones waiting until the commit."""
        sessions.find(self.tx, self.namespace.id, self.session_key, lock=True)

    def store(
        self,
        messages: Sequence[Message],
        observers: Sequence[str] | None = None,
        *,
        observe: bool | None = None,
        now: datetime | None = None,
        changed: Literal["refuse", "replace", "keep"] = "refuse",
        clean: Sequence[Message] | None = None,
    ) -> StoredMessages:
        """Store messages, and the rows in Postgres that ask for the messages' jobs.

        Secrets in the messages are replaced first, unless the namespace's setting ``scrub`` is off.

        Args:
            observers: the observers that get facts from the messages. ``None`` means the namespace's observers.
            observe: whether an observation log replaces the session's old messages from now on. ``None`` changes
                nothing.
            now: the time of messages without a time. ``None`` means the present time by this process's clock.
            changed: what to do about a message whose id the session has with another text, author, role or data.
                ``replace`` erases the stored message, and what was derived from it alone. ``keep`` counts the new one
                as a repeat.
            clean: what :func:`without_secrets` makes of the messages, made before the transaction began. It takes
                seconds for long texts, and Postgres ends a transaction that is idle for 8 s.

        Raises:
            InvalidInput: there are too many observers for so many messages, a name has a secret, or ``changed`` is
                ``refuse``, and a message has changed.
        """
        # Two names may be one, such as two spellings of the same accented letter.
        wanted = tuple(dict.fromkeys(self.namespace.observers if observers is None else observers))
        check_derivations(messages, wanted)
        if self.namespace.scrub:
            check_names(self.session_key, messages, observers or ())
            messages = without_secrets(messages) if clean is None else clean
        decide = {"refuse": self._refuse, "replace": self._replace, "keep": self._keep}[changed]
        if changed != "keep":
            messages = self._each_id_once(messages, last=changed == "replace")
        stored = turns.store(
            self.tx,
            self.namespace.id,
            self.session_key,
            messages,
            wanted,
            now=now,
            time_zone=self.namespace.time_zone,
            on_change=decide,
        )
        self.stored.append(stored)
        by_default = self.namespace.observe
        noted = observing.note_if_due(
            self.tx, self.deployment.settings, stored.session, by_default=by_default, observe=observe
        )
        self._observe = noted or self._observe
        self._extract = stored.extract or self._extract
        return stored

    def _each_id_once(self, messages: Sequence[Message], *, last: bool) -> list[Message]:
        """One message per id. Two of one call with different texts are refused, or the last one counts."""
        found: dict[object, Message] = {}
        for message in messages:
            key: object = object() if message.id is None else message.id
            before = found.get(key)
            if before is None or (last and not _same(before, message)):
                found[key] = message
            elif not _same(before, message):
                raise _changed(self.session_key, before.content, message)
            else:
                found[object()] = message  # a repeat, which the receipt counts
        return list(found.values())

    def _refuse(self, _session: SessionRow, changed: Changed) -> Collection[str]:
        for known, given in changed.values():
            if not _says_scrubbed(known, given):
                raise _changed(self.session_key, known.content, given)
        return ()

    def _keep(self, _session: SessionRow, changed: Changed) -> Collection[str]:
        for known in (known for known, given in changed.values() if not _says_scrubbed(known, given)):
            log.warning("m%d was stored before with another text, which stays.", known.memory_id)
        return ()

    def _replace(self, session: SessionRow, changed: Changed) -> Collection[str]:
        """Erase the stored messages, and what was derived from them alone. The new texts are derived and digested."""
        edited = {key: pair for key, pair in changed.items() if not _says_scrubbed(*pair)}
        if edited:
            replaced = [known.memory_id for known, _ in edited.values()]
            gone = erasure.forget_replaced(self.tx, self.namespace.id, replaced)
            self._again += gone.again
            audit.record(self.tx, "correct.replace", self.namespace.name, gone.deleted)
            first = min(known.seq for known, _ in edited.values())
            for extractor in ("topics", "facts"):
                extractions.rewind(self.tx, extractor, {session.id: first})
            if first <= session.digest_end_seq:
                digest_requests.add(self.tx, session, "manual_rebuild")
                self._rebuild = True
        return list(edited)

    def end(self, session: SessionRow) -> None:
        """End the session. Request a digest if the session has messages that no digest covers.

        :meth:`enqueue` then makes those derivations of the session due that wait for more messages.
        """
        self._ended = True
        self.digest_wanted = sessions.end(self.tx, session)
        self._underived = sessions.wanted_derivations(self.tx, session.id)
        self.want_extraction(session, known_only=True)

    def want_extraction(self, session: SessionRow, *, known_only: bool) -> None:
        """Write a row that asks for the job ``extract_session``. With ``known_only``, only change a row that exists."""
        self._extract = extractions.want(self.tx, session, known_only=known_only) or self._extract

    def enqueue(self) -> int:
        """Ask for the jobs that follow. Call it after the commit.

        Returns the number of jobs, which is 0 while Redis is away.
        """
        asked = sum(self._ask_for_derivations(stored) for stored in self.stored)
        name, key = self.namespace.name, self.session_key
        if self._observe:
            asked += len(follow_ups.ask(self.deployment, [observe_session.request(name, key)]))
        if self._extract:
            asked += len(follow_ups.ask(self.deployment, [extract_session.request(name, key)]))
        if self._ended:
            asked += self._ask_for_digest()
        again = [request.renewed() for request in derive_memory.requests(name, self._again)]
        if self._rebuild:
            again.append(digest_session.request(name, key, "manual_rebuild"))
        return asked + len(follow_ups.ask(self.deployment, again)) if again else asked

    def _ask_for_derivations(self, stored: StoredMessages) -> int:
        """Ask for the derivations of new messages.

        For each observer, only the job of the first message gets a wake-up (a Celery message). The run of this job puts
        the first message and the next messages into one batch, which one model call answers. If the batch is full, the
        run wakes the job of the next message. The job of a message that no run has derived becomes due by itself.

        One tenant must not fill Redis. In a namespace with ``limits.NAMESPACE_JOBS`` jobs, no derivation gets a job:
        reconcile finds the derivation in Postgres, and asks for the job when there is room.
        """
        if not stored.memory_ids or not follow_ups.has_room(self.deployment, self.namespace.name):
            return 0
        return sum(self._ask_for_derivations_by(stored.memory_ids, observer) for observer in stored.observers)

    def _ask_for_derivations_by(self, memory_ids: Sequence[int], observer: str) -> int:
        wanted = ((memory_id, observer) for memory_id in memory_ids)
        requests = iter(derive_memory.requests(self.namespace.name, list(wanted)))
        asked = len(follow_ups.ask(self.deployment, list(islice(requests, 1))))
        delay = max(self.deployment.settings.derive_max_wait, SHORTEST_WAIT)
        while chunk := [
            replace(one, delay=delay, wait_reason=derive_memory.RIPENESS) for one in islice(requests, AT_ONCE)
        ]:
            if not follow_ups.has_room(self.deployment, self.namespace.name):  # other calls fill it at the same time
                break
            asked += len(follow_ups.ask(self.deployment, chunk))
        return asked

    def _ask_for_digest(self) -> int:
        """Ask for the digest of an ended session. Make the derivations due that wait for more messages."""
        name = self.namespace.name
        digest = digest_session.request(name, self.session_key, "session_end", after_derivation=bool(self._underived))
        # The last derivation also asks for the digest, and its request must merge with this request. Therefore this
        # method asks for the digest before it makes the derivations due.
        asked = len(follow_ups.ask(self.deployment, [digest])) if self.digest_wanted else 0
        # For each observer, the run for the first message also derives the other messages.
        first = {observer: memory_id for memory_id, observer in reversed(self._underived)}
        if first:
            leads = [(memory_id, observer) for observer, memory_id in first.items()]
            due = derive_memory.requests(name, leads)
            follow_ups.hurry(self.deployment, derive_memory.RIPENESS, due)
        return asked
