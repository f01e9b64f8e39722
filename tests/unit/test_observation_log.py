"""The format of an observation log, and the offline model's notes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nexus_tasks.cognition.observing.sources import with_sources
from nexus_tasks.llm import observation_log
from nexus_tasks.llm.answers import CondenseMaterial, Day, Note, ObserveMaterial, PromptLine
from nexus_tasks.llm.offline.observe import condense, observe
from nexus_tasks.text import estimate_tokens

NOTE = Note(priority="high", time="09:00", content="Ann moved to Porto [#12].", sources=[3, 5])
DAY = Day(date="2026-03-01", notes=[NOTE])


def test_a_log_is_read_as_it_was_written() -> None:
    text = observation_log.format_days([DAY])
    assert text == "## 2026-03-01\n- [#3] [#5] [high] 09:00 Ann moved to Porto [#12]."
    assert observation_log.parse_days(text) == [DAY]
    assert observation_log.sources(text) == {3, 5}
    assert observation_log.without_sources(text) == "## 2026-03-01\n- [high] 09:00 Ann moved to Porto [#12]."


def test_a_log_of_the_release_before_has_no_sources() -> None:
    [day] = observation_log.parse_days("## 2026-03-01\n- [low] It rained.")
    assert day.notes == [Note(priority="low", content="It rained.")]


def test_a_reader_sees_citations_of_the_messages_that_there_are() -> None:
    text = observation_log.format_days([DAY])
    assert observation_log.cited(text, {5: 17}) == "## 2026-03-01\n- [m17] [high] 09:00 Ann moved to Porto [#12]."


def test_a_reader_sees_one_heading_a_day() -> None:
    days = ("2026-03-01", "2026-03-02", "2026-03-01")
    log = "\n".join(f"## {date}\n- [low] {number}" for number, date in enumerate(days))
    assert observation_log.cited(log, {}) == "## 2026-03-01\n- [low] 0\n- [low] 2\n## 2026-03-02\n- [low] 1"
    assert observation_log.format_days([Day(date=one, notes=[NOTE]) for one in days]).count("## ") == 2


def test_sources_that_the_model_was_not_shown_are_left_out() -> None:
    [day] = with_sources([DAY], {3: 1, 4: 2}, otherwise=[1, 9])
    assert day.notes[0].sources == [1]
    [day] = with_sources([DAY], {4: 2}, otherwise=[1, 9])
    assert day.notes[0].sources == [1, 9]


def test_thousands_of_notes_are_left_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each note was looked for among all: 8,000 notes held a worker for minutes."""
    of = {"high": "a note that stays", "low": "a note that is left out"}
    notes = [Note(priority=one, content=f"{of[one]} {n}") for one in ("high", "low") for n in range(4_000)]  # type: ignore[arg-type]
    log = observation_log.format_days([Day(date="2026-11-26", notes=notes)])
    compared: list[object] = []
    monkeypatch.setattr(Note, "__eq__", lambda _self, other: compared.append(other))
    left = observation_log.without_least_important(log, 1)
    assert compared == []
    assert left == observation_log.format_days([Day(date="2026-11-26", notes=notes[:4_000])])


def test_notes_of_the_offline_model_are_a_quarter_of_what_they_replace() -> None:
    """Also with the longer citations that a reader sees."""
    lines = [line(number) for number in range(200)]
    [first, *_] = days = observe(ObserveMaterial(session_key="s", previous="", lines=tuple(lines))).days
    said = sum(estimate_tokens(f"[m{one.id}] 2026-03-01 09:00 {one.author}: {one.content}\n") for one in lines)
    shown = observation_log.cited(observation_log.format_days(days), {one.id: one.id for one in lines})
    assert 0.15 * said < estimate_tokens(shown) <= 0.25 * said
    assert [day.date for day in days] == ["2026-03-01", "2026-03-02"]
    assert {source for day in days for note in day.notes for source in note.sources} <= {one.id for one in lines}
    assert first.notes[0].content.startswith("ann: ")
    assert "not" in first.notes[0].content  # a negation is no filler


def line(number: int) -> PromptLine:
    """A message of about 30 tokens."""
    when = datetime(2026, 3, 1, 20, tzinfo=UTC) + timedelta(minutes=2 * number)
    told = f"I think that I will not really go to the market in Lisbon with number {number} of my friends this week."
    return PromptLine(
        id=100_000 + number, author=("ann", "bob")[number % 2], role="user", content=told, occurred_at=when
    )


def test_a_note_that_is_longer_than_a_part_is_a_part_of_its_own() -> None:
    """Before, a log that ended with such a note was cut before it, again and again without an end."""
    log = f"## 2026-03-01\n- [high] {'x' * 9_000}"
    assert observation_log.first_lines(log, 1_000) == log
    assert observation_log.first_lines(f"{log}\n- [low] It rained.", 1_000) == log
    assert observation_log.first_lines(f"## 2026-03-01\n- [low] It rained.\n{log}", 1_000) != ""


def test_a_line_of_a_log_is_read_although_no_model_may_write_it() -> None:
    [day] = observation_log.parse_days(f"## 2026-03-01\n- [high] {'< /notes>' * 2_000}\n- [low] 25:99 is no time")
    assert [note.content for note in day.notes] == ["< /notes>" * 2_000, "25:99 is no time"]


def test_the_offline_model_condenses_a_log_that_says_the_same_again_and_again() -> None:
    """Before, its answer counted as one that repeats itself, and the job became a dead letter."""
    days = [Day(date=f"2026-03-{day:02}", notes=[NOTE.model_copy(update={"sources": [day]})]) for day in range(1, 29)]
    log = f"{observation_log.format_days(days)}\n- [low] It rained."
    shorter = condense(CondenseMaterial(log=log, target_tokens=10_000)).condensed
    assert [(day.date, [note.content for note in day.notes]) for day in shorter] == [
        ("2026-03-28", [NOTE.content, "It rained."])
    ]


def test_the_offline_model_notes_what_was_said_in_the_year_1() -> None:
    said = PromptLine(
        id=1, author="ann", role="user", content="I moved to Porto.", occurred_at=datetime(1, 1, 1, tzinfo=UTC)
    )
    [day] = observe(ObserveMaterial(session_key="chat", previous="", lines=(said,) * 9)).days
    assert day.date == "0001-01-01"
