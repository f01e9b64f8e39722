"""Finds keys of claims (the records of jobs) that have a wrong type in Redis, and sets them aside.

Only another program makes such a key. Each script that needs the key fails, so every job whose script reads it stands
still. ``lua/common.lua`` lists the keys; a test compares the types here with that list.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from nexus_tasks.errors import DamagedKey
from nexus_tasks.idempotency.claims import Claims, answering
from nexus_tasks.types import clean_text

log = logging.getLogger(__name__)

# The types of the keys `<prefix>:<name>`, and of the keys that begin with `<prefix>:<name>:`.
ALONE = {
    "zset": ("due", "leases", "lines"),
    "set": ("queues", "kinds", "reasons", "versions", "pauses", "mended"),
    "hash": ("held", "totals"),
    "list": ("quarantine",),
    "string": (
        *("storage", "clock", "figures", "checked", "quarantined"),
        *("sweeping", "reconciling", "checking", "repairing"),
    ),
}
BEGINNINGS = {
    "zset": ("published", "waits", "line", "ahead", "settle"),
    "set": ("lines",),
    "hash": ("job", "ids", "count", "paused", "parked", "delivery"),
    "string": ("done", "delivered", "woken", "cap", "reconcile", "answer", "tick"),
}
_ALONE = {name: kind for kind, names in ALONE.items() for name in names}
_BEGINNINGS = {name: kind for kind, names in BEGINNINGS.items() for name in names}
KEYS_PER_STEP = 1_000  # keys that Redis looks at in one step


def damaged(claims: Claims, *, steps: int | None = None) -> Iterator[tuple[str, str, str]]:
    """Each key that has a wrong type, with the type that it has and the type that it must have.

    Args:
        steps: the scan looks at this many thousand keys at the most, beside the keys without a name of their own.
            ``None``: at all keys.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    yield from _wrong(claims, [f"{claims.prefix}:{name}" for name in _ALONE])
    cursor, done = 0, 0
    while steps is None or done < steps:
        with answering():
            cursor, keys = claims.redis.scan(cursor, match=f"{claims.prefix}:*", count=KEYS_PER_STEP)
        yield from _wrong(claims, [key for key in keys if ":" in key.removeprefix(f"{claims.prefix}:")])
        done += 1
        if not int(cursor):
            return


def check_alone(claims: Claims) -> None:
    """Check the keys that every job needs, and that the steps of the sweep do not all read.

    Raises:
        DamagedKey: one of them has a wrong type.
        QueueUnavailable: Redis does not answer.
    """
    for key, found, wanted in damaged(claims, steps=0):
        raise DamagedKey(f"The key {clean_text(key)} in Redis is a {found} and must be a {wanted}.")


def set_aside(claims: Claims) -> list[str]:
    """Rename each key of a wrong type to ``<prefix>:damaged:<name>``. Redis deletes it after 30 days.

    Returns:
        The keys that were renamed.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    renamed = []
    for key, found, wanted in damaged(claims):
        if claims.set_aside(key, wanted):
            log.warning("The key %s had the type %s and is set aside: it must be a %s.", clean_text(key), found, wanted)
            renamed.append(key)
    return renamed


def _wrong(claims: Claims, keys: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    known = [(key, wanted) for key in keys if (wanted := _type_of(claims, key))]
    with answering():
        pipe = claims.redis.pipeline(transaction=False)
        for key, _ in known:
            pipe.type(key)
        types = pipe.execute()
    for (key, wanted), found in zip(known, types, strict=True):
        if found not in (wanted, "none"):
            yield key, found, wanted


def _type_of(claims: Claims, key: str) -> str | None:
    name, colon, _ = key.removeprefix(f"{claims.prefix}:").partition(":")
    return (_BEGINNINGS if colon else _ALONE).get(name)
