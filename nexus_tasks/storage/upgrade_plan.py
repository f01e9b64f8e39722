"""What an upgrade of the schema will do: each missing migration, the tables that it locks, and for how long.

A migration that takes longer than a moment says so itself, in its constants:

    LOCKS = {"memories": "readers and writers"}      # table → whose statements wait while it is locked
    REWRITES = ("memories",)                         # the tables of which every row is written anew
    SECONDS_PER_MILLION_MEMORIES = 53                # measured; how long it takes
    OLD_WORKERS = False                              # whether workers of the release before may run afterwards

Without ``LOCKS`` the migration locks its tables for a moment only: see ``migrations/online.py``. Without
``OLD_WORKERS`` workers of the release before may run.
"""

from __future__ import annotations

from dataclasses import dataclass

from alembic.script import Script, ScriptDirectory
from sqlalchemy import text
from sqlalchemy.pool import NullPool

from nexus_tasks.storage.schema import config, versions
from nexus_tasks.storage.translation import make_engine, translated
from nexus_tasks.types.document import Document

# A transaction waits so long for a lock, then fails and is tried again (`LOCK_TIMEOUT_MS` in `engine.py`).
_SHORT_SECONDS = 16.0


@dataclass(frozen=True)
class MigrationStep(Document):
    """One missing migration.

    ``locks`` names the tables that it locks for longer than a moment, and whose statements wait meanwhile. ``rewrites``
    names the tables of which every row is written anew: as much disk space must be free again. ``seconds``
    is an estimate for the present number of rows. ``old_workers``: whether workers of the release before may run
    while it runs, and afterwards.
    """

    revision: str
    says: str
    locks: dict[str, str]
    rewrites: tuple[str, ...]
    seconds: float
    old_workers: bool


@dataclass(frozen=True)
class UpgradePlan(Document):
    """The missing migrations in their order. ``memories`` is Postgres' own estimate of the rows of that table."""

    found: str | None
    needed: str
    memories: int
    steps: tuple[MigrationStep, ...]

    @property
    def seconds(self) -> float:
        """An estimate of the seconds that all steps take."""
        return round(sum(step.seconds for step in self.steps), 1)

    @property
    def old_workers(self) -> bool:
        """Whether workers of the release before may run while all steps run."""
        return all(step.old_workers for step in self.steps)


def plan(url: str) -> UpgradePlan:
    """What ``upgrade`` would do. Nothing is locked or changed.

    Raises:
        StorageUnavailable: the server does not answer, or refuses this deployment.
        ConfigurationError: ``url`` is no address of a Postgres database.
    """
    found, needed = versions(url)
    memories = _memories(url) if found is not None else 0
    scripts = ScriptDirectory.from_config(config(url))
    missing = [] if found == needed else list(scripts.iterate_revisions("head", found or "base"))
    steps = tuple(_step(script, memories) for script in reversed(missing))
    return UpgradePlan(found=found, needed=needed, memories=memories, steps=steps)


def _step(script: Script, memories: int) -> MigrationStep:
    module = script.module
    seconds = getattr(module, "SECONDS_PER_MILLION_MEMORIES", 0) * memories / 1e6
    locks = dict(getattr(module, "LOCKS", {}))
    return MigrationStep(
        revision=script.revision,
        says=" ".join((module.__doc__ or "").split("\n\n")[0].split()),
        locks=locks,
        rewrites=tuple(getattr(module, "REWRITES", ())),
        seconds=round(seconds, 1),
        old_workers=getattr(module, "OLD_WORKERS", True) and (not locks or seconds <= _SHORT_SECONDS),
    )


def _memories(url: str) -> int:
    """The rows of ``memories``, as the last ANALYZE saw them; counted when there was none."""
    engine = make_engine(url, poolclass=NullPool)
    try:
        with translated(), engine.connect() as connection:
            rows = connection.scalar(text("SELECT reltuples::bigint FROM pg_class WHERE oid = 'memories'::regclass"))
            if rows is None or rows < 0:
                rows = connection.scalar(text("SELECT count(*) FROM memories"))
            return int(rows or 0)
    finally:
        engine.dispose()
