"""What a producer's writes make due, asked for after the commit. With Redis away reconcile asks for it later."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from nexus_tasks.celery import app
from nexus_tasks.idempotency.claim import Claimed, Ticket
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.result import JobResult
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.storage.messages import Stored
from nexus_tasks.tasks import derive_memory, digest_session, follow_up

# Claims are made this many at a time: Redis serves nobody else during a script.
AT_ONCE = 500


def derivations(namespace: str, stored: Stored) -> int:
    """Ask for the derivations of new messages; returns how many jobs that made."""
    wanted = ((i, observer) for i in stored.memory_ids for observer in stored.observers)
    made = 0
    while chunk := list(islice(wanted, AT_ONCE)):
        made += _made(follow_up.ask(derive_memory.requests(namespace, chunk)))
    return made


def ended(namespace: str, session_key: str, underived: Sequence[tuple[int, str]], *, digest: bool) -> int:
    """A session has ended: what waits for company is due now, and the digest once everything is derived."""
    if underived:
        follow_up.hurry("ripeness", derive_memory.requests(namespace, underived))
    if not digest:
        return 0
    asked = digest_session.request(namespace, session_key, "session_end", after_derivation=bool(underived))
    return _made(follow_up.ask([asked]))


def changed(namespace: str, *, budget: bool) -> None:
    """A namespace's settings were changed: what waited for a budget may go on."""
    if budget:
        follow_up.hurry_all("budget", namespace)


def result(request: Request) -> JobResult:
    """The job that stands for ``request``, without asking for another."""
    return task_of(app, request.kind).standing(request)


def _made(tickets: Sequence[Ticket]) -> int:
    return sum(ticket.outcome is Claimed.ENQUEUED for ticket in tickets)
