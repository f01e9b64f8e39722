"""The quarantine: messages that no worker can read, kept in Redis beside the claims until an operator drops them.

When a wake-up is moved to quarantine, the sweep publishes another wake-up for its claim.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from nexus_tasks.errors import DamagedKey, too_large
from nexus_tasks.idempotency.claims import Claims, answering, whole
from nexus_tasks.limits import ANSWER_BYTES
from nexus_tasks.types import QuarantinedMessage, clean_text

log = logging.getLogger(__name__)

MOST = 1_000  # how many messages are kept, the newest ones
LONGEST = 65_536  # how many characters are kept of a message's body, and also of its headers


def set_aside(claims: Claims, message: Any, fault: str) -> None:
    """Put a copy of an unreadable message into quarantine, and count the message. The caller rejects the message.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    queue = str((message.delivery_info or {}).get("routing_key") or "")
    made = {
        "id": str(uuid.uuid4()),
        "queue": queue,
        "fault": clean_text(fault),
        "at": claims.now(),
        "headers": clean_text(json.dumps(message.headers, default=repr))[:LONGEST],
        "body": clean_text(_text(message.body))[:LONGEST],
    }
    with answering():
        pipe = claims.redis.pipeline()
        pipe.lpush(_key(claims), json.dumps(made)).ltrim(_key(claims), 0, MOST - 1).execute()
    try:
        with answering():
            claims.redis.incr(_counter(claims))
    except DamagedKey:  # another program has written the counter
        with answering():
            claims.redis.set(_counter(claims), claims.redis.llen(_key(claims)))
    log.error("A message of queue %s is moved to quarantine: %s.", queue or "(unknown)", fault)


def quarantined(claims: Claims, limit: int, offset: int) -> list[QuarantinedMessage]:
    """A page of the messages in quarantine, newest first.

    Raises:
        QueueUnavailable: Redis does not answer.
        InvalidInput: they are too large for an answer.
    """
    rows = _rows(claims)[offset : offset + limit]
    if (size := sum(len(row.encode()) for row in rows)) > ANSWER_BYTES:
        raise too_large(size, ANSWER_BYTES)
    return [made for row in rows if (made := _parsed(row))]


def count(claims: Claims) -> tuple[int, int]:
    """The number of messages in quarantine, and the number of all messages that were ever moved to quarantine.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with answering():
        return int(claims.redis.llen(_key(claims))), whole(claims.redis.get(_counter(claims)))


def drop(claims: Claims, ids: Sequence[str] | None = None) -> int:
    """Delete messages from quarantine, by default all of them. Returns how many were deleted.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    rows = [row for row in _rows(claims) if ids is None or ((made := _parsed(row)) and made.id in ids)]
    with answering():
        return sum(int(claims.redis.lrem(_key(claims), 1, row)) for row in rows)


def _rows(claims: Claims) -> list[str]:
    with answering():
        return list(claims.redis.lrange(_key(claims), 0, -1))


def _key(claims: Claims) -> str:
    return f"{claims.prefix}:quarantine"


def _counter(claims: Claims) -> str:
    return f"{claims.prefix}:quarantined"


def _text(body: Any) -> str:
    return body.decode(errors="replace") if isinstance(body, bytes) else str(body)


def _parsed(row: str) -> QuarantinedMessage | None:
    """The message in a row. ``None`` for a row that another program has written."""
    try:
        made = json.loads(row)
        return QuarantinedMessage(**made | {"at": datetime.fromtimestamp(made["at"], UTC)})
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
