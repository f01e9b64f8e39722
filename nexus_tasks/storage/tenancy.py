"""Limiting transactions to some namespaces by row-level security of Postgres, beside the filters of the statements.

Inside a block of :func:`limited_to`, every transaction changes to the role ``nexus_tenant``. It stores the names and
ids of the namespaces in the settings ``nexus.namespaces`` and ``nexus.namespace_ids``. A policy on every table then
lets it read and write only rows of these namespaces, even if a statement has no filter. The changes end with the
transaction, so a pooled connection keeps nothing, also behind a pooler such as PgBouncer.

Workers and other operator's processes own the tables. Policies do not apply to the owner, and cost it nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from sqlalchemy import Connection, Table, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from nexus_tasks.storage.models import Base

ROLE = "nexus_tenant"
IDLE_READING_MS = 120_000  # a limited read is a transaction, and its process may be busy between two statements

_names: ContextVar[tuple[str, ...] | None] = ContextVar("nexus_namespaces", default=None)


# --- the limit of a call ----------------------------------------------------------------------------------------------
@contextmanager
def limited_to(names: Sequence[str]) -> Iterator[None]:
    """Limit the transactions that this thread begins inside the block to the namespaces ``names``.

    Inside a block with another limit, only the namespaces of both remain.
    """
    outer = _names.get()
    before = _names.set(tuple(name for name in names if outer is None or name in outer))
    try:
        yield
    finally:
        _names.reset(before)


@contextmanager
def unlimited() -> Iterator[None]:
    """Lift the limit inside the block, for work of the process itself that no caller asks for."""
    before = _names.set(None)
    try:
        yield
    finally:
        _names.reset(before)


def limit() -> tuple[str, ...] | None:
    """The namespaces of the limit; ``None`` without a limit."""
    return _names.get()


_SET_IDS = (
    "set_config('nexus.namespace_ids', array(SELECT id FROM namespaces"
    " WHERE name = ANY (string_to_array(:names, ',')))::text, true)"
)
_LIMIT = text(
    f"SELECT {_SET_IDS}, set_config('role', '{ROLE}', true), set_config('nexus.namespaces', :names, true),"
    " set_config('idle_in_transaction_session_timeout', coalesce(:idle, current_setting("
    "'idle_in_transaction_session_timeout')), true)"
)


def apply(tx: Session, names: Sequence[str], *, reading: bool) -> None:
    """Limit a transaction that has just begun. No name of a namespace contains a comma."""
    tx.execute(_LIMIT, {"names": ",".join(names), "idle": str(IDLE_READING_MS) if reading else None})


def include_new(tx: Session) -> None:
    """Include the namespaces that this transaction has made, if their names are among those of the limit."""
    names = _names.get()
    if names is not None:
        tx.execute(text(f"SELECT {_SET_IDS}"), {"names": ",".join(names)})


# --- whether row-level security is on ---------------------------------------------------------------------------------
# Since version 16 a member of a role may lack the right to change to it.
NO_POLICIES = "the tables have no policies yet"
_FAULT = f"""
SELECT CASE
    WHEN role.oid IS NULL THEN 'the role {ROLE} does not exist'
    WHEN role.rolsuper OR role.rolbypassrls THEN 'the role {ROLE} bypasses row-level security'
    WHEN NOT pg_has_role(role.oid, kind.membership) THEN 'this user may not change to the role {ROLE}'
    WHEN NOT EXISTS (
        SELECT FROM pg_policy JOIN pg_class ON pg_class.oid = polrelid
        WHERE polrelid = to_regclass('memories') AND polname = 'tenants' AND relrowsecurity
    ) THEN '{NO_POLICIES}'
    ELSE '' END
