"""The answer types, and the material each question is asked about: the contract between cognition and the models.

Answers are untrusted: cognition checks every citation and caps every length after the schema has been checked here.
Descriptions are part of the prompt (the schema is sent along), so they are written for the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

# --- derive -----------------------------------------------------------------------------------------------------------
Category = Literal["preference", "fact", "event", "plan", "relationship", "opinion", "constraint", "other"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Observation(_Answer):
    """One thing learned about a subject."""

    subject: str = Field(description="who it is about: one of the subjects named in the question")
    content: str = Field(description="one self-contained statement, at most 300 characters")
    category: Category
    confidence: float = Field(ge=0, le=1, description="how sure the conversation makes this, 0 to 1")
    sources: list[int] = Field(description="ids of the messages in the batch that say so")
    occurred_at: str | None = Field(None, description="ISO 8601 date or time it happened, when the text says so")
    labels: list[str] = Field(default_factory=list, description="up to 5 short topic words")


class Observations(_Answer):
    """The answer of a derivation; an empty list is a good answer."""

    observations: list[Observation]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A message as the model sees it. ``context_only`` lines explain the batch and are not derived from."""

    id: int
    author: str
    role: str
    content: str
    occurred_at: datetime
    context_only: bool = False


@dataclass(frozen=True, kw_only=True)
class DeriveMaterial:
    """A batch of messages of one session, who observes, and the subjects wanted."""

    lines: tuple[Line, ...]
    observer: str
    subjects: tuple[str, ...]


# --- reflect ----------------------------------------------------------------------------------------------------------
class Relation(_Answer):
    """How a new fact relates to an earlier one of the same perspective."""

    kind: Literal["duplicate", "reinforces", "contradicts"]
    new_id: int = Field(description="id of the newer fact")
    old_id: int = Field(description="id of the earlier fact it relates to")
    holds: Literal["new", "old", "both"] = Field(description="for contradicts: which one holds now; else both")
    rationale: str = Field(description="one line")


class Insight(_Answer):
    """Something that several facts show together and none of them says alone."""

    content: str = Field(description="at most 180 characters")
    support: list[int] = Field(description="ids of at least three facts it rests on")
    rationale: str = Field(description="one line")


class Reflection(_Answer):
    """The answer of a reflection; empty lists are a good answer."""

    relations: list[Relation]
    insights: list[Insight]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact as the model sees it."""

    id: int
    content: str
    valid_from: datetime


@dataclass(frozen=True, kw_only=True)
class ReflectMaterial:
    """New facts of one perspective, each with its nearest earlier ones. ``clusters`` maps new id → candidate ids."""

    observer: str
    subject: str
    facts: tuple[Fact, ...]
    clusters: tuple[tuple[int, tuple[int, ...]], ...]


# --- digest -----------------------------------------------------------------------------------------------------------
class Digest(_Answer):
    """The answer of a digest: the same session told twice, at two lengths."""

    short: str = Field(description="the gist, within the short limit")
    long: str = Field(description="who wants what, decisions, changes and open ends, within the long limit")


@dataclass(frozen=True, kw_only=True)
class DigestMaterial:
    """What a digest is made from: the previous long digest, and what is new since (facts, then raw text)."""

    session_key: str
    previous: str
    lines: tuple[Line, ...]
    short_tokens: int
    long_tokens: int


Material = DeriveMaterial | ReflectMaterial | DigestMaterial
