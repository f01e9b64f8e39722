"""Two job kinds of somebody else's, whole in this file: outbox, retries, probe and follow-up. Workers import it too.

``ship`` records a parcel once and asks for ``announce`` in the same transaction. What it meets on its way is a list of
words in Redis, one per attempt.
"""

from __future__ import annotations

import os
import signal
from typing import ClassVar

from sqlalchemy import text

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import Misconfigured, Permanent, Transient
from nexus_tasks.jobs import Arguments, JobOutcome, NamespaceRun, in_namespace, job

WITH_PARCELS = ("--include", "tests.integration.parcels")
TABLES = (
    "CREATE TABLE shipped (parcel bigint PRIMARY KEY, express boolean)",
    "CREATE TABLE announced (parcel bigint PRIMARY KEY)",
)


class Parcel(Arguments):
    scope: ClassVar = ("namespace", "parcel")
    namespace: str
    parcel: int
    express: bool = False


def meets(deployment: Deployment, *words: str) -> None:
    """Say what the next attempts meet: ``kill``, ``late``, ``closed`` or ``broken``; after these, nothing."""
    claims = deployment.claims
    claims.redis.rpush(f"{claims.prefix}:test:meets", *words)


def carrier_is_open(deployment: Deployment) -> None:
    """The probe of ``ship``."""
    claims = deployment.claims
    if not claims.redis.exists(f"{claims.prefix}:test:open"):
        raise Misconfigured("The carrier is closed.")


@job(arguments=Parcel, queue="maintenance", durable=True)
@in_namespace
def announce(work: NamespaceRun, arguments: Parcel) -> JobOutcome:
    """Announce a parcel, once."""
    with work.database.transaction() as tx:
        tx.execute(text("INSERT INTO announced VALUES (:p) ON CONFLICT DO NOTHING"), {"p": arguments.parcel})
        return work.commit(tx, JobOutcome(status="completed"))


@job(arguments=Parcel, queue="maintenance", durable=True, probe=carrier_is_open)
@in_namespace
def ship(work: NamespaceRun, arguments: Parcel) -> JobOutcome:
    """Ship a parcel, once, and have it announced."""
    store = work.run.store
    word = store.redis.lpop(f"{store.prefix}:test:meets")
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word in ERRORS:
        raise ERRORS[word]
    with work.database.transaction() as tx:
        row = {"p": arguments.parcel, "express": arguments.express}
        tx.execute(text("INSERT INTO shipped VALUES (:p, :express) ON CONFLICT DO NOTHING"), row)
        announce.want(tx, namespace=arguments.namespace, parcel=arguments.parcel)
        outcome = work.commit(tx, JobOutcome(status="completed"))
    if word == "kill after the commit":
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome


ERRORS = {
    "late": Transient("The van is late."),
    "closed": Misconfigured("closed"),
    "broken": Permanent("It is broken."),
}
