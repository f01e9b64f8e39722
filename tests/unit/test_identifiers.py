"""Which words of a question are identifiers."""

import pytest

from nexus_tasks.storage.searching.identifiers import MOST, identifiers_of


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("where is src/db/session_pool.py?", ["srcdbsessionpoolpy"]),
        ("session_pool, session-pool or sessionPool", ["sessionpool"]),
        ("who closed PROJ-4821?", ["proj4821"]),
        ("what is (billing.tax.default_rate)", ["billingtaxdefaultrate"]),
        ("--max-old-space-size=4096", ["maxoldspacesize4096"]),
        ("What did Ann say on 2024-05-03 at 10:30?", []),
        ("e.g. the U.S. or 3.5 km", []),
        ("Where does Ann live?", []),
        ("session-pool", ["sessionpool"]),
        ("I need a follow-up and/or a 20-minute call, step-by-step.", []),
        ("", []),
    ],
)
def test_a_word_with_a_sign_or_a_capital_inside_is_one(question: str, found: list[str]) -> None:
    assert identifiers_of(question) == found


def test_few_are_looked_for() -> None:
    assert len(identifiers_of(" ".join(f"a_{n}_name" for n in range(1_000)))) == MOST
    assert identifiers_of("a_" * 1_000) == []
