"""Sessions of one matter find each other by the vectors of their digests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nexus_tasks import Nexus
from tests.integration.inline import NAMESPACE, say, work
from tests.sandbox import Sandbox

START = datetime(2026, 1, 1, tzinfo=UTC)
QUESTION = "Which train goes to Porto?"
TALKS = {
    "plans": ("The train to Porto goes at nine.", "We visit the Douro valley and its vineyards in Porto."),
    "more": ("We booked the hotel in the Douro valley.", "Vineyards first, then the valley by boat."),
    "tax": ("My tax return is late.", "The accountant wants receipts."),
    "gym": ("The gym opens at six.", "I lift weights on Mondays."),
    "cat": ("The cat is ill again.", "The vet gave her pills."),
}


@pytest.fixture(autouse=True)
def talks(here: Sandbox) -> Sandbox:
    """Five sessions, a day apart. Two are about a journey, and only the first of them has a word of the question."""
    for day, (session, said) in enumerate(TALKS.items()):
        messages = [
            {
                "content": text,
                "author": "ann",
                "id": f"{session}-{n}",
                "occurred_at": START + timedelta(days=day, hours=n),
            }
            for n, text in enumerate(said)
        ]
        say(*messages, session=session, end=True)
        work()
    return here


def likeness(**wanted: Any) -> dict[str, float]:
    """The likeness of each session by its messages: key → cosine."""
    hits = Nexus().search(NAMESPACE, QUESTION, levels=["raw"], limit=20, **wanted)
    return {str(hit.session_key): float(hit.why.get("likeness", 0.0)) for hit in hits}


def test_a_session_of_the_same_matter_comes_first_among_those_without_a_word_of_the_question() -> None:
    found = likeness()
    assert set(found) == set(TALKS)
    assert found["more"] > 0 > max(found["tax"], found["gym"], found["cat"])
    assert list(dict.fromkeys(found))[:2] == ["plans", "more"]
    [digest] = Nexus().search(NAMESPACE, QUESTION, levels=["summary_long"], session_key="more")
    assert "likeness" not in digest.why, "one session is like itself"


def test_a_digest_that_does_not_hold_or_that_an_observer_did_not_hear_says_nothing() -> None:
    assert set(likeness(as_of=START + timedelta(days=1.5)).values()) == {0.0}, "only two digests held then"
    assert set(likeness(observer="assistant", heard_only=True).values()) == {0.0}
    for session in ("tax", "gym", "cat"):
        Nexus().forget(NAMESPACE, session_key=session)
    assert set(likeness().values()) == {0.0}, "two digests are left"


def test_a_session_that_ended_later_is_compared_by_its_newest_digest() -> None:
    later = {"author": "ann", "id": "t3", "content": "The accountant found the receipts of the Douro valley."}
    say(later, session="tax", end=True)
    before = likeness()["tax"]
    work()
    assert likeness()["tax"] > before
