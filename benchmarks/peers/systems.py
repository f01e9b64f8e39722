"""nexus-tasks and stock Celery under test: each enqueues sessions, starts workers, and reads the facts it stored."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from benchmarks.kill_fleet import CONCURRENCY, ROOT, Fleet
from benchmarks.peers import plain_tasks
from nexus_tasks import Message, Nexus
from nexus_tasks.embedded.urls import celery_url
from tests.sandbox import Sandbox

MESSAGES = 5  # of a session: one call of the model
# The work is the derivation of facts alone, at once, as the peer's is.
SETTINGS = {
    "NEXUS_DERIVE_MAX_WAIT": "0",
    "NEXUS_REFLECT_MIN_NEW": "1000000",
    "NEXUS_DIGEST_MIN_MESSAGES": "1000000",
    "NEXUS_DIGEST_SHORT_TOKENS": "1000000",
}


@dataclass(frozen=True, kw_only=True)
class System:
    """A system under test."""

    name: str
    fleet: Fleet
    ask: Callable[[str], None]  # store a session and ask for its facts; a second time, as a client that saw no answer
    written: Callable[[], Counter[str]]  # by session with facts: how often its most frequent fact is stored


def said(session: str) -> list[str]:
    """The texts of a session."""
    return [f"In {session} I put box {n} on shelf {n + 7}." for n in range(MESSAGES)]


def ours(here: Sandbox, redis_port: int, _model: str) -> System:
    """nexus-tasks, with its settings as they are but for the kinds of jobs."""
    nexus = Nexus()

    def ask(session: str) -> None:
        messages = [Message(author="ann", content=text, id=f"{session}-{n}") for n, text in enumerate(said(session))]
        nexus.ingest("peers", session, messages)

    def written() -> Counter[str]:
        rows = here.sql(
            "SELECT session_key, max(times) FROM (SELECT s.session_key, e.source_id, count(*) AS times"
            " FROM evidence e JOIN memories m ON m.id = e.source_id JOIN sessions s ON s.id = m.session_id"
            " WHERE e.role = 'derived_from' GROUP BY 1, 2) AS facts GROUP BY 1"
        )
        return Counter({str(session): int(times) for session, times in rows})

    environment = {**here.environment, "NEXUS_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0"}
    return System(
        name="nexus-tasks",
        fleet=_fleet(here, sys.executable, "nexus_tasks", environment),
        ask=ask,
        written=written,
    )


def plain(here: Sandbox, redis_port: int, model: str, python: Path) -> System:
    """Stock Celery."""
    for statement in plain_tasks.TABLES.strip().split(";\n"):
        here.sql(statement.removesuffix(";"))
    app = plain_tasks.app
    app.conf.broker_url = celery_url(here.servers.redis_url)

    def ask(session: str) -> None:
        if not here.sql("SELECT 1 FROM plain_messages WHERE session = :session LIMIT 1", session=session):
            for n, text in enumerate(said(session)):
                here.sql(
                    "INSERT INTO plain_messages VALUES (:session, 'ann', :text, :n)", session=session, text=text, n=n
                )
        plain_tasks.derive.delay(session)

    def written() -> Counter[str]:
        rows = here.sql(
            "SELECT session, max(times) FROM (SELECT session, n, count(*) AS times FROM plain_facts GROUP BY 1, 2)"
            " AS facts GROUP BY 1"
        )
        return Counter({str(session): int(times) for session, times in rows})

    address = urlsplit(here.database_url)
    environment = {
        "PATH": os.environ["PATH"],
        "PEERS_BROKER": f"redis://127.0.0.1:{redis_port}/0",
        "PEERS_DATABASE": f"host={parse_qs(address.query)['host'][0]} user=nexus dbname={here.database_name}",
        "PEERS_MODEL": model,
    }
    return System(
        name="stock Celery",
        fleet=_fleet(here, str(python), "benchmarks.peers.plain_tasks", environment),
        ask=ask,
        written=written,
    )


def _fleet(here: Sandbox, python: str, app: str, environment: dict[str, str]) -> Fleet:
    celery = (python, "-m", "celery", "-A", app, "worker", "--loglevel", "WARNING", "--pool", "threads")
    return Fleet(
        command=[*celery, "--concurrency", str(CONCURRENCY), "--without-mingle", "--without-gossip"],
        environment={**environment, "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"},
        log=here.folder / "workers.log",
        dice=random.Random(1),
    )
