"""Conditions on a column for any number of values.

SQLAlchemy's ``in_`` sends a parameter for each value, and Postgres takes at most 65,535 parameters in a statement.
These conditions send all values as one array.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Text, all_, any_, literal
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import InstrumentedAttribute

Column = InstrumentedAttribute[Any] | ColumnElement[Any]


def among(column: Column, ids: Collection[int]) -> ColumnElement[bool]:
    """The SQL condition that the column has one of these ids."""
    return column == any_(_ids(ids))


def not_among(column: Column, ids: Collection[int]) -> ColumnElement[bool]:
    """The SQL condition that the column has none of these ids, and is not null."""
    return column != all_(_ids(ids))


def among_texts(column: Column, texts: Collection[str]) -> ColumnElement[bool]:
    """The SQL condition that the column has one of these texts."""
    return column == any_(literal(list(texts), ARRAY(Text)))


def parts(ids: Collection[int], most: int) -> Iterator[list[int]]:
    """The ids in lists of at most ``most``."""
    left = iter(ids)
    while part := list(islice(left, most)):
        yield part


def _ids(ids: Collection[int]) -> Any:
    return literal(list(ids), ARRAY(BigInteger))
