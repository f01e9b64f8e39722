"""The offline observation: note statements in few words, and condense a log to its most important notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nexus_tasks.llm import observation_log
from nexus_tasks.llm.answers import Condensed, CondenseMaterial, Day, Note, Observed, ObserveMaterial, PromptLine
from nexus_tasks.llm.offline.statements import is_statement, spoken, strength
from nexus_tasks.text import estimate_tokens, fold, shorten, words
from nexus_tasks.types import to_utc

LONGEST = 300  # the most characters of a note (chosen by hand, not measured)
SHARE = 0.22  # the most tokens of the notes, as a share of the messages' tokens. With citations it is below 0.25.
PRIORITIES = ("low", "medium", "high")
_SPREAD = 40_503  # 2**16 / golden ratio: of equal statements, those that are kept come from all parts of the batch
# Words that a note does without. Negations and prepositions stay.
_DROPPED = frozenset(
    words(
        """a an the i i'm i've i'd i'll im ive me my mine myself we we're we've we'll our ours us it it's its this that
        that's these those there there's here is am are was were be been being do did does have has had will would can
        could should just really so very quite pretty too also well then now actually definitely totally super even some
        any which who you your you're and but or because as if when while get got getting gonna going like such lot lots
        of to"""
    )
)


@dataclass(frozen=True, kw_only=True)
class _Clause:
    """A statement in few words. ``rank`` orders clauses by importance, the most important first."""

    line: PromptLine
    text: str
    strength: int
    place: int  # of the line in the batch
    rank: tuple[int, int, int]


def observe(material: ObserveMaterial) -> Observed:
    """Note the most important statements, in few words, within a quarter of the messages' length.

    A note has the statements of one author on one day. The current task is the user's last question.
    """
    clauses = sorted(_clauses(material.lines), key=lambda clause: clause.rank)
    room = SHARE * sum(map(_tokens, material.lines))
    fits, too_many = min(len(clauses), 1), len(clauses) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if _length(_days(clauses[:middle])) <= room:
            fits = middle
        else:
            too_many = middle
    asked = [said for line in material.lines if line.role == "user" for said in spoken(line.content) if "?" in said]
    return Observed(days=_days(clauses[:fits]), current_task=_short(asked[-1]) if asked else None)


def _tokens(line: PromptLine) -> int:
    return estimate_tokens(f"[m{line.id}] 2026-01-01 00:00 {line.author}: {line.content}\n")


def _length(days: Sequence[Day]) -> int:
    return estimate_tokens(observation_log.format_days(days))


def _clauses(lines: Sequence[PromptLine]) -> Iterator[_Clause]:
    known: set[str] = set()
    for place, line in enumerate(lines):
        said = [(sentence, strength(sentence)) for sentence in spoken(line.content) if is_statement(sentence)]
        said.sort(key=lambda pair: -pair[1])
        for number, (sentence, marks) in enumerate(said):
            text = _few_words(sentence)
            key = fold(f"{line.author}: {text}")
            if key not in known:
                known.add(key)
                rank = (number, -min(marks, 2), place * _SPREAD % 2**16)
                yield _Clause(line=line, text=text, strength=marks, place=place, rank=rank)


def _few_words(sentence: str) -> str:
    said = _short(sentence).split()
    kept = [word for word in said if word.strip(".,!?;:'\"").lower().replace("’", "'") not in _DROPPED]
    return " ".join(kept or said).rstrip(".!;, ")


def _days(clauses: Sequence[_Clause]) -> list[Day]:
    """The notes of these clauses, by date and author, in the order of the conversation."""
    days: dict[str, list[list[_Clause]]] = {}
    open_notes: dict[tuple[str, str], list[_Clause]] = {}
    for clause in sorted(clauses, key=lambda one: (one.place, one.rank[0])):
        date = to_utc(clause.line.occurred_at).date().isoformat()
        note = open_notes.get((date, clause.line.author))
        if note is None or sum(len(one.text) + 2 for one in note) + len(clause.text) > LONGEST:
            note = open_notes[date, clause.line.author] = []
            days.setdefault(date, []).append(note)
        note.append(clause)
    return [Day(date=date, notes=[_note(note) for note in notes]) for date, notes in days.items()]


def _note(clauses: Sequence[_Clause]) -> Note:
    first = clauses[0].line
    return Note.model_validate(
        {
            "time": f"{to_utc(first.occurred_at):%H:%M}",
            "priority": PRIORITIES[min(max(clause.strength for clause in clauses), 2)],
            "content": f"{first.author}: {'; '.join(clause.text for clause in clauses)}",
            "sources": list(dict.fromkeys(clause.line.id for clause in clauses)),
        }
    )


def _short(text: str) -> str:
    return shorten(" ".join(text.split()), LONGEST)


def condense(material: CondenseMaterial) -> Condensed:
    """Keep the most important notes that fit into the target.

    A higher priority is more important. Among notes of one priority, the newest are most important. Of notes with the
    same text, the newest is kept. The result keeps the order and the dates of the notes.
    """
    days = observation_log.parse_days(material.log)
    ranked = [
        (-PRIORITIES.index(note.priority), -number, place, note)
        for number, (place, note) in enumerate((place, note) for place, day in enumerate(days) for note in day.notes)
    ]
    room = material.target_tokens - sum(estimate_tokens(f"## {day.date}\n") for day in days)
    kept: dict[int, list[tuple[int, Note]]] = {}
    told = set[str]()
    for _, number, place, note in sorted(ranked, key=lambda one: one[:2]):
        cost = estimate_tokens(f"{observation_log.line_of(note)}\n")
        if cost <= room and note.content not in told:
            told.add(note.content)
            room -= cost
            kept.setdefault(place, []).append((-number, note))
    shorter = [
        Day(date=days[place].date, notes=[note for _, note in sorted(found, key=lambda pair: pair[0])])
        for place, found in sorted(kept.items())
    ]
    return Condensed(condensed=shorter)
