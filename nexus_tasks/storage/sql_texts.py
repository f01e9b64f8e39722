"""A session that gives SQL texts to the driver as they are.

For every call SQLAlchemy looks up a text's compiled form, and copies the parameters once more. That takes as long as
the driver needs for the statement, and a job has dozens of statements.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import CursorResult, TextClause, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session
from sqlalchemy.types import NullType


class TextSession(Session):
    """A session whose ``execute``, ``scalar`` and ``scalars`` run SQL texts without SQLAlchemy's compiler."""

    def execute(self, statement: Any, params: Any = None, **options: Any) -> Any:
        """As :meth:`Session.execute`."""
        found = self._run(statement, params, options)
        return super().execute(statement, params, **options) if found is None else found

    def scalar(self, statement: Any, params: Any = None, **options: Any) -> Any:
        """As :meth:`Session.scalar`."""
        found = self._run(statement, params, options)
        return super().scalar(statement, params, **options) if found is None else found.scalar()

    def scalars(self, statement: Any, params: Any = None, **options: Any) -> Any:
        """As :meth:`Session.scalars`."""
        found = self._run(statement, params, options)
        return super().scalars(statement, params, **options) if found is None else found.scalars()

    def _run(self, statement: Any, params: Any, options: Any) -> CursorResult[Any] | None:
        """Run ``statement`` if it is a text whose parameters have no types and no values of their own."""
        if type(statement) is not TextClause or options or statement.get_execution_options():
            return None
        if any(type(one.type) is not NullType or one.value is not None for one in statement._bindparams.values()):
            return None
        return self.connection().exec_driver_sql(_for_driver(statement.text), params)


@lru_cache(maxsize=512)
def _for_driver(sql: str) -> str:
    """The text with the driver's marks for parameters: ``%(name)s`` in place of ``:name``."""
    dialect = postgresql.psycopg.dialect()  # type: ignore[no-untyped-call]
    return str(text(sql).compile(dialect=dialect))
