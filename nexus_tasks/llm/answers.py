"""The types of a model's answers, and the material (the data from which a prompt is made), for each purpose of a call.

Answers are untrusted. These types check that an answer fits its schema. After that, the package ``cognition`` checks
every citation and limits every length.

The schema is sent with every call, so a field's description is part of the prompt. Only fields that the instructions do
not explain have a description. The docstring of an answer type is not sent. But the request hash covers the docstring,
the name and the fields of the answer type. After a change of one of these, saved answers are unusable, and jobs ask the
model again. So the docstrings of the answer types stay as they are, and comments above them explain more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from math import isfinite
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nexus_tasks.types import TopicType

# --- derive -----------------------------------------------------------------------------------------------------------
Category = Literal["preference", "fact", "event", "plan", "relationship", "opinion", "constraint", "other"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Observation(_Answer):
    """One thing learned about a subject."""

    subject: str
    content: str
    category: Category
    confidence: float = Field(ge=0, le=1)
    sources: list[int]
    occurred_at: str | None = None
    labels: list[str] = Field(default_factory=list, description="topic words")


class Observations(_Answer):
    """The answer of a derivation; an empty list is a good answer."""

    observations: list[Observation]


@dataclass(frozen=True, kw_only=True)
class PromptLine:
    """A message as the model sees it. A ``context_only`` line explains the batch, and no fact is derived from it."""

    id: int
    author: str
    role: str
    content: str
    occurred_at: datetime
    context_only: bool = False
    time_zone: str | None = None  # the speaker's; ``None`` means UTC


@dataclass(frozen=True, kw_only=True)
class DeriveMaterial:
    """A batch of messages of one session, the observer, and the subjects about whom facts are wanted."""

    lines: tuple[PromptLine, ...]
    observer: str
    subjects: tuple[str, ...]

    @property
    def rests_on(self) -> frozenset[int]:
        """Every memory that the prompt shows."""
        return frozenset(line.id for line in self.lines)


# --- reflect ----------------------------------------------------------------------------------------------------------
class Relation(_Answer):
    """How a new fact relates to an earlier one of the same perspective."""

    kind: Literal["duplicate", "reinforces", "contradicts"]
    new_id: int
    old_id: int
    holds: Literal["new", "old", "both"] = Field(description="both, unless it contradicts")
    rationale: str


class Insight(_Answer):
    """Something that several facts show together and none of them says alone."""

    content: str
    support: list[int]
    rationale: str


class Reflection(_Answer):
    """The answer of a reflection; empty lists are a good answer."""

    relations: list[Relation]
    insights: list[Insight]


@dataclass(frozen=True, kw_only=True)
class PromptFact:
    """A fact as the model sees it.

    Attributes:
        said_again: the time when the fact was last said, or ``None`` when the fact was said only once.
        last_message: the id of the last message that said the fact. It orders facts that were said at the same time.
        event: the time of which the fact speaks, such as ``2026-05-03``; empty when it names none.
    """

    id: int
    content: str
    valid_from: datetime
    said_again: datetime | None = None
    last_message: int = 0
    event: str = ""


@dataclass(frozen=True, kw_only=True)
class ReflectMaterial:
    """New facts of one perspective. ``clusters`` pairs the id of each new fact with the ids of its nearest facts."""

    observer: str
    subject: str
    facts: tuple[PromptFact, ...]
    clusters: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def rests_on(self) -> frozenset[int]:
        """Every memory that the prompt shows."""
        return frozenset(fact.id for fact in self.facts)


# --- digest -----------------------------------------------------------------------------------------------------------
class Digest(_Answer):
    """The answer of a digest: the same session told twice, at two lengths."""

    short: str
    long: str


@dataclass(frozen=True, kw_only=True)
class DigestMaterial:
    """The material of a digest: the previous long digest, and the facts and underived messages after that digest."""

    session_key: str
    previous: str
    lines: tuple[PromptLine, ...]
    short_tokens: int
    long_tokens: int

    @property
    def rests_on(self) -> frozenset[int]:
        """Every memory that the prompt shows."""
        return frozenset(line.id for line in self.lines)


# --- observe ----------------------------------------------------------------------------------------------------------
# An answer that exceeds one of these bounds is malformed. Both bounds are chosen by hand, not measured.
LONGEST_LINE = 10_000  # the most characters of one observation
MOST_REPEATED = 0.5  # the greatest share of lines that repeat an earlier line


class Note(_Answer):
    """One thing observed."""

    time: str | None = Field(None, description="HH:MM of the message it was said in")
    priority: Literal["high", "medium", "low"] = Field(description="high: facts, decisions, requests; low: detail")
    content: str = Field(description="one self-contained line")
    sources: list[int] = Field(default_factory=list, description="ids of the messages that it rests on")

    @field_validator("content")
    @classmethod
    def _one_line(cls, content: str) -> str:
        line = " ".join(content.split())
        if not line or len(line) > LONGEST_LINE:
            raise ValueError("blank, or longer than any observation")
        return line

    @field_validator("time")
    @classmethod
    def _clock(cls, time: str | None) -> str | None:
        return time if time and re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", time) else None


class Day(_Answer):
    """The notes of one date."""

    date: str = Field(description="YYYY-MM-DD")
    notes: list[Note]

    @field_validator("date")
    @classmethod
    def _a_date(cls, value: str) -> str:
        return date.fromisoformat(value).isoformat()


class _Log(_Answer):
    current_task: str | None = Field(None, description="what the agent is working on now; null when unchanged")
    suggested_response: str | None = Field(None, description="how the agent should go on; null when unchanged")


# Most lines of an answer must not repeat an earlier line. An answer that breaks this rule is malformed.
class Observed(_Log):
    """The answer of an observation; an empty list is a good answer, one that repeats itself is none."""

    days: list[Day]

    @field_validator("days")
    @classmethod
    def _not_repetitive(cls, days: list[Day]) -> list[Day]:
        return _without_repetition(days)


class Condensed(_Log):
    """The answer of a reflection on a log: the same log, told shorter."""

    condensed: list[Day]

    @field_validator("condensed")
    @classmethod
    def _not_repetitive(cls, days: list[Day]) -> list[Day]:
        return _without_repetition(days)


def _without_repetition(days: list[Day]) -> list[Day]:
    lines = [note.content for day in days for note in day.notes]
    if lines and 1 - len(set(lines)) / len(lines) > MOST_REPEATED:
        raise ValueError("most lines repeat another")
    return days


@dataclass(frozen=True, kw_only=True)
class ObserveMaterial:
    """A batch of unobserved messages of one session, and the last lines of the session's observation log.

    ``noted`` are the ids of the messages that these lines cite.
    """

    session_key: str
    previous: str
    lines: tuple[PromptLine, ...]
    noted: frozenset[int] = frozenset()

    @property
    def rests_on(self) -> frozenset[int]:
        """Every message that the prompt shows, or that a shown note cites.

        A note may have words of other messages too. When one of these is erased, the log's counter ``erasures`` grows.
        The notes that the model then returns are not stored, because the counter has changed.
        """
        return frozenset(line.id for line in self.lines) | self.noted


@dataclass(frozen=True, kw_only=True)
class CondenseMaterial:
    """An observation log to shorten, and the most tokens that the shorter log should have.

    ``noted`` are the ids of the messages that the log cites.
    """

    log: str
    target_tokens: int
    noted: frozenset[int] = frozenset()

    @property
    def rests_on(self) -> frozenset[int]:
        """Every message that the log cites.

        When another message of the session is erased, the log's counter ``erasures`` grows. The shorter version of the
        log is then not stored.
        """
        return self.noted


# --- extract ----------------------------------------------------------------------------------------------------------


# When cognition refuses the name or the type of one file, it keeps the other files of the answer. Therefore the type is
# a text here, and the schema alone names the types.
class TopicFile(_Answer):
    """A file of knowledge, new or changed. Names are checked by cognition: one that is refused costs no other."""

    filename: str
    name: str
    description: str = Field(description="one line: what one finds in it")
    type: str = Field(json_schema_extra={"enum": list(get_args(TopicType))})
    content: str


class TopicFiles(_Answer):
    """The answer of the topic extractor; an empty list is a good answer."""

    topics: list[TopicFile]


@dataclass(frozen=True, kw_only=True)
class KnownTopic:
    """An existing topic as the model sees it: its whole content (``whole``), or only the beginning."""

    filename: str
    name: str
    description: str
    type: str
    content: str
    whole: bool


@dataclass(frozen=True, kw_only=True)
class TopicsMaterial:
    """New messages of a session, the existing topics, and the ids of the topics' source messages (``known_from``)."""

    lines: tuple[PromptLine, ...]
    known: tuple[KnownTopic, ...]
    known_from: frozenset[int]

    @property
    def rests_on(self) -> frozenset[int]:
        """Every message that the prompt shows, and every message from which a shown topic was written."""
        return frozenset(line.id for line in self.lines) | self.known_from


