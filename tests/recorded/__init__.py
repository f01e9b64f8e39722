"""What an earlier release left in Redis, recorded once. See README.md beside this file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import redis

PLACEHOLDER = "@PREFIX@"
# Fields of claims and of canvas deliveries that hold milliseconds of the Redis server.
TIMES = frozenset(
    ("due_at", "lease_until", "published_at", "enqueued_at", "started_at", "failing_since", "taken"),
)
# When a message was published, as its header says it.
_PUBLISHED = re.compile(r'("published_at": ")(\d+)(")')


def load(redis_client: redis.Redis, prefix: str, document: Mapping[str, Any], *, now_ms: int) -> None:
    """Write every recorded key below ``prefix``, with all times moved as if it had been recorded at ``now_ms``.

    ``now_ms`` is in milliseconds of the Redis server. The server's own time means that the earlier release stopped just
    now; an hour less means that it stopped an hour ago: every lease has ended then, and every wait is over. Keys that
    have expired since are not written.
    """
    later = now_ms - int(document["recorded_at"])
    keys = json.loads(json.dumps(document["keys"]).replace(PLACEHOLDER, prefix))
    pipe = redis_client.pipeline()
    for key, entry in keys.items():
        part, value = key.removeprefix(f"{prefix}:").split(":")[0], entry["value"]
        if entry["type"] == "hash":
            pipe.hset(key, mapping={name: _moved(part, name, text, later) for name, text in value.items()})
        elif entry["type"] == "zset":
            moved = later / 1000 if part == "celery" else later  # kombu counts seconds
            pipe.zadd(key, {member: score + moved for member, score in value.items()})
        elif entry["type"] == "list":
            pipe.rpush(key, *(_message(text, later) for text in value))
        elif entry["type"] == "set":
            pipe.sadd(key, *value)
        else:
            pipe.set(key, str(int(value) + later) if part == "delivered" else value)
        if "ttl_ms" in entry:
            pipe.pexpireat(key, now_ms + entry["ttl_ms"])
    pipe.execute()


def _moved(part: str, name: str, text: str, later: int) -> str:
    """A field of a hash; what kombu has not seen acknowledged is a message."""
    if part == "celery":
        return _message(text, later)
    if part == "paused" and name == "since":
        return str(int(text) + later // 1000)
    return str(int(text) + later) if part in ("job", "delivery") and name in TIMES else text


def _message(text: str, later: int) -> str:
    return _PUBLISHED.sub(lambda found: f"{found[1]}{int(found[2]) + later}{found[3]}", text)
