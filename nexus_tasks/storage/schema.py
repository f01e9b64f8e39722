"""Schema migrations with Alembic: upgrading and downgrading the tables of a database."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.pool import NullPool

from nexus_tasks.storage import tenancy
from nexus_tasks.storage.translation import make_engine, translated

if TYPE_CHECKING:  # Alembic takes 0.1 s to import, and only a migration needs it
    from alembic.config import Config

log = logging.getLogger(__name__)

# The number of the Postgres advisory lock ("nexus" in ASCII) that lets only one process migrate at a time.
_LOCK = 0x6E65787573
_MIGRATIONS = Path(__file__).with_name("migrations")


def config(url: str) -> Config:
    """Alembic's configuration for the database ``url``. The package contains no file ``alembic.ini``."""
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(_MIGRATIONS))
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
    from alembic import command

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
    needed = max(file.name[:4] for file in (_MIGRATIONS / "versions").glob("[0-9]*.py"))
    engine = make_engine(url, poolclass=NullPool)
    try:
        with translated(), engine.connect() as connection:
            if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
                return None, needed
            return connection.scalar(text("SELECT version_num FROM alembic_version")), needed
    finally:
        engine.dispose()
