"""The base class of all tables, and the columns that most tables have."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, DateTime, ForeignKey, MetaData, Table, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """The base class of every table. It sets the names of constraints and the types of columns."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        str: Text,
        int: BigInteger,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[str]: ARRAY(Text),
    }


def written_columns(table: Table) -> list[str]:
    """The columns that a copy of a row writes: all but the namespace, and those that triggers of Postgres make."""
    return [one.name for one in table.columns if one.server_onupdate is None and one.name != "namespace_id"]


def namespace_column() -> Mapped[int]:
    """The column for the id of the namespace (tenant) that a row belongs to."""
    return mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"))


def now_column() -> Mapped[datetime]:
    """The column for the time when a row was inserted, by the database's clock."""
    return mapped_column(server_default=func.now())