# When one fact is invalid, cognition counts and drops only this fact, and keeps the other facts of the answer.
class SessionFact(_Answer):
    """A fact about the session's user or their work. What is wrong with one is counted, and costs no other."""

    category: str = Field(description="preference, project, pattern, decision or constraint")
    confidence: float = Field(description="0 to 10")
    content: str
    sources: list[int]

    @field_validator("confidence", mode="before")
    @classmethod
    def _a_number(cls, given: object) -> float:
        # A value that is not a number becomes -1, so that cognition rejects only this fact and keeps the other facts.
        # NaN and infinity also become -1, because JSON has no such numbers.
        try:
            number = float(given)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return -1.0
        return number if isfinite(number) and not isinstance(given, bool) else -1.0


class SessionFacts(_Answer):
    """The answer of the fact extractor; an empty list is a good answer."""

    facts: list[SessionFact]


@dataclass(frozen=True, kw_only=True)
class SessionFactsMaterial:
    """New messages of a session, and the name of its user."""

    lines: tuple[PromptLine, ...]
    user: str

    @property
    def rests_on(self) -> frozenset[int]:
        """Every memory that the prompt shows."""
        return frozenset(line.id for line in self.lines)


# --- answer -----------------------------------------------------------------------------------------------------------
class Lookup(_Answer):
    """Something to look at before answering."""

    kind: Literal["search", "around", "span"]
    query: str | None = None
    memory_id: int | None = None
    since: str | None = None
    until: str | None = None


