"""Bounding the text of an answer, in the statement that reads it.

The statement adds up the sizes of the texts before Postgres reads them: the size of a large text stands in the row. So
texts beyond :data:`~nexus_tasks.limits.ANSWER_BYTES` neither leave the tables nor travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from nexus_tasks.errors import too_large
from nexus_tasks.limits import ANSWER_BYTES

# A compressed JSON does not say its own size. No other value is read for its size.
MESSAGE = """octet_length(content) + coalesce(octet_length(data), 0) + CASE
    WHEN tool_calls IS NULL THEN 0
    WHEN pg_column_compression(tool_calls) IS NULL THEN pg_column_size(tool_calls)
    ELSE octet_length(CAST(tool_calls AS text)) END"""
MEMORY = "octet_length(content) + coalesce(octet_length(data), 0)"
CONTENT = "octet_length(content)"

_BOUNDED = """
    SELECT * FROM (
        SELECT page.*, row_number() OVER () AS place, count(*) OVER () AS asked,
               sum({size}) OVER ({frame}) AS bytes
        FROM ({sql}) AS page
    ) AS sized
    WHERE bytes <= {most} OR place = 1
    ORDER BY place
"""


def beginning(sql: str, size: str) -> str:
    """The statement of the first rows of ``sql`` that fit together: at least one row, if there are any.

    Args:
        sql: a statement that gives the rows in the order of the answer. Its rows have the columns that ``size`` names.
        size: an SQL expression for the bytes of text in one row, such as :data:`MESSAGE`.

    Returns:
        A statement with three more columns: ``place`` (of the row), ``asked`` (the number of rows of ``sql``) and
        ``bytes`` (from the first row to this one).
    """
    return _BOUNDED.format(sql=sql, size=size, frame="ROWS UNBOUNDED PRECEDING", most=ANSWER_BYTES)


def all_or_first(sql: str, size: str) -> str:
    """The statement of all rows of ``sql`` if they fit together, and of the first row if not. See :func:`checked`.

    It has the same columns as that of :func:`beginning`, with the bytes of all rows.
    """
    return _BOUNDED.format(sql=sql, size=size, frame="", most=ANSWER_BYTES)


def checked(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """The rows of :func:`all_or_first`, which are all rows.

    Raises:
        InvalidInput: together they have more than ``ANSWER_BYTES`` bytes of text.
    """
    if rows and rows[0].asked > len(rows):
        raise too_large(int(rows[0].bytes), ANSWER_BYTES)
    return rows
