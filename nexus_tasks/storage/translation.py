"""Translating the errors of SQLAlchemy and psycopg into errors of ``nexus_tasks/errors.py``.

The type of the translated error decides whether a job is retried, and whether the client buffers messages.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from nexus_tasks.errors import (
    ConfigurationError,
    InvalidInput,
    Misconfigured,
    SchemaOutdated,
    StorageMisconfigured,
    StorageUnavailable,
    Transient,
)

# A retry may succeed after an error whose SQLSTATE begins with one of these codes: 08 (the connection failed), 25006
# (the server is read-only, because it is a standby or a former primary), 40 (Postgres rolled the transaction back
# because of a deadlock or a serialisation failure), 53 (the server lacks a resource, for example disk space), 57 (an
# operator intervened) and 58 (the server's system failed).
_READ_ONLY = "25006"
_TOO_MANY_CONNECTIONS = "53300"
_PASSING = ("08", _READ_ONLY, "40", "53", "57", "58")
# Postgres has ended a statement, an idle transaction or a transaction by a timeout. Other statements go on.
_TOOK_TOO_LONG = ("57014", "25P03", "25P04")
_TOO_LARGE = "54"  # a limit of Postgres is exceeded, for example the size of a text in a full-text index
_UNDEFINED_TABLE_OR_COLUMN = ("42P01", "42703")
# Waiting does not help after these errors: 28 (user or password), 3D (no such database), 42501 (no permission) and 0A
# (the server lacks a feature, for example the extension pgvector).
_REFUSING = ("28", "3D", "42501", "0A")
_REMEDIES = {
    _READ_ONLY: "Point NEXUS_DATABASE_URL at the primary; jobs go on by themselves.",
    "53100": "Free space on the database server's disk; jobs go on by themselves.",
    "53200": "Give the database server more memory, or lower its work_mem; jobs go on by themselves.",
    _TOO_MANY_CONNECTIONS: "Raise the server's max_connections, run fewer threads, or put PgBouncer between.",
    "57014": "Raise the statement_timeout of the user in NEXUS_DATABASE_URL, if that user has one.",
    "42501": "Give the user in NEXUS_DATABASE_URL this permission, or name another user.",
    "0A000": "Install pgvector on the database server, or use a server that has it.",
}
# psycopg gives no SQLSTATE for a connection that Postgres refused, only the text. Therefore a server whose messages are
# in another language than English counts as away.
_REFUSAL = re.compile(
    r"authentication failed|no pg_hba\.conf entry|no password supplied|not permitted to log in"
    r'|(?:role|user|database|file) "[^"]*" does not exist|no such (?:database|user)|permission denied for database'
    r"|pg_hba\.conf rejects|does not support SSL|SSL required|definition of service|service file"
    r'|invalid (?:(?:integer |"?\w+"? )?value|port number|connection option|URI query parameter)'
    r"|could not parse network address|unrecognized configuration parameter|invalid command-line argument"
    r"|unsupported startup parameter|requirepeer|authentication(?: method \d+)? not supported"
    # Certificates, keys and what a client asks of TLS and of the server's check of its user.
    r"| certificate(?:'s)?(?: |$)| certificates? paths?| private (?:SSL )?key |alert unknown ca"
    r"|host name must be specified|weak sslmode|protocol version|wrong version number|unsupported protocol"
    r"|no protocols available|channel binding|authentication method requirement|require_auth method"
    r"|SASL authentication mechanisms|GSSAPI encryption",
    re.MULTILINE | re.IGNORECASE,
)
# A server or a pooler that has no connection left refuses with this text. It says so while one connects, so without a
# SQLSTATE.
_TOO_MANY = re.compile(
    r"too many clients already|connection slots are reserved|too many connections for (?:role|database)"
    r"|no more connections allowed"
)
# An answer of the name server that there is no such host. Without an answer (EAI_AGAIN) the name may exist.
_NO_SUCH_HOST = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
_ERRNO = re.compile(r"\[Errno (-?\d+)\]")


def make_engine(url: str, *, connect_args: dict[str, Any] | None = None, **options: Any) -> Engine:
    """Make SQLAlchemy's engine. An option in the URL replaces the one in ``connect_args``.

    Raises:
        ConfigurationError: ``url`` is no address of a Postgres database.
    """
    try:
        given = make_url(url).query
        # A database, its user or PGCLIENTENCODING may have another encoding, in which most characters cannot be read.
        wanted = {"client_encoding": "utf8", **(connect_args or {})}
        arguments = {name: value for name, value in wanted.items() if name not in given}
        # Without `hide_parameters`, errors would show users' texts in logs and dead letters.
        engine = create_engine(url, connect_args=arguments, hide_parameters=True, **options)
    except (ArgumentError, ImportError, ValueError) as error:
        raise ConfigurationError(f"NEXUS_DATABASE_URL is no address of a database ({_kind(error)}).") from None
    if engine.dialect.name != "postgresql" or engine.dialect.driver != "psycopg":
        raise ConfigurationError(
            f"NEXUS_DATABASE_URL names {engine.dialect.name}+{engine.dialect.driver}, not postgresql+psycopg.",
            remedy="Give the address of a Postgres database: postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
        )
    return engine


def _kind(error: Exception) -> str:
    # The error's text is left out, because it may contain the URL with its password.
    return {"NoSuchModuleError": "unknown scheme", "ArgumentError": "not a URL"}.get(
        type(error).__name__, type(error).__name__
    )


@contextmanager
def translated(failed: Callable[[Exception], None] | None = None) -> Iterator[None]:
    """Raise errors of the database as errors of :mod:`nexus_tasks.errors`.

    An error of a statement that these errors do not describe stays as it is, such as a violated constraint.

    Args:
        failed: called with each error of the database, before it is raised.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidInput("A text holds half a surrogate pair, which is no character.") from error
    except PoolExhausted as error:
        raise Transient(
            "Every Postgres connection of this process is in use.",
            remedy="A job tries again by itself. Raise NEXUS_DATABASE_POOL_SIZE when this goes on.",
        ) from error
    except DBAPIError as error:
        _hide_rows(error)
        found = _translate(error)
        if failed is not None:
            failed(found)
        raise found from error


