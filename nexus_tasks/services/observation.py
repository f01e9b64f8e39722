"""What ingest and readers ask for in observed sessions, and the one case in which a reader waits for a job."""

from __future__ import annotations

import time

from nexus_tasks.cognition.observing import block, observe, reading
from nexus_tasks.errors import JobFailed, QueueUnavailable, WaitTimeout
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.storage import namespaces, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.messages import StoredMessages
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.tasks import follow_ups, observe_session, reflect_observations
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import ContextBlock

LONGEST_WAIT = 20.0  # seconds a reader waits for an observation
AFTER_WAITING_IN_VAIN = 60.0  # seconds in which this process's readers of that session do not wait again

_in_vain: dict[tuple[str, str], float] = {}  # (namespace, session) → when, by this process's clock


def note(tx: Transaction, known: NamespaceSettings, stored: StoredMessages, observe_it: bool | None) -> bool:
    """After messages were stored, in their transaction: whether there is something to observe now."""
    return observe.note(tx, runtime().settings, stored.session, by_default=known.observe, observe=observe_it)


def ask(namespace: str, session_key: str) -> int:
    """Ask for an observation, after the commit; returns how many jobs that made: 0 while Redis is away."""
    return len(follow_ups.ask([observe_session.request(namespace, session_key)]))


def read(namespace: str, session_key: str, *, max_tokens: int | None, form: str) -> ContextBlock:
    """An observed session: its log, and word for word what was said since.

    Beyond the block-after bounds it waits for an observation, at most 20 s; when that does not come it serves the
    longer block, whose ``notes`` say so.
    """
    view = _look(namespace, session_key)
    waited = view.observe_now or view.reflect_now
    if waited and _wait(namespace, view):
        view = _look(namespace, session_key)
    settings = runtime().settings
    return block.laid_out(view, namespace, settings, max_tokens=max_tokens, form=form, waited=waited)


def _look(namespace: str, session_key: str) -> reading.View:
    here = runtime()
    with here.database.transaction() as tx:
        known = namespaces.get(tx, namespace)
        session = sessions.find(tx, known.id, session_key)
        if session is None:  # it begins with its first message
            return reading.View(session_key=session_key, observed=True)
        view = reading.look(tx, here.settings, session, by_default=known.observe)
    wanted = [observe_session.request(namespace, session_key)] if view.ask_observe else []
    wanted += [reflect_observations.request(namespace, session_key)] if view.ask_reflect else []
    if wanted:
        follow_ups.ask(wanted)
    return view


def _wait(namespace: str, view: reading.View) -> bool:
    """Wait for what is behind; whether anything may have come of it."""
    place = (namespace, view.session_key)
    if time.monotonic() - _in_vain.get(place, float("-inf")) < AFTER_WAITING_IN_VAIN:
        return False
    deadline = time.monotonic() + LONGEST_WAIT
    try:
        for result in _results(namespace, view):
            result.wait(max(deadline - time.monotonic(), 0.0))
    except (JobFailed, WaitTimeout, QueueUnavailable):
        _in_vain[place] = time.monotonic()
    else:
        _in_vain.pop(place, None)
    return True


def _results(namespace: str, view: reading.View) -> list[JobResult]:
    named = {"namespace": namespace, "session_key": view.session_key}
    results = []
    if view.observe_now:
        results.append(observe_session.observe_session.apply_async(kwargs={**named, "reason": "blocked"}))
    if view.reflect_now:
        results.append(reflect_observations.reflect_observations.apply_async(kwargs=named))
    return results
