"""Answers that are kept in Redis under the idempotency keys of HTTP requests.

A key is taken when its request begins, and the answer is kept for 24 hours. The process that serves the request renews
the key. After the death of the process the key is free within 60 s, and a repeated request is then served anew.

Redis also has the jobs of all tenants. So each caller has room for 64 MB of answers a day. Beyond it, an answer is kept
for ten minutes.
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
_KEEP = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local used = redis.call('INCRBY', KEYS[2], #ARGV[2] + tonumber(ARGV[6]))
if redis.call('TTL', KEYS[2]) < 0 then redis.call('EXPIRE', KEYS[2], ARGV[3]) end
redis.call('SET', KEYS[1], ARGV[2], 'EX', used > tonumber(ARGV[5]) and ARGV[4] or ARGV[3])
return 1
"""
_OVERHEAD = 200  # bytes of an entry beside its text, measured with MEMORY USAGE
_FREE = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"


class KeptAnswer(NamedTuple):
    """The answer to an earlier request with the same key. ``body`` is ``None`` when only the status is kept."""

    status: int
    body: str | None


class Taken(NamedTuple):
    """A key that this request has taken."""

    name: str  # of the entry in Redis
    used: str  # the name of the counter of the bytes that are kept for the caller
    entry: str


def take(claims: Claims, caller: str, key: str, request: str) -> Taken | KeptAnswer:
    """Take a key, or find the answer that is kept under it.

    Args:
        claims: the claims of the deployment.
        caller: the name of the token. Each caller has keys of their own.
        key: the key.
        request: a hash of the request.

    Raises:
        InvalidInput: the key belongs to another request.
        RequestRunning: a request with this key runs.
        QueueUnavailable: Redis does not answer.
    """
    taken = Taken(
        name=f"{claims.prefix}:answer:{hashlib.sha256(f'{caller} {key}'.encode()).hexdigest()}",
        used=f"{claims.prefix}:answers:{caller}",
        entry=json.dumps({"request": request, "owner": uuid.uuid4().hex}),
    )
    with answering():
        while not claims.redis.set(taken.name, taken.entry, nx=True, px=int(LEASE * 1_000)):
            if text := claims.redis.get(taken.name):  # else it has ended in between
                if known := _known(text, request):
                    return known
                claims.redis.delete(taken.name)
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
    """Keep an answer for 24 hours; for ten minutes when the caller's room is full.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    entry = json.dumps({"request": json.loads(taken.entry)["request"], **answer._asdict()})
    with answering():
        claims.redis.eval(
            _KEEP,
            2,
            taken.name,
            taken.used,
            taken.entry,
            entry,
            limits.HTTP_ANSWER_KEPT_SECONDS,
            limits.HTTP_ANSWER_KEPT_SECONDS_BEYOND,
            limits.HTTP_ANSWERS_KEPT_BYTES,
            _OVERHEAD,
        )


def free(claims: Claims, taken: Taken) -> None:
    """Free a key whose request has done nothing.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with answering():
        claims.redis.eval(_FREE, 1, taken.name, taken.entry)
