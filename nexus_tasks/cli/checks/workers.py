"""Check the workers: that they answer, read every queue and have enough connections, and that beat ticks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nexus_tasks.cli.checks.check import Check, failed, passed
from nexus_tasks.cli.stack import within
from nexus_tasks.settings import Settings

_ANSWER_SECONDS = 1.0
_QUEUES_SECONDS = 5.0  # the call returns when all workers have answered

# No superuser is bound by the limits of a role or a database. A limit of -1 is none.
_LIMITS = """
    SELECT current_setting('max_connections')::int AS server,
           quote_ident(rolname) AS role_name, quote_ident(datname) AS name,
           CASE WHEN NOT rolsuper THEN nullif(rolconnlimit, -1) END AS role,
           CASE WHEN NOT rolsuper THEN nullif(datconnlimit, -1) END AS database
    FROM pg_roles, pg_database WHERE rolname = session_user AND datname = current_database()
"""


def workers(settings: Settings) -> Sequence[Check]:
    """Check that workers answer within 1 s, and what they say about themselves.

    With the embedded servers of this package, no worker and no beat is needed: a command with the option ``--wait``
    starts a worker of its own, which ends with the command.

    Raises:
        kombu.exceptions.OperationalError: the broker does not answer.
        NexusError: Redis or Postgres does not answer.
    """
    from nexus_tasks.celery import app

    told = within(_ANSWER_SECONDS, app.control.inspect(timeout=_ANSWER_SECONDS).stats) or {}
    pools = {node: _pool(told[node]) for node in sorted(told) if not node.startswith("celerybeat@")}
    if not pools:
        if settings.embedded:
            return [
                passed("workers", "none; `nexus up` runs one, and a command with `--wait` starts one until it ends")
            ]
        return [failed("workers", "none answers", "Start one with `celery -A nexus_tasks worker`.")]
    return [
        passed("workers", f"{len(pools)}: {', '.join(pools)}"),
        _queues(app, list(pools)),
        *_connections(settings, list(pools.values())),
        _beat(settings),
    ]


class _Pool(NamedTuple):
    """The pool of a worker: how many processes run jobs, and how many threads of each."""

    processes: int
    threads: int


def _pool(stats: Mapping[str, Any]) -> _Pool:
    pool = stats.get("pool") or {}
    jobs = int(pool.get("max-concurrency") or 1)
    return _Pool(jobs, 1) if "processes" in pool else _Pool(1, jobs)


def _queues(app: Any, nodes: Sequence[str]) -> Check:
    from nexus_tasks.config import QUEUES

    reading = app.control.inspect(nodes, limit=len(nodes), timeout=_QUEUES_SECONDS)
    told = within(_QUEUES_SECONDS, reading.active_queues) or {}
    read = {queue["name"] for queues in told.values() for queue in queues}
    unread = [name for name in QUEUES if name not in read]
    if not unread:
        return passed("queues", "every queue has a worker")
    found = f"no worker reads {', '.join(unread)}"
    remedy = f"Start one with `celery -A nexus_tasks worker --queues {','.join(unread)}`."
    return failed("queues", found, remedy)


def _connections(settings: Settings, pools: Sequence[_Pool]) -> Iterator[Check]:
    """Compare the connections that a worker may have with its threads, and those of all workers with Postgres'."""
    from nexus_tasks.deployment import SPARE_CONNECTIONS, pool_size

    most = max(pool.threads for pool in pools)
    size = pool_size(settings, most)
    found = f"{size} connections for {most} threads"
    if 2 * size >= most + SPARE_CONNECTIONS:  # a pool opens as many more when it must
        yield passed("pool", found)
    else:
        remedy = "Restart the workers without it: `unset NEXUS_DATABASE_POOL_SIZE`."
        yield failed("pool", f"NEXUS_DATABASE_POOL_SIZE gives {found}; jobs wait for each other", remedy)
    # A process that runs one job at a time needs one connection, whatever its pool may open.
    kept = [pool_size(settings, one.threads) if one.threads > 1 else one.processes + SPARE_CONNECTIONS for one in pools]
    yield _all_connections(sum(kept), len(pools))


def _all_connections(needed: int, workers: int) -> Check:
    from sqlalchemy import text

    from nexus_tasks.deployment import default_deployment
    from nexus_tasks.storage.silent_connections import WatchedConnection

    with default_deployment().database.reading() as tx:
        limits = tx.execute(text(_LIMITS)).one()
        driver = tx.connection().connection.driver_connection
        pooled = isinstance(driver, WatchedConnection) and driver.session is None
    keep = "worker keeps" if workers == 1 else "workers keep"
    found = f"{workers} {keep} up to {needed} connections, Postgres has {limits.server}"
    for limit, whose in ((limits.role, f"ROLE {limits.role_name}"), (limits.database, f"DATABASE {limits.name}")):
        if limit is not None and limit < needed and not pooled:
            found = f"{workers} {keep} up to {needed} connections, {whose} may have {limit}"
            remedy = f"Run `ALTER {whose} CONNECTION LIMIT {2 * needed}` as a superuser, or run fewer threads."
            return failed("connections", found, remedy)
    if pooled:
        return passed("connections", f"{found}, behind a pooler")
    if needed <= limits.server:
        return passed("connections", found)
    remedy = (
        f"Run `ALTER SYSTEM SET max_connections = {2 * needed}` and restart Postgres, run fewer threads, or put"
        " PgBouncer in between (docs/deployments.md)."
    )
    return failed("connections", found, remedy)


def _beat(settings: Settings) -> Check:
    from nexus_tasks.deployment import default_deployment
    from nexus_tasks.tasks.ticks import beat_ticked

    if beat_ticked(default_deployment()):
        return passed("beat", "has ticked in the last 2 minutes")
    found = "no tick in the last 2 minutes, so no dreams and no upkeep"
    if settings.embedded:
        return passed("beat", f"{found}; `nexus up` runs it")
    return failed("beat", found, "Start it with `celery -A nexus_tasks beat`; it ticks at once, then every minute.")
