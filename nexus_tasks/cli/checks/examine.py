"""Run all checks in order, and return the document that ``nexus doctor --json`` prints."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from nexus_tasks.cli.checks import claims, machine, models, postgres, queue, redis, workers
from nexus_tasks.cli.checks.check import Check, failed, passed, run_checks
from nexus_tasks.cli.connect import start_logging
from nexus_tasks.endpoints import Endpoints, endpoints_of
from nexus_tasks.errors import NexusError
from nexus_tasks.settings import Settings, load_settings, refuse_several

_FIELDS = ("database_url", "redis_url", "model", "embedder", "home")


def examine(*, canary: bool) -> dict[str, Any]:
    """Run all checks. With ``canary``, also send a job through the queue.

    Returns:
        ``{"ok", "checks": […], "database_url", "redis_url", "model", "embedder", "home"}``. Passwords are masked.
    """
    about: dict[str, Any] = dict.fromkeys(_FIELDS)
    checks = [machine.python(), *_settings(about, canary=canary)]
    return {"ok": all(check.ok for check in checks), "checks": [check.as_dict() for check in checks], **about}


def _settings(about: dict[str, Any], *, canary: bool) -> Iterator[Check]:
    try:
        start_logging()
        settings = load_settings()
    except NexusError as error:
        yield failed("settings", error.message, error.remedy)
        return
    changed = sorted(f"NEXUS_{name.upper()}" for name in settings.model_fields_set)
    yield passed("settings", ", ".join(changed) or "all defaults")
    yield from machine.mistyped()
    about |= {"model": settings.model, "embedder": settings.embedder, "home": str(settings.home)}
    yield from _servers(settings, about, canary=canary)
    yield machine.home(settings)
    yield machine.disk(settings)
    yield from run_checks("buffer", lambda: machine.buffer(settings), "See `nexus buffer status`.")
    model = run_checks("model", lambda: models.models(settings), "Correct NEXUS_MODEL.")
    if model[0].ok:
        about["model"] = ", ".join(check.found.partition(",")[0] for check in model if check.name == "model")
    yield from model
    yield from run_checks("embedder", lambda: machine.embedder(settings), "Correct NEXUS_EMBEDDER.")


def _servers(settings: Settings, about: dict[str, Any], *, canary: bool) -> Iterator[Check]:
    try:
        refuse_several(settings)
    except NexusError as error:
        yield failed("servers", error.message, "Set NEXUS_CELL to the cell that is to be checked.")
        return
    if settings.database_url and settings.redis_url:  # these URLs are shown even if they are malformed
        about["database_url"] = machine.masked(settings.database_url.get_secret_value())
        about["redis_url"] = machine.masked(settings.redis_url.get_secret_value())
    found = run_checks("servers", lambda: machine.servers(settings), "Install the extra, or set both URLs.")
    yield from found
    if not found[0].ok:
        return
    try:
        where = endpoints_of(settings)
    except NexusError as error:
        yield failed("start", error.message, error.remedy)
        return
    about |= {"database_url": machine.masked(where.database_url), "redis_url": machine.masked(where.redis_url)}
    database = list(_database(settings, where))
    yield from database
    yield from run_checks(
        "redis",
        lambda: redis.redis(where.redis_url, settings.redis_master),
        "Check NEXUS_REDIS_URL and that the server runs.",
    )
    yield from _queue(settings, canary=canary, with_database=database[0].name != "postgres" or database[0].ok)


def _database(settings: Settings, where: Endpoints) -> Iterator[Check]:
    remedy = "Check NEXUS_DATABASE_URL and that the server runs."
    found = run_checks("postgres", lambda: postgres.postgres(where.database_url), remedy)
    yield from found
    if not found[0].ok:
        return
    writes = all(check.ok for check in found if check.name == "postgres writes")
    found = run_checks("schema", lambda: postgres.schema(where.database_url, embedded=settings.embedded), remedy)
    yield from found
    if found[0].ok:
        found = run_checks("rights", lambda: postgres.rights(where.database_url), remedy)
        yield from found
        if writes and found[0].ok:
            yield from run_checks("postgres disk", lambda: postgres.room(where.database_url), remedy)
        needed = settings.namespaces is not None
        check = functools.partial(postgres.row_security, where.database_url, needed=needed)
        yield from run_checks("row security", check, remedy)


def _queue(settings: Settings, *, canary: bool, with_database: bool) -> Iterator[Check]:
    remedy = "Check NEXUS_BROKER_URL, or NEXUS_REDIS_URL, and that the server runs and takes writes."
    reached = run_checks("broker", queue.broker, remedy)
    yield from reached
    if not reached[0].ok or not with_database:
        return
    yield from run_checks("claims", claims.claims, remedy)
    yield from run_checks("workers", lambda: workers.workers(settings), remedy)
    if canary:
        yield from run_checks("canary", queue.canary, "See what the job waits for with `nexus status`.")
