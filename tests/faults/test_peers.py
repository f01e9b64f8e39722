"""The reliability table in its smallest form: ours loses nothing and does nothing twice, and the rows are whole."""

from __future__ import annotations

import pytest

from benchmarks.peers.__main__ import HEADINGS, measure


@pytest.mark.long
def test_the_smallest_table() -> None:
    rows = [dict(zip(HEADINGS, row, strict=True)) for row in measure(24, ("flush", "twice"))]
    ours = [row for row in rows if row["system"] == "nexus-tasks"]
    assert [(row["fault"], row["sessions"], row["lost"], row["facts twice"]) for row in ours] == [
        ("flush", 24, 0, 0),
        ("twice", 24, 0, 0),
    ]
    assert all(24 <= int(str(row["model calls"])) <= 24 + 8 for row in ours)  # a flush can hit each of 8 running calls
    peers = [row for row in rows if row["system"] == "stock Celery"]
    if not peers:
        pytest.skip("stock Celery could not be installed: ours was measured alone")
    flushed, twice = peers  # the faults do hit
    assert int(str(flushed["lost"])) > 0
    assert twice["facts twice"] == 24
    assert int(str(twice["model calls"])) >= 48
