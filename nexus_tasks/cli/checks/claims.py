"""Check the jobs' records in Redis: whose they are, what stops them, and whether they move."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from nexus_tasks.cli.checks.check import Check, failed, passed
from nexus_tasks.types import clean_text

CLOCK_SECONDS = 5.0  # more than this between the clocks is a fault
_STUCK_SECONDS = 30.0  # the sweep comes every 2 s
_STEPS = 200  # thousand keys that are looked at, which takes about 2 s
_MOST_NAMED = 10
_WORKER = "`celery -A nexus_tasks worker`"


def claims() -> Sequence[Check]:
    """Check the identity, pauses, stuck and strange jobs, the quarantine, dead letters, held threads and the clocks.

    Raises:
        NexusError: Redis or Postgres does not answer.
    """
    from nexus_tasks.deployment import default_deployment
    from nexus_tasks.idempotency import key_types, quarantine

    deployment = default_deployment()
    known = deployment.engine.claims
    if wrong := list(islice(key_types.damaged(known, steps=_STEPS), _MOST_NAMED)):
        return [_damaged(wrong)]
    figures = known.figures(max_age=0, longest=0)
    return [
        _identity(deployment),
        *_pauses(known.paused()),
        _stuck(figures),
        _strange(known.not_understood()),
        _quarantine(quarantine.count(known)[0]),
        *_held(known.held_threads()),
        *_rows(deployment, known.now()),
    ]


def _damaged(keys: Sequence[tuple[str, str, str]]) -> Check:
    found = "; ".join(f"{clean_text(key)} is a {is_} and must be a {must_be}" for key, is_, must_be in keys)
    remedy = "Another program made these keys. Run `nexus jobs repair`: it sets them aside and makes them again."
    return failed("damaged keys", found, remedy)


def _identity(deployment: Any) -> Check:
    from nexus_tasks.errors import ForeignDatabase

    try:
        deployment.engine.storage.verify()
    except ForeignDatabase as error:
        return failed("identity", error.message, error.remedy)
    return passed("identity", "the claims in Redis belong to this database")


def _pauses(kinds: Mapping[str, Mapping[str, str]]) -> Iterator[Check]:
    for kind, why in kinds.items():
        remedy = (
            f"Correct the cause. A worker tests it every minute and goes on; at once with `nexus jobs resume {kind}`."
        )
        yield failed("paused", f"{kind}: {why['reason']}", remedy)
    if not kinds:
        yield passed("paused", "no job kind")


def _stuck(figures: Mapping[str, Any]) -> Check:
    overdue = {
        name: (figures["now"] - figures[at]) / 1000
        for name, at in (("a due job", "oldest_due"), ("the job of a dead worker", "oldest_lease"))
        if figures.get(at)
    }
    late = {name: seconds for name, seconds in overdue.items() if seconds > _STUCK_SECONDS}
    if not late:
        return passed("stuck jobs", "none")
    found = " and ".join(f"{name} since {seconds:,.0f} s" for name, seconds in late.items())
    return failed("stuck jobs", found, f"No worker sweeps. Start one with {_WORKER}, and restart those that hang.")


def _strange(kinds: Mapping[str, int]) -> Check:
    if not kinds:
        return passed("strange jobs", "none")
    found = ", ".join(f"{number:,} of {kind}" for kind, number in kinds.items())
    remedy = "Start workers of the newest release, with the module of the kind: `--include MODULE`."
    return failed("strange jobs", f"no worker understands {found}", remedy)


def _quarantine(number: int) -> Check:
    if not number:
        return passed("quarantine", "empty")
    remedy = "Find the sender with `nexus jobs quarantine`, then delete them with `nexus jobs quarantine --drop-all`."
    return failed("quarantine", f"{number:,} messages that no worker can read", remedy)


def _held(workers: Mapping[str, tuple[int, int]]) -> Iterator[Check]:
    for worker, (held, threads) in workers.items():
        found = f"{held} of {threads} threads of {worker} have runs that do not end"
        yield failed("held threads", found, "Restart the worker; its log names the jobs.")
    if not workers:
        yield passed("held threads", "none")


def _rows(deployment: Any, redis_time: float) -> Iterator[Check]:
    from sqlalchemy import text

    from nexus_tasks.storage import tenancy

    with tenancy.unlimited(), deployment.database.reading() as tx:
        open_letters = "SELECT count(*) FROM (SELECT FROM dead_letters WHERE resolution IS NULL LIMIT 1001) AS letters"
        letters = int(tx.scalar(text(open_letters)) or 0)
        postgres_time = float(tx.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0.0)
        here = time.time()
    see = "; see `nexus jobs list --status dead`" if letters else ""
    yield passed("dead letters", f"{letters if letters <= 1_000 else 'more than 1,000'} open{see}")
    yield _clock({"Redis": redis_time - here, "Postgres": postgres_time - here})


def _clock(ahead: Mapping[str, float]) -> Check:
    found = ", ".join(
        f"{server} is {round(seconds, 1) + 0.0:+.1f} s from this machine" for server, seconds in ahead.items()
    )
    if all(abs(seconds) <= CLOCK_SECONDS for seconds in ahead.values()):
        return passed("clock", found)
    return failed("clock", found, "Let all machines follow a time server (NTP).")
