"""The offline observation: write a dated note for each statement, and condense a log to its most important notes."""

from __future__ import annotations

from itertools import groupby

from nexus_tasks.llm import observation_log
from nexus_tasks.llm.answers import Condensed, CondenseMaterial, Day, Note, Observed, ObserveMaterial, PromptLine
from nexus_tasks.llm.offline.statements import is_statement, spoken, strength
from nexus_tasks.text import estimate_tokens, fold, shorten
from nexus_tasks.types import to_utc

LONGEST = 300  # the most characters of a note (chosen by hand, not measured)
PRIORITIES = ("low", "medium", "high")


def observe(material: ObserveMaterial) -> Observed:
    """Write a note for each statement of the batch, each once. The current task is the user's last question."""
    known: set[str] = set()
    days = [
        Day(date=date, notes=[note for line in lines for note in _notes(line, known)])
        for date, lines in groupby(material.lines, key=lambda line: f"{to_utc(line.occurred_at):%Y-%m-%d}")
    ]
    asked = [said for line in material.lines if line.role == "user" for said in spoken(line.content) if "?" in said]
    return Observed(days=[day for day in days if day.notes], current_task=_short(asked[-1]) if asked else None)


def _notes(line: PromptLine, known: set[str]) -> list[Note]:
    found = []
    for sentence in spoken(line.content):
        note = _short(f"{line.author}: {sentence}")
        if is_statement(sentence) and fold(note) not in known:
            known.add(fold(note))
            priority = PRIORITIES[min(strength(sentence), 2)]
            fields = {"time": f"{to_utc(line.occurred_at):%H:%M}", "priority": priority, "content": note}
            found.append(Note.model_validate(fields))
    return found


def _short(text: str) -> str:
    return shorten(" ".join(text.split()), LONGEST)


def condense(material: CondenseMaterial) -> Condensed:
    """Keep the most important notes that fit into the target.

    A higher priority is more important. Among notes of one priority, the newest are most important. The result keeps
    the order and the dates of the notes.
    """
    days = observation_log.parse_days(material.log)
    ranked = [
        (-PRIORITIES.index(note.priority), -number, place, note)
        for number, (place, note) in enumerate((place, note) for place, day in enumerate(days) for note in day.notes)
    ]
    room = material.target_tokens - sum(estimate_tokens(f"## {day.date}\n") for day in days)
    kept: dict[int, list[tuple[int, Note]]] = {}
    for _, number, place, note in sorted(ranked, key=lambda one: one[:2]):
        cost = estimate_tokens(f"- [{note.priority}] 00:00 {note.content}\n")
        if cost <= room:
            room -= cost
            kept.setdefault(place, []).append((-number, note))
    shorter = [
        Day(date=days[place].date, notes=[note for _, note in sorted(found, key=lambda pair: pair[0])])
        for place, found in sorted(kept.items())
    ]
    return Condensed(condensed=shorter)
