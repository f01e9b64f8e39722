"""Check the queue: a message can be sent and is not sent twice, and a canary (a job for this test) runs to its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nexus_tasks.cli.checks.check import Check, failed, passed
from nexus_tasks.cli.stack import worker_alive

CANARY = "nexus-doctor"  # the namespace of the canary job, which stays empty; in a cell the cell's name follows
_CONNECT_SECONDS, _CANARY_SECONDS = 5.0, 30.0


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
        found = passed("broker", f"{connection.transport.driver_type}, queues {', '.join(app.amqp.queues)}")
        if connection.transport.driver_type != "redis":
            return [found]
        options = app.conf.broker_transport_options or {}
        return [
            found,
            _visibility(float(options.get("visibility_timeout", connection.transport.Channel.visibility_timeout))),
        ]


def _visibility(seconds: float) -> Check:
    """Check that Celery does not deliver the message of a running job again.

    The second delivery does no harm, because the job has one claim, but the sweep is sooner and costs less.
    """
    from nexus_tasks.idempotency import kind

    longest, name = max((one.run_limit, one.name) for one in kind.declared().values())
    found = f"{seconds:,.0f} s, the longest run is {longest:,.0f} s ({name})"
    if seconds > longest:
        return passed("visibility timeout", found)
    remedy = (
        "Take `visibility_timeout` out of `broker_transport_options` in your celeryconfig.py, or make it longer than"
        " the longest run."
    )
    return failed("visibility timeout", found, remedy)


def canary() -> Sequence[Check]:
    """Queue a job that costs nothing, in a namespace of its own, and wait up to 30 s until a worker has done it.

    Raises:
        NexusError: the database, Redis or the broker does not answer, or the job did not end in time.
    """
    if not worker_alive():
        return [failed("canary", "not sent: no worker answers", "Start one with `nexus up --detach`, then try again.")]
    from nexus_tasks import Nexus, reflect_namespace
    from nexus_tasks.deployment import default_deployment

    cell = default_deployment().settings.cell
    namespace = f"{CANARY}-{cell}" if cell else CANARY  # a namespace lives in one cell
    Nexus().create_namespace(namespace)
    began = time.monotonic()
    outcome = reflect_namespace.delay(namespace=namespace).wait(timeout=_CANARY_SECONDS)
    took = (time.monotonic() - began) * 1000
    return [passed("canary", f"reflect_namespace of {namespace}: {outcome.status} after {took:,.0f} ms")]
