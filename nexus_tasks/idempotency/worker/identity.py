"""Refuses to start a worker whose database is not the database that the claims (records of jobs in Redis) belong to."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from nexus_tasks.errors import ForeignDatabase, NexusError
from nexus_tasks.idempotency.engine import engine_of

log = logging.getLogger(__name__)

EX_CONFIG = 78  # the exit code of sysexits.h, by which a supervisor can distinguish this end from a crash


class IdentityStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Compares the identity of the database with the identity in Redis, before the worker takes messages or claims.

    When Postgres or Redis does not answer, the worker starts all the same. Reconcile (the loop that asks again for lost
    jobs) compares the identities every 10 s.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, _worker: object, **_options: object) -> None:
        """Celery makes the step before the worker starts."""

    def start(self, worker: Any) -> None:
        """Celery calls this when the worker starts.

        Raises:
            SystemExit: the claims belong to another database.
        """
        try:
            engine_of(worker.app).storage.verify()
        except ForeignDatabase as error:
            log.critical("The worker does not start: %s", error)
            raise SystemExit(EX_CONFIG) from None
        except NexusError as error:
            log.warning("The database could not be compared with Redis yet: %s", error)

    def stop(self, _worker: object) -> None:
        """Do nothing, because the step has started nothing."""

    terminate = stop
