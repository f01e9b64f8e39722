"""Check the queue: a message can be sent, a worker answers, and a canary (a job for this test) runs to its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nexus_tasks.cli.checks.check import Check, failed, passed
from nexus_tasks.cli.stack import live_workers, worker_alive
from nexus_tasks.settings import Settings

CANARY = "nexus-doctor"  # the namespace of the canary job; it stays empty
_CONNECT_SECONDS, _PING_SECONDS, _CANARY_SECONDS = 5.0, 1.0, 30.0


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
