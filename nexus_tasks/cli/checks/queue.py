"""Check the queue: a message can be sent, a worker answers, and a canary (a job for this test) runs to its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nexus_tasks.cli.checks.check import Check, failed, passed
from nexus_tasks.cli.stack import live_workers, worker_alive
from nexus_tasks.settings import Settings

CANARY = "nexus-doctor"  # the namespace of the canary job; it stays empty
_CONNECT_SECONDS, _PING_SECONDS, _CANARY_SECONDS = 5.0, 1.0, 30.0
_CLOCK_SECONDS = 5.0  # more than this between the clocks is a fault


def broker() -> Sequence[Check]:
    """Check that a producer can connect to the broker and declare the queues.

    Raises:
        kombu.exceptions.OperationalError: the broker does not answer.
    """
    from nexus_tasks.celery import app

    with app.connection_for_write(connect_timeout=_CONNECT_SECONDS) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=_CONNECT_SECONDS)
        with connection.channel() as channel:
            for queue in app.amqp.queues.values():
                queue(channel).declare()
        return [passed("broker", f"{connection.transport.driver_type}, queues {', '.join(app.amqp.queues)}")]


def deployment() -> Sequence[Check]:
    """Check that the claims in Redis belong to this database, that no kind is paused, and that the clocks agree.

    Raises:
        NexusError: Redis or Postgres does not answer.
    """
    from nexus_tasks.deployment import default_deployment
    from nexus_tasks.errors import ForeignDatabase

    engine = default_deployment().engine
    try:
        engine.storage.verify()
        identity = passed("identity", "the claims in Redis belong to this database")
    except ForeignDatabase as error:
        identity = failed("identity", error.message, error.remedy)
    kinds = engine.claims.paused()
    remedy = "Correct the cause; a worker tests every minute whether it is gone, and goes on."
    pauses = [failed("paused", f"{kind}: {why['reason']}", remedy) for kind, why in kinds.items()]
    return [identity, *(pauses or [passed("paused", "no job kind")]), _clock(engine.claims.now() - time.time())]


def _clock(ahead: float) -> Check:
    found = f"Redis is {ahead:+.1f} s from this machine"
    if abs(ahead) <= _CLOCK_SECONDS:
        return passed("clock", found)
    return failed("clock", found, "Let both machines follow a time server (NTP).")


def workers(settings: Settings) -> Sequence[Check]:
    """Check that a worker answers within 1 s.

    With the embedded servers of this package, no worker is needed: a command with the option ``--wait`` starts a worker
    of its own, which ends with the command.

    Raises:
        kombu.exceptions.OperationalError: the broker does not answer.
    """
    if alive := live_workers(_PING_SECONDS):
        return [passed("workers", f"{len(alive)}: {', '.join(alive)}")]
    if settings.embedded:
        return [passed("workers", "none; `nexus up` runs one, and a command with `--wait` starts one until it ends")]
    return [failed("workers", "none answers", "Start one with `celery -A nexus_tasks worker`.")]


def canary() -> Sequence[Check]:
    """Queue a job that costs nothing, in a namespace of its own, and wait up to 30 s until a worker has done it.

    Raises:
        NexusError: the database, Redis or the broker does not answer, or the job did not end in time.
    """
    if not worker_alive():
        return [failed("canary", "not sent: no worker answers", "Start one with `nexus up --detach`, then try again.")]
    from nexus_tasks import Nexus, reflect_namespace

    Nexus().create_namespace(CANARY)
    began = time.monotonic()
    outcome = reflect_namespace.delay(namespace=CANARY).wait(timeout=_CANARY_SECONDS)
    took = (time.monotonic() - began) * 1000
    return [passed("canary", f"reflect_namespace of {CANARY}: {outcome.status} after {took:,.0f} ms")]
