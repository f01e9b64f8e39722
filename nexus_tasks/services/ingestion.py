"""Store messages, end a session, and ask for the jobs that follow.

All messages are stored through this module. The client and the session buffer call it, and the importers call the
client. While Redis is away, no jobs are asked for. Reconcile asks for them when Redis is back.

    with deployment.database.transaction() as tx:
        writer = SessionWriter(deployment, tx, namespaces.ensure(tx, "acme"), "chat-42")
        stored = writer.store(messages)
        writer.end(stored.session)
    enqueued = writer.enqueue()  # after the commit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice

from nexus_tasks.cognition.observing import observe as observing
from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.task import AT_ONCE
from nexus_tasks.storage import extractions, sessions
from nexus_tasks.storage import messages as turns
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.messages import StoredMessages
from nexus_tasks.storage.models import SessionRow
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.tasks import derive_memory, digest_session, extract_session, follow_ups, observe_session
from nexus_tasks.types import Message

# Only the first message of a call gets a wake-up at once. Its run takes the other messages of the call along. The other
# messages wait at least this many seconds for that run.
SHORTEST_WAIT = 5.0


class SessionWriter:
    """Writes to one session in one transaction. After the commit, :meth:`enqueue` asks for the jobs that follow."""

    def __init__(self, deployment: Deployment, tx: Transaction, namespace: NamespaceSettings, session_key: str) -> None:
        self.deployment, self.tx, self.namespace, self.session_key = deployment, tx, namespace, session_key
        self.stored = list[StoredMessages]()
        self.digest_wanted = False  # whether the end of the session wants a digest
        self._ended = False
        # (memory id, observer) of each derivation that is still wanted when the session ends.
        self._underived = list[tuple[int, str]]()
        self._observe = self._extract = False

    def session(self) -> SessionRow | None:
        """The session as it is now, or ``None`` before its first message."""
        return sessions.find(self.tx, self.namespace.id, self.session_key)

    def store(
        self,
        messages: Sequence[Message],
        observers: Sequence[str] | None = None,
        *,
        observe: bool | None = None,
        now: datetime | None = None,
    ) -> StoredMessages:
        """Store messages, and the rows in Postgres that ask for the messages' jobs.

        Args:
            observers: the observers that get facts from the messages. ``None`` means the namespace's observers.
            observe: whether the session is observed from now on. ``None`` changes nothing.
            now: the time of messages without a time. ``None`` means the time of the database's clock.
        """
        wanted = self.namespace.observers if observers is None else observers
        stored = turns.store(self.tx, self.namespace.id, self.session_key, messages, wanted, now=now)
        self.stored.append(stored)
        by_default = self.namespace.observe
        noted = observing.note_if_due(
            self.tx, self.deployment.settings, stored.session, by_default=by_default, observe=observe
        )
        self._observe = noted or self._observe
        # An extraction may have been held back until the next message. Such an extraction is wanted now.
        self._extract = extractions.release_held(self.tx, stored.session.id) or self._extract
        return stored

    def end(self, session: SessionRow) -> None:
        """End the session. A digest is wanted if anything is new. :meth:`enqueue` makes waiting derivations due."""
        self._ended = True
        self.digest_wanted = sessions.end(self.tx, session)
        self._underived = sessions.wanted_derivations(self.tx, session.id)
        self.want_extraction(session, known_only=True)

    def want_extraction(self, session: SessionRow, *, known_only: bool) -> None:
        """Want an extraction of the session. With ``known_only``, want it only if one was asked for before."""
        self._extract = extractions.want(self.tx, session, known_only=known_only) or self._extract

    def enqueue(self) -> int:
        """Ask for the jobs that follow, after the commit. Returns the number of jobs: 0 while Redis is away."""
        asked = sum(self._ask_for_derivations(stored) for stored in self.stored)
        name, key = self.namespace.name, self.session_key
        if self._observe:
            asked += len(follow_ups.ask(self.deployment, [observe_session.request(name, key)]))
        if self._extract:
            asked += len(follow_ups.ask(self.deployment, [extract_session.request(name, key)]))
        if self._ended:
            asked += self._ask_for_digest()
        return asked

    def _ask_for_derivations(self, stored: StoredMessages) -> int:
        """Ask for the derivations of new messages.

        Only the first message of each observer gets a wake-up (a Celery message). The run of the first message takes
        the other messages along. If its batch is full, the run wakes the next message. A message that no run takes
        becomes due by itself.
        """
        return sum(self._ask_for_derivations_by(stored.memory_ids, observer) for observer in stored.observers)

    def _ask_for_derivations_by(self, memory_ids: Sequence[int], observer: str) -> int:
        wanted = ((memory_id, observer) for memory_id in memory_ids)
        requests = iter(derive_memory.requests(self.namespace.name, list(wanted)))
        asked = len(follow_ups.ask(self.deployment, list(islice(requests, 1))))
        delay = max(self.deployment.settings.derive_max_wait, SHORTEST_WAIT)
        while chunk := [
            replace(one, delay=delay, wait_reason=derive_memory.RIPENESS) for one in islice(requests, AT_ONCE)
        ]:
            asked += len(follow_ups.ask(self.deployment, chunk))
        return asked

    def _ask_for_digest(self) -> int:
        """Ask for the digest of an ended session. Make the derivations due that wait for more messages."""
        name = self.namespace.name
        digest = digest_session.request(name, self.session_key, "session_end", after_derivation=bool(self._underived))
        # The digest is asked for before the derivations are made due. The last derivation also asks for the digest, and
        # must find this request waiting.
        asked = len(follow_ups.ask(self.deployment, [digest])) if self.digest_wanted else 0
        # The run of the first message of each observer takes the other messages along.
        first = {observer: memory_id for memory_id, observer in reversed(self._underived)}
        if first:
            leads = [(memory_id, observer) for observer, memory_id in first.items()]
            due = derive_memory.requests(name, leads)
            follow_ups.hurry(self.deployment, derive_memory.RIPENESS, due)
        return asked
