"""The time of which a text speaks, in the days of its speaker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_tasks import event_time as module
from nexus_tasks.errors import InvalidInput
from nexus_tasks.event_time import (
    Span,
    answered_time,
    check_zone,
    describe,
    event_time,
    local,
    relative_time,
    zone,
    zone_of,
)

SAID = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)  # a Friday


BEHIND = (
    "I moved to Lisbon in March.",
    "In March I moved to Lisbon.",
    "Ann went to Porto in March.",
    "We got married in March.",
    "Where did Ann live in March?",
    "What happened in March?",
    "I've been in Porto since March.",
    "I have lived here since March.",
    "She was ill in March.",
    "He broke his leg in March and can't run yet.",
    "I told you that I moved in March.",
    "We bought the boat back in March.",
    "The trip in March was lovely.",
    "I had surgery in early March.",
    "In March, my sister visited me.",
    "I quit my job in March. I will rest now.",
    "I'm still recovering from the fall I had in March.",
    "They've moved to Porto in March.",
    "I will tell her that I moved in March.",
    "I should have gone in March.",
    "I didn't go in March.",
    "Ben hasn't called me since March.",
    "I started a new job in March and I love it.",
    "We adopted a dog in March!",
    "I led a workshop in March.",
    "Mom passed away in March.",
    "In March, the team shipped the new parser.",
    "I wasn't home in March.",
    "He hasn't been the same since March.",
    "My brother had his baby in March.",
    "We couldn't have known in March.",
    "I took up painting in March.",
    "Lisbon was great in March.",
    "The flood in March destroyed our cellar.",
    "What did the team ship in March?",
    "How was the weather in March?",
    "I used to live there; we left in March.",
    "The kids loved the zoo in March.",
    "You said the server crashed in March.",
    "I first heard of it in March.",
)
AHEAD = (
    "I will move to Lisbon in March.",
    "I'll move in March.",
    "We're moving to Lisbon in March.",
    "I'm going to Porto in March.",
    "I plan to move in March.",
    "She hopes to graduate in March.",
    "The exhibition opens in March.",
    "The course starts in March.",
    "I'm excited about the trip in March.",
    "We need to renew the lease in March.",
    "In March we will fly to Porto.",
    "I want to go to Porto in March.",
    "We should meet in March.",
    "The release is planned for early in March.",
    "We decided that we will move in March.",
    "I was told that the exam will be held in March.",
    "I visited Porto, and I'm going to visit Lisbon in March.",
    "The new album will be released in March.",
    "Ann is getting married in March.",
    "My lease ends in March.",
    "We might go skiing in March.",
    "I'd like to travel in March.",
    "I won't be here in March.",
    "What will Ann do in March?",
    "I can't wait for the trip in March!",
    "The conference is in March.",
    "Our upcoming trip in March looks great.",
    "Dad turns 60 in March.",
    "I'm thinking about going to Porto in March.",
    "Maybe we can meet in March?",
    "The baby is due in March.",
    "I can't come in March.",
    "Let's go to Porto in March.",
    "My flight leaves in March.",
    "I intend to retire in March.",
    "I'm hoping to finish in March.",
    "We're getting a puppy in March.",
    "The contract expires in March.",
    "Will you be in Lisbon in March?",
    "When are we flying in March?",
    "The festival takes place in March.",
    "I'm scheduled for surgery in March.",
    "She wants to visit in March.",
    "I have to move out in March.",
    "They expect to launch it in March.",
)


@pytest.mark.parametrize(
    ("sentence", "meant"),
    [
        ("I met Bob yesterday.", "2026-11-19"),
        ("I met Bob the day before yesterday.", "2026-11-18"),
        ("We talked last night.", "2026-11-19"),
        ("I'm off tomorrow.", "2026-11-21"),
        ("I'm tired today.", "2026-11-20"),
        ("I met Bob 3 days ago.", "2026-11-17"),
        ("I met Bob two days ago.", "2026-11-18"),
        ("The trial ends in ten days.", "2026-11-30"),
        ("I met Bob last Friday.", "2026-11-13"),  # said on a Friday
        ("I met Bob last Monday.", "2026-11-16"),
        ("We leave this coming Monday.", "2026-11-23"),
        ("I was born on 8 May 1990.", "1990-05-08"),
        ("I was born on the 8th of May, 1990.", "1990-05-08"),
        ("I was born on May 8th, 1990.", "1990-05-08"),
        ("The release was on 2026-03-09.", "2026-03-09"),
        ("We meet on 3 December.", "2026-12-03"),
        ("We met on January 5th.", "2027-01-05"),  # the nearest one
        ("It happened last month.", "2026-10"),
        ("We go there next year.", "2027"),
        ("I moved two weeks ago.", "2026-11-02–2026-11-08"),
        ("I was there last weekend.", "2026-11-14–2026-11-15"),
        ("I moved here in June 2023.", "2023-06"),
        ("I moved here last June.", "2026-06"),
        ("I have been here since 2019.", "2019"),
        ("It was on 3 May 2024, in 2024.", "2024-05-03"),
        ("I love today's music.", None),
        ("I was away yesterday and I am back today.", None),
        ("I'll see Bob next Friday.", None),
        ("It was on 31 February 2020.", None),
        ("I may 3 times march 5 miles.", None),
        ("I live in Lisbon.", None),
    ],
)
def test_the_time_of_a_sentence(sentence: str, meant: str | None) -> None:
    found = event_time(sentence, SAID)
    assert (found and describe(found)) == meant


@pytest.mark.parametrize(("sentences", "meant"), [(BEHIND, "2026-03"), (AHEAD, "2027-03")])
def test_a_month_without_a_year_is_the_one_of_which_the_sentence_speaks(sentences: Sequence[str], meant: str) -> None:
    found = {sentence: event_time(sentence, SAID) for sentence in sentences}
    assert {sentence: span and describe(span) for sentence, span in found.items()} == dict.fromkeys(sentences, meant)


@pytest.mark.parametrize(
    ("sentence", "meant"),
    [
        ("I moved in November.", "2026-11"),
        ("I will move in November.", "2026-11"),
        ("I moved last November.", "2025-11"),
        ("I moved in December.", "2025-12"),
        ("The fair is in October.", "2026-10"),
        ("I moved house. The fair is in March.", "2027-03"),
        ("We met in March, so I will not call again.", "2026-03"),
    ],
)
def test_months_near_today_and_sentences_that_say_neither(sentence: str, meant: str) -> None:
    found = event_time(sentence, SAID)
    assert (found and describe(found)) == meant


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        ("2026-05-03", "2026-05-03"),
        ("2026-05", "2026-05"),
        ("2026", "2026"),
        ("2026-05-01/2026-05-07", "2026-05-01–2026-05-07"),
        ("2026-05-01 to 2026-05-07", "2026-05-01–2026-05-07"),
        ("2026-05-03T10:30", "2026-05-03 10:30"),
        ("last Friday", "2026-11-13"),
        ("2026-05-07/2026-05-01", None),
        ("2026-13-45", None),
        ("9999-12-31", None),
        ("0001-01-01", None),
        ("whenever", None),
        ("", None),
        (None, None),
    ],
)
def test_the_time_of_an_answer(answer: str | None, meant: str | None) -> None:
    found = answered_time(answer, SAID)
    assert (found and describe(found)) == meant


def test_a_minute_of_an_hour_that_comes_twice_ends_after_it_began() -> None:
    found = answered_time("2026-10-25T01:30:00+00:00", SAID, zone("Europe/Lisbon"))  # 01:30 for the second time
    assert found is not None
    assert found.end.astimezone(UTC) - found.begin.astimezone(UTC) == timedelta(minutes=1)


@pytest.mark.parametrize(
    ("sentence", "relative"),
    [
        ("I swam last Friday.", True),
        ("I moved in June.", True),
        ("I moved in June 2023.", False),
        ("It was on 2026-03-09.", False),
        ("I swim.", False),
    ],
)
def test_what_depends_on_the_time_of_speaking(sentence: str, relative: bool) -> None:
    assert bool(relative_time(sentence, SAID)) == relative
    relative_time(sentence, datetime.min.replace(tzinfo=UTC))


def test_a_day_is_the_speakers() -> None:
    late = datetime(2026, 3, 2, 22, tzinfo=UTC)  # the third in Tokyo, the second in Lisbon
    tokyo, lisbon = (event_time("I ran today.", late, zone(name)) for name in ("Asia/Tokyo", "Europe/Lisbon"))
    assert tokyo is not None
    assert lisbon is not None
    assert (describe(tokyo), describe(lisbon)) == ("2026-03-03", "2026-03-02")
    assert tokyo.begin == datetime(2026, 3, 2, 15, tzinfo=UTC)


def test_days_outside_the_calendar_are_none() -> None:
    for when in (datetime.min, datetime.max):
        for name in ("UTC", "-12:00", "+14:00"):
            assert event_time("I met Bob yesterday, 3 days ago.", when.replace(tzinfo=UTC), zone(name)) is None
            local(when.replace(tzinfo=UTC), name)


def test_words_with_other_letters_name_no_time() -> None:
    """Without regard to case, the long ſ and the dotless ı match s and i."""
    for said in ("I swam yeſterday.", "I swim tonıght.", "I swam laſt week.", "In ſix days I will swim."):
        assert event_time(said, SAID) is None
        assert answered_time(said, SAID) is None
        assert relative_time(f"{said} I was late today.", SAID) == event_time("today", SAID)


def test_names_of_time_zones() -> None:
    assert zone_of(SAID) is None
    assert zone_of(SAID.replace(tzinfo=None)) is None
    assert zone_of(SAID.astimezone(ZoneInfo("Asia/Tokyo"))) == "Asia/Tokyo"
    assert zone_of(SAID.astimezone(timezone(-timedelta(hours=4, minutes=30)))) == "-04:30"
    assert zone("-04:30").utcoffset(None) == -timedelta(hours=4, minutes=30)
    for good in ("UTC", "Europe/Lisbon", "+05:30", "+00:00"):
        assert check_zone("time_zone", good) == good
    for bad in ("Atlantis/City", "../../etc/passwd", "", "+25:00", "Europe", None, 3):
        with pytest.raises(InvalidInput, match="is no time zone"):
            check_zone("time_zone", bad)


_WORDS = (
    *(
        "in",
        "on",
        "the",
        "day",
        "days",
        "week",
        "month",
        "year",
        "ago",
        "a",
        "an",
        "two",
        "7",
        "12",
        "2024",
        "2024-05-03",
    ),
    *(
        "last",
        "this",
        "next",
        "past",
        "coming",
        "friday",
        "May",
        "may",
        "june",
        "of",
        "3rd",
        "yesterday",
        "night",
        "early",
    ),
    *(
        "today",
        "tonight",
        "morning",
        "since",
        "weekend",
        "before",
        "after",
        "tomorrow",
        "couple",
        "I",
        "read",
        "2024-05",
    ),
)


@given(st.lists(st.sampled_from(_WORDS), max_size=8), st.booleans())
def test_a_text_without_a_clue_names_no_time(words: list[str], shouted: bool) -> None:
    text = " ".join(words).upper() if shouted else " ".join(words)

    if module._PHRASE.search(text):
        small = text.lower()
        assert any(clue in small for clue in module._CLUES) or module._CLUE.search(small)


@pytest.mark.parametrize(
    ("name", "day"),
    [
        ("Atlantic/Azores", date(2026, 3, 29)),
        ("Africa/Cairo", date(2026, 4, 24)),
        ("Asia/Beirut", date(2026, 3, 29)),
        ("America/Havana", date(2026, 3, 8)),
        ("America/Santiago", date(2026, 9, 6)),
    ],
)
def test_a_day_whose_midnight_the_clock_skips_is_a_whole_day(name: str, day: date) -> None:
    for named in (day - timedelta(days=1), day, day + timedelta(days=1)):
        found = event_time(f"I swim on {named}.", SAID, zone(name))
        assert found
        # As it comes back from Postgres.
        stored = Span(local(found.begin.astimezone(UTC), name), local(found.end.astimezone(UTC), name))
        assert describe(stored) == describe(found) == str(named)
