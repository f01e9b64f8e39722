"""Schema migrations with Alembic: upgrading and downgrading the tables of a database."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.errors import LockNotAvailable
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from nexus_tasks.storage import tenancy
from nexus_tasks.storage.translation import make_engine, translated

if TYPE_CHECKING:  # Alembic takes 0.1 s to import, and only a migration needs it
    from alembic.config import Config

log = logging.getLogger(__name__)

# The number of the Postgres advisory lock ("nexus" in ASCII) that lets only one process migrate at a time.
_LOCK = 0x6E65787573
_MIGRATIONS = Path(__file__).with_name("migrations")
_TURN_SECONDS = 0.2  # between two looks whether another process still migrates
_LOCK_MS = 5_000  # a migration waits so long for the lock of a table
_TRY_SECONDS = 600.0  # and tries again for so long


def config(url: str) -> Config:
    """Alembic's configuration for the database ``url``. The package contains no file ``alembic.ini``."""
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(_MIGRATIONS))
    made.attributes["url"] = url
    return made


def upgrade(url: str, revision: str = "head") -> None:
    """Run the missing migrations up to ``revision``. Several processes may call this function at once.

    Each migration commits by itself. After an error, the next call goes on with the migration that failed.

    Then make the role and the policies of row-level security (see ``tenancy.py``), if this user may.

    Raises:
        StorageUnavailable: the server does not answer, or refuses this deployment.
        ConfigurationError: ``url`` is no address of a Postgres database.
    """
    _run(url, revision, up=True)


def downgrade(url: str, revision: str) -> None:
    """Undo migrations down to ``revision``. The revision ``base`` removes every table with its data.

    Raises:
        StorageUnavailable: the server does not answer, or refuses this deployment.
        ConfigurationError: ``url`` is no address of a Postgres database.
    """
    _run(url, revision, up=False)


def _run(url: str, revision: str, *, up: bool) -> None:
    engine = make_engine(url, poolclass=NullPool)
    try:
        with translated(), _turn(engine):
            _migrate(engine, config(url), revision, up=up)
            if up and revision == "head":
                with engine.connect() as connection:
                    if why := tenancy.install(connection):
                        log.warning("Row-level security is off: %s. See docs/tenants.md.", why)
    finally:
        engine.dispose()


@contextmanager
def _turn(engine: Engine) -> Iterator[None]:
    """Wait until no other process migrates, and keep others waiting.

    The lock is held by a transaction of its own, because a session's lock would outlive this process in a pooler. No
    transaction waits for the lock: an index that is built concurrently would wait for that transaction.
    """
    with engine.connect() as guard:
        while not guard.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _LOCK}):
            guard.rollback()
            time.sleep(_TURN_SECONDS)
        # The last statement must be one that needs no snapshot, because an index would wait for the snapshot too.
        guard.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield


def _migrate(engine: Engine, settings: Config, revision: str, *, up: bool) -> None:
    """Run the migrations, each in a transaction of its own.

    A statement that waits for the lock of a table holds up every later statement on the table. So a migration waits
    for at most 5 s, then lets the others pass and tries again. After 10 minutes its error is raised.
    """
    from alembic import command

    until = time.monotonic() + _TRY_SECONDS
    while True:
        with engine.connect() as connection:
            connection.execute(text(f"SET lock_timeout = {_LOCK_MS}"))
            connection.commit()
            settings.attributes["connection"] = connection
            try:
                (command.upgrade if up else command.downgrade)(settings, revision)
                return
            except OperationalError as error:
                if not isinstance(error.orig, LockNotAvailable) or time.monotonic() > until:
                    raise
                log.warning("Another transaction holds a table that the migration needs; it tries again in 5 s.")
        time.sleep(_LOCK_MS / 1000)


def versions(url: str) -> tuple[str | None, str]:
    """The revision of the database, and the revision that this version of nexus-tasks needs.

    The database's revision is ``None`` when the database is empty.

    Raises:
        StorageUnavailable: the server does not answer, or refuses this deployment.
        ConfigurationError: ``url`` is no address of a Postgres database.
    """
    needed = max(file.name[:4] for file in (_MIGRATIONS / "versions").glob("[0-9]*.py"))
    engine = make_engine(url, poolclass=NullPool)
    try:
        with translated(), engine.connect() as connection:
            if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
                return None, needed
            return connection.scalar(text("SELECT version_num FROM alembic_version")), needed
    finally:
        engine.dispose()
