"""Erase memories from Postgres and Redis.

An erasure has five steps:

1. It stores the messages that wait in this machine's session buffer for what is erased. Otherwise they would be stored
   later, and would bring back what is erased.
2. It deletes the rows of the memories in Postgres, and adds an entry to the audit log.
3. It drops the claims (the records in Redis) of the queued jobs that the deleted rows asked for.
4. It asks for the jobs that derive facts and make digests again from the remaining messages.
5. It renews the statistics of Postgres, which may contain erased values. If Postgres is embedded (nexus-tasks itself
   started it), the erasure also rewrites the files of the tables and of Redis, because deleted values stay in them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from nexus_tasks.cognition import erasure as forgetting
from nexus_tasks.cognition.erasure import ErasureResult
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NotFound, QueueUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claim_index import STATES, ClaimIndex
from nexus_tasks.services import buffer_flush
from nexus_tasks.storage import audit, batches, namespaces, sessions
from nexus_tasks.storage import erased_ids as ids_of_erased
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.erasure import vacuum
from nexus_tasks.tasks import derive_memory, digest_session, follow_ups, submit_batch
from nexus_tasks.transcripts import context_file
from nexus_tasks.types import ForgetReceipt, check_name, check_namespace

log = logging.getLogger(__name__)

REDIS_SECONDS = 10.0  # the longest wait for the embedded Redis to rewrite its file
# While the tables are rewritten, no call can use them: for 2 s with 60,000 messages on a busy machine. After a rewrite
# of more than a second the next one waits for four times as long, but at most for 10 s. So a tenant who erases one
# memory after the other leaves the tables to the others most of the time. Chosen by hand.
SHORT, REST, LONGEST_REST = 1.0, 4.0, 10.0


def forget(
    deployment: Deployment,
    namespace: str,
    *,
    memory_id: int | None = None,
    session_key: str | None = None,
    everything: bool = False,
) -> ForgetReceipt:
    """See :meth:`nexus_tasks.client.Nexus.forget`."""
    check_namespace(namespace)
    if (memory_id is not None) + (session_key is not None) + bool(everything) != 1:
        raise InvalidInput("forget takes one of memory_id, session_key and everything.")
    _store_buffered(deployment, namespace, memory_id, session_key)
    if memory_id is not None:
        forgotten = _committed(
            deployment, namespace, "erase.memory", lambda tx, i: forgetting.forget_memory(tx, i, memory_id)
        )
    elif session_key is not None:
        key = check_name("session_key", session_key)
        forgotten = _committed(
            deployment, namespace, "erase.session", lambda tx, i: forgetting.forget_session(tx, i, key)
        )
    else:
        forgotten = _committed(deployment, namespace, "erase.namespace", forgetting.forget_namespace)
    try:
        home = str(deployment.settings.home)  # workers write the files that still exist again within 30 s
        context_file.erase(home, namespace, session=session_key, everything=everything)
    except OSError as error:
        log.warning("A context file of %s could not be erased; a worker writes it again: %s", namespace, error.strerror)
    _drop_claims(deployment, namespace, forgotten, session_key, everything=everything)
    follow_ups.forget_errors(deployment, namespace)
    # The erasure releases the money of requests that it deletes.
    follow_ups.wake_held(deployment, namespace, reserved=True)
    requeued = follow_ups.ask(
        deployment,
        [
            # An earlier run has derived these messages and left done markers (records in Redis, because of which a new
            # request starts no run). A renewed request ignores the markers.
            *(request.renewed() for request in derive_memory.requests(namespace, forgotten.again)),
            *(digest_session.request(namespace, key, "manual_rebuild") for key in forgotten.digests),
        ],
    )
    with deployment.database.reading() as tx:
        has_batches = batches.are_open(tx, namespaces.get(tx, namespace).id)
    if has_batches:
        # The job cancels a message batch that no other job waits for, and enters its cost. It may be asleep, or an
        # operator may have dropped it.
        follow_ups.ask(deployment, [submit_batch.request(namespace)])
        follow_ups.hurry(deployment, submit_batch.BATCH, [submit_batch.request(namespace)])
    # Only an embedded Postgres gets its files rewritten here. For another Postgres its operator must rewrite the files.
    busy = deployment.local(_Rewrites).after_now(deployment)
    _rewrite_redis(deployment)
    return ForgetReceipt(
        deleted=dict(sorted(forgotten.deleted.items())),
        ids=forgotten.ids,
        requeued=tuple(ticket.job_id for ticket in requeued),
        not_rewritten=tuple(busy),
    )


def erased_ids(deployment: Deployment, namespace: str, session_key: str, ids: Iterable[str | None]) -> set[str]:
    """Those of the ids that an erased message of the session had. See ``storage/erased_ids.py``.

    A program that gives all messages of a conversation again leaves these out. An erasure that is not committed shows
    no ids yet, so this waits for the end of one.
    """
    key = check_name("session_key", session_key)
    with deployment.database.transaction() as tx:
        try:
            namespace_id = namespaces.get(tx, namespace).id
        except NotFound:  # nothing was said in the namespace yet
            return set()
        sessions.find(tx, namespace_id, key, lock=True)
        return ids_of_erased.erased(tx, namespace_id, ids, session_key=key)


class _Rewrites:
    """The rewrites of Postgres' files by this process: one at a time, with pauses. Erasures that wait share one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = self._ended = 0  # the numbers of the last rewrite that began, and of the last one that ended
        self._busy = list[str]()  # the result of the latter
        self._at_work = False
        self._not_before = 0.0  # the moment at which the next one may begin

    def after_now(self, deployment: Deployment) -> list[str]:
        """Return when a rewrite has ended that began after this call. See :func:`vacuum.rewrite_tables`."""
        with self._changed:
            next_one = self._begun + 1
            while self._at_work or (pause := self._not_before - time.monotonic()) > 0:
                self._changed.wait(None if self._at_work else pause)
                if self._ended >= next_one:
                    return self._busy
            self._begun, self._at_work = self._begun + 1, True
            number, began = self._begun, time.monotonic()
        try:
            busy = vacuum.rewrite_tables(deployment.database, files=deployment.settings.embedded)
            with self._changed:
                self._ended, self._busy = number, busy
            return busy
        finally:
            with self._changed:
                took = time.monotonic() - began
                self._at_work = False
                self._not_before = time.monotonic() + (min(REST * took, LONGEST_REST) if took > SHORT else 0.0)
                self._changed.notify_all()


