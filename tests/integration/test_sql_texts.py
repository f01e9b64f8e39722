"""SQL texts, which go to the driver without SQLAlchemy's compiler, do what they do through it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import bindparam, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.sandbox import Sandbox

WHEN = datetime(2026, 3, 2, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("SELECT 'a%b', '50%', 1::int, 'x:y'", {}),
        ("SELECT :a, :a, CAST(:b AS int)", {"a": "said: it's 5%", "b": 7, "unused": 1}),
        ("SELECT * FROM unnest(CAST(:ids AS bigint[])) AS n ORDER BY n DESC", {"ids": [3, 1, 2]}),
        ("SELECT CAST(:nothing AS text), CAST(:when AS timestamptz), CAST(:usd AS numeric)",
         {"nothing": None, "when": WHEN, "usd": Decimal("0.125")}),
        ("SELECT CAST(:found AS jsonb) AS found", {"found": '{"a": [1, null]}'}),
        (r"SELECT '\:a', CAST('{1,2}' AS int[])", {}),
    ],
)  # fmt: skip
def test_a_text_gives_what_it_gives_through_sqlalchemy(here: Sandbox, sql: str, values: dict[str, Any]) -> None:
    with here.deployment.database.transaction() as tx:
        expected = Session.execute(tx, text(sql), values)
        found = tx.execute(text(sql), values)
        assert list(found.keys()) == list(expected.keys())
        assert found.all() == expected.all()
        assert tx.scalar(text(sql), values) == Session.scalar(tx, text(sql), values)
        assert tx.scalars(text(sql), values).all() == Session.scalars(tx, text(sql), values).all()


def test_a_text_with_a_value_of_its_own_keeps_it(here: Sandbox) -> None:
    with here.deployment.database.transaction() as tx:
        assert tx.scalar(text("SELECT CAST(:n AS int)").bindparams(n=4)) == 4
        assert tx.scalar(text("SELECT CAST(:n AS int)").bindparams(bindparam("n", 5))) == 5


def test_a_text_sees_and_undoes_with_its_transaction(here: Sandbox) -> None:
    def half() -> None:
        with here.deployment.database.transaction() as tx:
            tx.execute(text("INSERT INTO namespaces (name) VALUES (:name)"), {"name": "half"})
            assert tx.scalar(text("SELECT count(*) FROM namespaces")) == 1
            tx.execute(text("SELECT 1 / :none"), {"none": 0})

    with pytest.raises(DBAPIError):
        half()

    assert here.sql("SELECT count(*) FROM namespaces") == [(0,)]
