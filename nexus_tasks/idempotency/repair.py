"""Compares the counters and indexes of claims (the records of jobs) with the claims, and corrects them.

Each script that moves a claim also updates its counters and indexes. They become wrong when a key is evicted or deleted
by hand. For example, four running claims that were deleted would take four of their namespace's slots for good.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from nexus_tasks.idempotency.claims import Claims, answering, whole
from nexus_tasks.idempotency.key_types import set_aside
from nexus_tasks.types import JobRepair, MendedCounter, clean_text

log = logging.getLogger(__name__)

CHECK_EVERY = 10.0  # seconds
KEYS_PER_STEP = 1_000  # keys that Redis looks at in one step of about 1 ms, in which it serves no other client
STEPS_PER_CHECK = 20  # a million keys take about 8 minutes
NAMESPACES_PER_STEP = 5_000
CLAIMS_PER_STEP = 250  # of which a check reads the indexes in one step of about 2 ms


def check(claims: Claims) -> None:
    """Check some claims and namespaces, and correct what is wrong in their indexes and counters.

    Claims that an index lacks are put back, because nothing else would let them go on. The counters ``running`` and
    ``slots`` are corrected, also those of all namespaces with running claims.

    The sweep of every worker calls this function. Once in 10 s one of the calls does the work. It begins at the
    key where the previous call ended.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with answering():
        if not claims.lock("checking", seconds=CHECK_EVERY).acquire():  # it expires after 10 s
            return
        cursor = whole(claims.redis.get(_cursor(claims)))
    namespaces: list[str] = []
    for _ in range(STEPS_PER_CHECK):
        _, names = claims.scan("job", cursor, KEYS_PER_STEP)  # the same keys as in the next line
        cursor, found = claims.scan("count", cursor, KEYS_PER_STEP)
        namespaces += found
        for start in range(0, len(names), CLAIMS_PER_STEP):
            if astray := claims.astray(names[start : start + CLAIMS_PER_STEP]):
                _put_back(claims, astray)
        if not cursor:
            break
    for namespace, what, old, new in claims.mend_counts(namespaces):
        _said(MendedCounter(namespace=namespace, counter=what, old=old, new=new))
    with answering():
        claims.redis.set(_cursor(claims), cursor)


def _put_back(claims: Claims, astray: Sequence[str]) -> None:
    entries, *_, damaged = claims.mend_indexes(astray)
    _said_damaged(damaged)
    if entries:
        log.warning("%d jobs stood still, because keys of claims were deleted or evicted. They go on now.", len(astray))


def _cursor(claims: Claims) -> str:
    return f"{claims.prefix}:checked"


def repair(claims: Claims) -> JobRepair:
    """Set keys of a wrong type aside, and correct every index, then every counter.

    Jobs may go on meanwhile, because each script is one atomic step.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    renamed, put_back = set_aside(claims), 0
    namespaces, reasons, kinds = set[str](), set[str](), set[str]()
    for names in _pages(claims, "job"):
        entries, *found, damaged = claims.mend_indexes(names)
        put_back += entries
        _said_damaged(damaged)
        renamed += damaged
        namespaces, reasons, kinds = namespaces | found[0], reasons | found[1], kinds | found[2]
    for names in _pages(claims, "waits"):
        for name in names:
            reasons.add(reason := name.partition(":")[0])
            _take_out_the_gone(claims, f"waits:{name}", ("wait_reason", reason))
    for index, belong in (
        *(("due", ("state", "waiting")), ("leases", ("state", "running"))),
        *((f"published:{queue}", ("state", "pending")) for queue in claims.queues()),
    ):
        _take_out_the_gone(claims, index, belong)
    for index, belong in (("line", ("wait_reason", "concurrency")), ("ahead", ("state", "pending"))):
        for names in _pages(claims, index):
            for name in names:
                _take_out_the_gone(claims, f"{index}:{name}", belong)
    for names in _pages(claims, "count"):
        namespaces.update(names)
    ordered = sorted(namespaces)
    mended = [
        _said(MendedCounter(namespace=namespace, counter=what, old=old, new=new))
        for start in range(0, len(ordered), NAMESPACES_PER_STEP)
        for namespace, what, old, new in claims.mend_counts(
            ordered[start : start + NAMESPACES_PER_STEP], reasons=sorted(reasons), kinds=sorted(kinds)
        )
    ]
    claims.mend_sets()
    renamed += log_mended(claims)
    return JobRepair(
        counters=tuple(sorted(mended, key=lambda one: (one.namespace, one.counter))),
        entries_put_back=put_back,
        set_aside=tuple(renamed),
    )


def log_mended(claims: Claims) -> list[str]:
    """Log the values of another program that were taken out of counters. Returns their keys.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    found = [clean_text(name) for name in claims.mended()]
    for name in found:
        log.warning("Another program has written a value that no release writes: %s.", name)
    return [f"{claims.prefix}:{name}" for name in found]


def _take_out_the_gone(claims: Claims, index: str, belong: tuple[str, str]) -> None:
    start, looked = 0, KEYS_PER_STEP
    while looked == KEYS_PER_STEP:
        looked, taken_out = claims.mend_index(index, start, KEYS_PER_STEP, belong=belong)
        start += looked - taken_out


def _said_damaged(keys: Sequence[str]) -> None:
    for key in keys:
        log.warning("The claim %s is damaged and is set aside. Its job is asked for again.", clean_text(key))


def _said(mended: MendedCounter) -> MendedCounter:
    log.warning(
        "The counter `%s` of namespace %s was %d and is set to %d, because keys of claims were deleted or evicted.",
        *(mended.counter, mended.namespace, mended.old, mended.new),
    )
    return mended


def _pages(claims: Claims, what: str) -> Iterator[list[str]]:
    """Every key that begins with ``<prefix>:<what>:``, without this beginning. Redis may return a key twice."""
    cursor = -1
    while cursor:
        cursor, names = claims.scan(what, max(cursor, 0), KEYS_PER_STEP)
        if names:
            yield names
