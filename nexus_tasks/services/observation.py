"""Read an observed session (a session whose old messages are replaced by an observation log).

:func:`read` may wait for a job. Every other read of the client returns without waiting for jobs.
"""

from __future__ import annotations

import threading
import time

from nexus_tasks.cognition.observing import session_view, view_block
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import JobFailed, QueueUnavailable, StorageUnavailable, Transient, WaitTimeout
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.storage import namespaces, sessions
from nexus_tasks.tasks import follow_ups, observe_session, reflect_observations
from nexus_tasks.types import ContextBlock

LONGEST_WAIT = 20.0  # seconds that a reader waits for an observation or a shorter log
LOOK_EVERY = 1.0  # seconds; a job goes on after the block has become short enough, so a waiting reader looks again
PAUSE = 0.2  # seconds before a reader asks for another run of a job that has ended
# For this many seconds after a wait without result, readers in this process do not wait for the same session again.
AFTER_WAITING_IN_VAIN = 60.0
# How many readers of this process wait at a time. While the workers are behind, the readers of five tenants would
# otherwise hold the 40 threads of a server. Chosen by hand.
MOST_WAITING = 16
_waiting = threading.BoundedSemaphore(MOST_WAITING)


class _WaitedInVain(dict[tuple[str, str], float]):
    """(namespace, session key) → the ``time.monotonic`` at which a wait in this process ended without result."""


def read(
    deployment: Deployment,
    namespace: str,
    session_key: str,
    *,
    max_tokens: int | None,
    form: str,
    find: view_block.FindMemories | None = None,
) -> ContextBlock:
    """The block of an observed session: first its log, then the messages after the log, word for word.

    When these messages have ``observation_block_after_tokens`` tokens or more, the call waits for the job that observes
    them. When the log has ``reflection_block_after_tokens`` tokens or more, the call waits for the job that shortens
    the log. The call waits for at most 20 s, and not at all when 16 others wait. If a job has not ended by then, the
    call returns the longer block, and the block's ``notes`` say so.

    Args:
        find: finds the memories that fit the reader's query.
    """
    view = _current_view(deployment, namespace, session_key)
    waited = view.observe_now or view.reflect_now
    if waited:
        view = _wait(deployment, namespace, view)
    return view_block.lay_out(
        view, namespace, deployment.settings, max_tokens=max_tokens, form=form, waited=waited, find=find
    )


def _current_view(deployment: Deployment, namespace: str, session_key: str) -> session_view.SessionView:
    try:
        view = _read(deployment, namespace, session_key)
    except (StorageUnavailable, Transient):  # an update of the log met another transaction, or a database in recovery
        view = _read(deployment, namespace, session_key, update=False)
    wanted = [observe_session.request(namespace, session_key)] if view.ask_observe else []
    wanted += [reflect_observations.request(namespace, session_key)] if view.ask_reflect else []
    if wanted:
        follow_ups.ask(deployment, wanted)
    return view


def _read(deployment: Deployment, namespace: str, session_key: str, *, update: bool = True) -> session_view.SessionView:
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, namespace)
        session = sessions.find(tx, known.id, session_key)
        if session is None:  # a session begins with its first message
            return session_view.SessionView(session_key=session_key, observed=True)
        return session_view.current_view(tx, deployment.settings, session, by_default=known.observe, update=update)


def _wait(deployment: Deployment, namespace: str, view: session_view.SessionView) -> session_view.SessionView:
    """Wait until the jobs have made the block short enough, or have ended. Returns the newest view."""
    place, waited_in_vain = (namespace, view.session_key), deployment.local(_WaitedInVain)
    if time.monotonic() - waited_in_vain.get(place, float("-inf")) < AFTER_WAITING_IN_VAIN:
        return view
    if not _waiting.acquire(blocking=False):
        return view
    deadline = time.monotonic() + LONGEST_WAIT
    try:
        results = _results(deployment, namespace, view)
        while (view.observe_now or view.reflect_now) and time.monotonic() < deadline:
            if not results:  # the jobs have done a part
                time.sleep(PAUSE)  # so that a job that cannot go on is not asked for without a pause
                results = _results(deployment, namespace, view)
            results = [result for result in results if not _ended(result, deadline)]
            view = _current_view(deployment, namespace, view.session_key)
    except (JobFailed, QueueUnavailable):
        view = _current_view(deployment, namespace, view.session_key)
    finally:
        _waiting.release()
    if view.observe_now or view.reflect_now:
        waited_in_vain[place] = time.monotonic()
    else:
        waited_in_vain.pop(place, None)
    return view


def _ended(result: JobResult, deadline: float) -> bool:
    """Whether the job ends within ``LOOK_EVERY`` seconds."""
    try:
        result.wait(max(min(LOOK_EVERY, deadline - time.monotonic()), 0.0))
    except WaitTimeout:
        return False
    return True


def _results(deployment: Deployment, namespace: str, view: session_view.SessionView) -> list[JobResult]:
    named = {"namespace": namespace, "session_key": view.session_key, "reason": "blocked"}
    results = list[JobResult]()
    if view.observe_now:
        results.append(observe_session.observe_session.on(deployment).apply_async(kwargs=named))
    if view.reflect_now:
        results.append(reflect_observations.reflect_observations.on(deployment).apply_async(kwargs=named))
    return results
