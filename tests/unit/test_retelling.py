"""``retelling`` recognises by content what an agent says again, and reads each known fact once."""

import pytest

from nexus_tasks.cognition import echo
from nexus_tasks.text import content_words

KNOWN = ("Ann is allergic to peanuts", "Ann lives in Lisbon")


@pytest.mark.parametrize(
    ("content", "again"),
    [
        ("The assistant noted that Ann is allergic to peanuts", True),
        ("Ann said she lives in Lisbon", True),
        ("The assistant recommended a restaurant in Lisbon", False),
        ("Ann is allergic to peanuts and lives in Lisbon", False),  # more than one fact says
        ("The assistant said", False),  # nothing is left to compare
    ],
)
def test_it_finds_texts_that_add_no_word_to_a_fact(content: str, again: bool) -> None:
    assert echo.retelling(KNOWN, ["assistant", "Ann"])(content) is again


def test_each_fact_is_read_once_however_many_texts_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def counted(text: str) -> list[str]:
        read.append(text)
        return content_words(text)

    monkeypatch.setattr(echo, "content_words", counted)
    tells = echo.retelling(KNOWN, ["Ann"])
    for number in range(20):
        assert not tells(f"The assistant booked flight {number}")
    assert [read.count(fact) for fact in KNOWN] == [1, 1]
