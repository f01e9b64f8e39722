"""Answers that are kept in Redis under the idempotency keys of HTTP requests.

A key is taken when its request begins, and the answer is kept for 24 hours. The process that serves the request renews
the key. After the death of the process the key is free within 60 s, and a repeated request is then served anew.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import NamedTuple

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput, RequestRunning
from nexus_tasks.idempotency.claims import Claims, answering

LEASE = 60.0  # seconds for which a key is taken without being renewed
RENEW_EVERY = 15.0  # seconds
# Each compares the entry with the own one first: another request may have taken the key after the lease had ended.
_RENEW = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0"
_KEEP = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) or 0"
_FREE = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"


class KeptAnswer(NamedTuple):
    """The answer to an earlier request with the same key. ``body`` is ``None`` when only the status is kept."""

    status: int
    body: str | None


class Taken(NamedTuple):
    """A key that this request has taken."""

    name: str  # of the entry in Redis
    entry: str


def name_of(claims: Claims, caller: str, key: str) -> str:
    """The name of a key's entry. Each caller has keys of their own."""
    return f"{claims.prefix}:answer:{hashlib.sha256(f'{caller} {key}'.encode()).hexdigest()}"


def take(claims: Claims, name: str, request: str) -> Taken | KeptAnswer:
    """Take a key, or find the answer that is kept under it.

    Args:
        claims: the claims of the deployment.
        name: the name that :func:`name_of` gives.
        request: a hash of the request.

    Raises:
        InvalidInput: the key belongs to another request.
        RequestRunning: a request with this key runs.
        QueueUnavailable: Redis does not answer.
    """
    taken = Taken(name, json.dumps({"request": request, "owner": uuid.uuid4().hex}))
    with answering():
        while not claims.redis.set(name, taken.entry, nx=True, px=int(LEASE * 1_000)):
            if text := claims.redis.get(name):  # else it has ended in between
                if known := _known(text, request):
                    return known
                claims.redis.delete(name)
    return taken


def _known(text: str, request: str) -> KeptAnswer | None:
    """The answer in an entry. ``None`` for an entry that another program has written."""
    try:
        found = json.loads(text)
        known, status, body = found["request"], found.get("status", 200), found.get("body")
        (body or "").encode()
        if not 200 <= status < 300:
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if known != request:
        raise InvalidInput(
            "This idempotency key belongs to another request.",
            remedy="Use a new key for a new request; nothing was stored or queued.",
        )
    if "status" not in found:
        raise RequestRunning
    return KeptAnswer(status, body)


def renew(claims: Claims, taken: Taken) -> None:
    """Keep a key for another 60 s.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with answering():
        claims.redis.eval(_RENEW, 1, taken.name, taken.entry, int(LEASE * 1_000))


def keep(claims: Claims, taken: Taken, answer: KeptAnswer) -> None:
    """Keep an answer for 24 hours.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    entry = json.dumps({"request": json.loads(taken.entry)["request"], **answer._asdict()})
    with answering():
        claims.redis.eval(_KEEP, 1, taken.name, taken.entry, entry, limits.HTTP_ANSWER_KEPT_SECONDS)


def free(claims: Claims, taken: Taken) -> None:
    """Free a key whose request has done nothing.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with answering():
        claims.redis.eval(_FREE, 1, taken.name, taken.entry)
