"""The reliability table in its smallest form: ours loses nothing and does nothing twice, and the rows are whole."""

from __future__ import annotations

import pytest

from benchmarks.peers.__main__ import HEADINGS, measure


@pytest.mark.long
def test_the_smallest_table() -> None:
    rows = [dict(zip(HEADINGS, row, strict=True)) for row in measure(6, ("flush", "twice"))]
    ours = [row for row in rows if row["system"] == "nexus-tasks"]
    assert [(row["fault"], row["sessions"], row["lost"], row["facts twice"]) for row in ours] == [
        ("flush", 6, 0, 0),
        ("twice", 6, 0, 0),
    ]
    assert all(6 <= int(str(row["model calls"])) <= 7 for row in ours)
    peers = [row for row in rows if row["system"] == "stock Celery"]
    if not peers:
        pytest.skip("stock Celery could not be installed: ours was measured alone")
    twice = peers[-1]
    assert (twice["fault"], twice["facts twice"], twice["model calls"]) == ("twice", 6, 12)  # the faults do hit
