"""What a producer's writes make due, asked for after the commit. With Redis away reconcile asks for it later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from nexus_tasks.celery import app
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.task import AT_ONCE, task_of
from nexus_tasks.storage.messages import StoredMessages
from nexus_tasks.tasks import derive_memory, digest_session, follow_ups
from nexus_tasks.tasks.runtime import runtime

# Messages of one call wait at least this long to be taken along by the first of them, seconds.
SHORTEST_WAIT = 5.0


def derivations(namespace: str, stored: StoredMessages) -> int:
    """Ask for the derivations of new messages; returns for how many: 0 while Redis is away.

    Only the first message of each observer gets a wake-up. The others wait for it to take them along; what does not
    fit into its batch it wakes itself, and what nobody has taken is due by itself soon.
    """
    return sum(_asked(namespace, stored.memory_ids, observer) for observer in stored.observers)


def _asked(namespace: str, memory_ids: Sequence[int], observer: str) -> int:
    requests = iter(derive_memory.requests(namespace, [(memory_id, observer) for memory_id in memory_ids]))
    made = len(follow_ups.ask(list(islice(requests, 1))))
    company = max(runtime().settings.derive_max_wait, SHORTEST_WAIT)
    while chunk := [replace(one, delay=company, wait_reason="ripeness") for one in islice(requests, AT_ONCE)]:
        made += len(follow_ups.ask(chunk))
    return made


def ended(namespace: str, session_key: str, underived: Sequence[tuple[int, str]], *, digest: bool) -> int:
    """A session has ended: what waits for company is due now, and the digest once everything is derived."""
    asked = digest_session.request(namespace, session_key, "session_end", after_derivation=bool(underived))
    # Before the derivations: the last of them asks for the digest too, and has to find this one waiting.
    made = len(follow_ups.ask([asked])) if digest else 0
    # The first of each observer takes the others along.
    first = {observer: memory_id for memory_id, observer in reversed(underived)}
    if first:
        leads = [(memory_id, observer) for observer, memory_id in first.items()]
        follow_ups.hurry("ripeness", derive_memory.requests(namespace, leads))
    return made


def changed(namespace: str, *, budget: bool) -> None:
    """A namespace's settings were changed: what waited for a budget may go on."""
    if budget:
        follow_ups.hurry_all("budget", namespace)


def result(request: Request) -> JobResult:
    """The job that stands for ``request``, without asking for another."""
    return task_of(app, request.kind).standing(request)
