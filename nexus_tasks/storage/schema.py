"""Schema migrations with Alembic: upgrading and downgrading the tables of a database."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.pool import NullPool

from nexus_tasks.storage import tenancy
from nexus_tasks.storage.translation import make_engine, translated

log = logging.getLogger(__name__)

# The number of the Postgres advisory lock ("nexus" in ASCII) that lets only one process migrate at a time.
_LOCK = 0x6E65787573


def config(url: str) -> Config:
    """Alembic's configuration for the database ``url``. The package contains no file ``alembic.ini``."""
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    made.attributes["url"] = url
    return made


def upgrade(url: str, revision: str = "head") -> None:
    """Run the missing migrations up to ``revision``. Several processes may call this function at once.

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
    settings = config(url)
    engine = make_engine(url, poolclass=NullPool)
    try:
        with translated(), engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            settings.attributes["connection"] = connection
            (command.upgrade if up else command.downgrade)(settings, revision)
            if up and revision == "head" and (why := tenancy.install(connection)):
                log.warning("Row-level security is off: %s. See docs/tenants.md.", why)
    finally:
        engine.dispose()


def versions(url: str) -> tuple[str | None, str]:
    """The revision of the database, and the revision that this version of nexus-tasks needs.

    The database's revision is ``None`` when the database is empty.

    Raises:
        StorageUnavailable: the server does not answer, or refuses this deployment.
        ConfigurationError: ``url`` is no address of a Postgres database.
    """
    needed = ScriptDirectory.from_config(config(url)).get_current_head()
    assert needed is not None
    engine = make_engine(url, poolclass=NullPool)
    try:
        with translated(), engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision(), needed
    finally:
        engine.dispose()