def _rewrite_redis(deployment: Deployment) -> None:
    """Rewrite the file of an embedded Redis. It has the names of jobs, and errors, which may quote a message."""
    if not deployment.settings.embedded:
        return
    try:
        deployment.claims.rewrite_file(within=REDIS_SECONDS)
    except QueueUnavailable as error:
        log.warning("The file of Redis was not written anew: %s", error)


def _store_buffered(deployment: Deployment, namespace: str, memory_id: int | None, session_key: str | None) -> None:
    whole = memory_id is None
    if memory_id is not None:
        # A message may be stored, and its entry still be in the buffer, because a process died in between.
        with deployment.database.reading() as tx:
            session_key = sessions.key_of_memory(tx, namespaces.get(tx, namespace).id, memory_id)
        if session_key is None:
            return
    buffer_flush.store_before_erasure(deployment, namespace, session_key, whole=whole)
    buffer_flush.warn_of_others(deployment.buffer, namespace, session_key)


def _committed(
    deployment: Deployment, namespace: str, action: str, erase: Callable[[Transaction, int], ErasureResult]
) -> ErasureResult:
    def committed(tx: Transaction) -> ErasureResult:
        forgotten = erase(tx, namespaces.get(tx, namespace).id)
        audit.record(tx, action, namespace, forgotten.deleted)
        return forgotten

    return deployment.database.commit(committed)


def _drop_claims(
    deployment: Deployment, namespace: str, forgotten: ErasureResult, session_key: str | None, *, everything: bool
) -> None:
    """Drop the claims of queued jobs that the erased rows asked for.

    A running claim stays, because its run may also derive messages that are not erased. Before its commit, the run
    itself leaves out the erased messages. When a whole namespace is erased, running claims are dropped too, so that
    their runs commit nothing.
    """
    try:
        if everything:
            index = ClaimIndex(deployment.claims)
            gone = [claim for state in STATES for claim in index.every(state, namespace)]
        else:
            requests = derive_memory.requests(namespace, forgotten.unwanted)
            if session_key is not None:
                requests.append(digest_session.request(namespace, session_key, "session_end"))
            found = (deployment.claims.get(deployment.claims.key(request)) for request in requests)
            gone = [claim for claim in found if claim is not None and claim.state != "running"]
        _drop(deployment, gone)
    except QueueUnavailable as error:
        log.warning("Redis is away, so the claims of erased work stay. Their jobs will find nothing to do: %s", error)


def _drop(deployment: Deployment, gone: Sequence[Claim]) -> None:
    for claim in gone:
        _, wakeups = deployment.claims.drop(claim.key)
        deployment.engine.publisher.publish(wakeups)