def is_read_only(error: BaseException) -> bool:
    """Whether an error that :func:`translated` has raised says that the server takes no writes, such as a standby."""
    return getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) == _READ_ONLY


def _hide_rows(error: DBAPIError) -> None:
    """Take the details out of an error's text. They quote rows, and the text goes into logs and dead letters."""
    for one in (error, error.orig):
        if one is not None and one.args and isinstance(one.args[0], str):
            one.args = (one.args[0].partition("\nDETAIL:")[0], *one.args[1:])


def _translate(error: DBAPIError) -> Exception:
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _UNDEFINED_TABLE_OR_COLUMN:
        return SchemaOutdated()
    if state.startswith(_TOO_LARGE):
        return InvalidInput(f"A text is larger than Postgres takes: {_first_line(error)}.")
    if is_refusal(str(error.orig), state):
        return StorageMisconfigured(f"Postgres: {_first_line(error)}.", remedy=_REMEDIES.get(state))
    # psycopg gives no SQLSTATE for an answer that it does not understand, such as two errors of a pooler in one answer.
    garbled = isinstance(error, InternalError) and not state
    if error.connection_invalidated or garbled or isinstance(error, OperationalError) or state.startswith(_PASSING):
        # Class 40 (such as a deadlock) and 55P03 (a lock held for too long): the server works, but another transaction
        # was in the way.
        kind = Transient if state.startswith(("40", "55P03")) else StorageUnavailable
        passing = kind(f"Postgres: {_first_line(error)}.", remedy=remedy_of(str(error.orig), state))
        if isinstance(passing, StorageUnavailable):
            passing.outage = state not in _TOOK_TOO_LONG
        return passing
    if state == "22000" and "dimensions" in str(error.orig):  # pgvector compared two vectors, or indexed one
        return Misconfigured(
            f"The embedder's model was replaced under its name: {_first_line(error)}.",
            remedy="Name the new model otherwise in NEXUS_EMBEDDER_MODEL, then run `nexus db reembed`.",
        )
    if isinstance(error, DataError) and "NUL" in str(error.orig):  # psycopg's own check gives no error code
        return InvalidInput("A text holds a NUL character, which Postgres cannot store.")
    return error


def _first_line(error: DBAPIError) -> str:
    # libpq repeats the first line for each address, and adds hints for the server's operator.
    lines = str(error.orig).strip().splitlines()
    return lines[0].rstrip(".") if lines else "no answer"


def remedy_of(text: str, state: str = "") -> str | None:
    """What helps after an error of Postgres or of a connection to it, where more is known than that it does not answer.

    Args:
        text: the error's text.
        state: the SQLSTATE; empty for an error of connecting.
    """
    return _REMEDIES.get(state or (_TOO_MANY_CONNECTIONS if _TOO_MANY.search(text) else ""))


def is_refusal(text: str, state: str) -> bool:
    """Whether an error of Postgres or of a connection to it stays until a person corrects a setting.

    Args:
        text: the error's text. When several addresses were tried, a line with ``- `` in front describes each address.
        state: the SQLSTATE; empty for an error of connecting.
    """
    if state:
        return state.startswith(_REFUSING)
    attempts = [line for line in text.splitlines() if line.startswith("- ")] or [text]
    return all(_REFUSAL.search(attempt) or _names_no_host(attempt) for attempt in attempts)


def _names_no_host(attempt: str) -> bool:
    failed = _ERRNO.search(attempt) if "failed to resolve host" in attempt else None
    return failed is not None and int(failed[1]) in _NO_SUCH_HOST
