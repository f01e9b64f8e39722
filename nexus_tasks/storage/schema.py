"""Schema migrations with Alembic: upgrading and downgrading the tables of a database."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from psycopg.errors import DeadlockDetected, ForeignKeyViolation, LockNotAvailable
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.pool import NullPool

from nexus_tasks.errors import StorageMisconfigured
from nexus_tasks.storage import tenancy
from nexus_tasks.storage.engine import KEEPALIVES, NO_TIMEOUTS
from nexus_tasks.storage.translation import make_engine, translated

if TYPE_CHECKING:  # Alembic takes 0.1 s to import, and only a migration needs it
    from alembic.config import Config

log = logging.getLogger(__name__)

T = TypeVar("T")

# The number of the Postgres advisory lock ("nexusm" in ASCII) that lets only one process migrate at a time. Release
# 0.1.0 has the number "nexus", and waits for it inside a transaction. An index that is built would wait for
# that transaction, and neither would ever end. With another number 0.1.0 does not wait: it finds its own revision, or
# one that it does not know, and changes nothing.
_LOCK = 0x6E657875736D
_MIGRATIONS = Path(__file__).with_name("migrations")
_TABLE = "to_regclass('alembic_version')"  # of Alembic; NULL in an empty database
_TURN_SECONDS = 0.2  # between two looks whether another process still migrates
_LOCK_MS = 5_000  # an upgrade waits so long for the lock of a table, and as long before it tries again
_TRIES = 60  # which take 10 minutes of waiting
# The last one: an erasure has deleted a row just when a migration wrote a reference to the row.
_IN_THE_WAY = (LockNotAvailable, DeadlockDetected, ForeignKeyViolation)


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
            if up:
                _check_encoding(engine)
            _patiently(engine, partial(_migrate, config(url), revision, up=up))
            if up and revision == "head" and (why := _patiently(engine, tenancy.install)):
                log.warning("Row-level security is off: %s. See docs/tenants.md.", why)
    finally:
        engine.dispose()


def _check_encoding(engine: Engine) -> None:
    """Refuse a new database that takes only some characters: the first message with another one could not be stored.

    A database that has tables already is left as it is, and `nexus doctor` names its encoding.
    """
    with engine.connect() as connection:
        encoding, table = connection.execute(text("SELECT current_setting('server_encoding'), " + _TABLE)).one()
    if encoding != "UTF8" and table is None:
        raise StorageMisconfigured(
            f"The database has the encoding {encoding}, which cannot keep every character.",
            remedy="Make the database anew: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0.",
        )


@contextmanager
def _turn(engine: Engine) -> Iterator[None]:
    """Wait until no other process migrates, and keep others waiting.

    The lock is held by a transaction of its own, because a session's lock would outlive this process in a pooler. No
    transaction waits for the lock: an index that is built concurrently would wait for that transaction.
    """
    with engine.connect() as guard:
        guard.execute(NO_TIMEOUTS)
        guard.execute(text("; ".join(KEEPALIVES)))
        guard.commit()
        while not guard.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _LOCK}):
            guard.rollback()
            time.sleep(_TURN_SECONDS)
        # The last statement must be one that needs no snapshot, because an index would wait for the snapshot too.
        guard.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield


def _migrate(settings: Config, revision: str, connection: Connection, *, up: bool) -> None:
    """Run the migrations, each in a transaction of its own."""
    from alembic import command

    settings.attributes["connection"] = connection
    (command.upgrade if up else command.downgrade)(settings, revision)


def _patiently(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Do ``work``, and again when another transaction is in the way.

    A statement that waits for the lock of a table holds up every later statement on the table. So it waits for at most
    5 s, then lets the others pass, and ``work`` is tried again. After 10 minutes of waiting its error is raised. Time
    that ``work`` spends on large tables does not count.
    """
    for left in reversed(range(_TRIES)):
        with engine.connect() as connection:
            connection.execute(NO_TIMEOUTS)
            connection.execute(text("; ".join([f"SET lock_timeout = {_LOCK_MS}", *KEEPALIVES])))
            connection.commit()
            try:
                return work(connection)
            except (OperationalError, IntegrityError) as error:
                if not isinstance(error.orig, _IN_THE_WAY) or not left:
                    raise
                log.warning("Another transaction is in the way of the upgrade; it tries again in 5 s.")
        time.sleep(_LOCK_MS / 1000)
    raise AssertionError("unreachable")


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
            if connection.scalar(text(f"SELECT {_TABLE}")) is None:
                return None, needed
            return connection.scalar(text("SELECT version_num FROM alembic_version")), needed
    finally:
        engine.dispose()