FROM (
    SELECT CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END AS membership
) AS kind LEFT JOIN pg_roles AS role ON role.rolname = '{ROLE}'
"""


def fault(connection: Connection | Session) -> str:
    """Why row-level security cannot be used by this user in this database; empty when it can."""
    return str(connection.execute(text(_FAULT)).scalar_one())


_PROTECTED = """
SELECT polrelid::regclass::text FROM pg_policy JOIN pg_class ON pg_class.oid = polrelid
WHERE polname = 'tenants' AND relrowsecurity
"""


def unprotected(connection: Connection | Session) -> Sequence[str]:
    """The names, sorted, of tables without the policy ``tenants`` and of tables with row-level security off."""
    import nexus_tasks.storage.models  # noqa: F401 - all tables

    protected = set(connection.execute(text(_PROTECTED)).scalars())
    return sorted(table.name for table in Base.metadata.sorted_tables if rule(table) and table.name not in protected)


def without_rights(connection: Connection | Session) -> Sequence[str]:
    """The names, sorted, of tables that this user may not use as the work of a deployment needs it."""
    import nexus_tasks.storage.models  # noqa: F401 - all tables

    held = text(
        "SELECT bool_and(has_table_privilege(to_regclass(:name), one)) FROM unnest(CAST(:wanted AS text[])) one"
    )
    wanted = {table.name: _RIGHTS.get(table.name, _ALL_RIGHTS).split(", ") for table in Base.metadata.sorted_tables}
    return sorted(
        name
        for name, rights in wanted.items()
        if connection.scalar(held, {"name": name, "wanted": rights}) is False  # None: there is no such table
    )


# --- making the role and the policies ---------------------------------------------------------------------------------
_BY_NAME = "= ANY (string_to_array(current_setting('nexus.namespaces', true), ','))"
# The subquery runs once per statement, and not once per row. After a transaction that has set it, the setting is empty.
_BY_ID = "namespace_id = ANY ((SELECT nullif(current_setting('nexus.namespace_ids', true), ''))::bigint[])"
_RULES = {
    "namespaces": f"name {_BY_NAME}",
    "audit_log": f"namespace {_BY_NAME}",
    "database_identity": "true",
    **dict.fromkeys(("cells", "placements"), "false"),  # only the process itself finds the cell of a namespace
}
_ALL_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"
_RIGHTS = {
    "namespaces": "SELECT, INSERT, UPDATE",
    "audit_log": "SELECT, INSERT",
    **dict.fromkeys(("database_identity", "cells", "placements"), "SELECT"),
}


def rule(table: Table) -> str | None:
    """The condition for the rows of a table that a tenant sees. ``None``: a tenant may not use the table."""
    return _RULES.get(table.name, _BY_ID if "namespace_id" in table.c else None)


def install(connection: Connection) -> str:
    """Make the role and the policies that are missing. May run any number of times, after the migrations.

    Each table is a transaction, because a lock of two tables could make writers wait in a circle.

    Every table gets two policies. ``everyone`` lets users other than the owner, who have rights on the table, use it as
    before. ``tenants`` restricts the role ``nexus_tenant``. The role gets rights on a table only with the policy.

    Returns:
        Why the role cannot be used; empty when it can. Without the role, only the filters of the statements remain.
    """
    _try(connection, f"CREATE ROLE {ROLE} NOLOGIN")  # fails when it exists, or when this user may not make roles
    if not connection.scalar(text(f"SELECT count(*) FROM pg_roles WHERE rolname = '{ROLE}'")):
        return fault(connection)
    if fault(connection).startswith("this user"):
        _try(connection, f"GRANT {ROLE} TO CURRENT_USER")
    schema = connection.dialect.identifier_preparer.quote(str(connection.scalar(text("SELECT current_schema()"))))
    connection.execute(text(f"GRANT USAGE ON SCHEMA {schema} TO {ROLE}"))
    missing = set(unprotected(connection))
    connection.commit()
    for table in Base.metadata.sorted_tables:
        if (condition := rule(table)) and table.name in missing:
            connection.execute(text(f"ALTER TABLE {table.name} ENABLE ROW LEVEL SECURITY"))
            connection.execute(text(f"DROP POLICY IF EXISTS everyone ON {table.name}"))
            connection.execute(text(f"DROP POLICY IF EXISTS tenants ON {table.name}"))
            connection.execute(text(f"CREATE POLICY everyone ON {table.name} USING (true)"))
            connection.execute(
                text(f"CREATE POLICY tenants ON {table.name} AS RESTRICTIVE TO {ROLE} USING ({condition})")
            )
            rights = _RIGHTS.get(table.name, _ALL_RIGHTS)
            connection.execute(text(f"GRANT {rights} ON {table.name} TO {ROLE}"))
            connection.commit()
    return fault(connection)


def _try(connection: Connection, statement: str) -> None:
    try:
        with connection.begin_nested():
            connection.execute(text(statement))
    except DBAPIError as error:
        # 42501: no permission. 42710 and 23505: another database of the server has made the role.
        if getattr(error.orig, "sqlstate", None) not in ("42501", "42710", "23505"):
            raise