class Sentence(_Answer):
    """One sentence of an answer, and the memories that say it."""

    text: str
    citations: list[int]


# ``lookup`` comes first, so that a reader of a partial answer knows whether sentences of it count. The schema requires
# it, because Claude writes the required fields of an object before the others.
class Answered(_Answer):
    """The answer to a question; an empty list means that the memories do not tell."""

    model_config = ConfigDict(json_schema_extra={"required": ["lookup", "sentences"]})

    lookup: Lookup | None = Field(None, description="null, unless you must look again before you answer")
    sentences: list[Sentence]


@dataclass(frozen=True, kw_only=True)
class AnswerLine:
    """A memory from which a question is answered. ``score`` is the score of the search that found it."""

    id: int
    external_id: str | None
    who: str
    content: str
    occurred_at: datetime
    level: str
    score: float


@dataclass(frozen=True, kw_only=True)
class AnswerMaterial:
    """A question, and the memories that may answer it."""

    question: str
    lines: tuple[AnswerLine, ...]

    @property
    def rests_on(self) -> frozenset[int]:
        """Every memory that the prompt shows."""
        return frozenset(line.id for line in self.lines)


Material = (
    AnswerMaterial
    | DeriveMaterial
    | ReflectMaterial
    | DigestMaterial
    | ObserveMaterial
    | CondenseMaterial
    | TopicsMaterial
    | SessionFactsMaterial
)
