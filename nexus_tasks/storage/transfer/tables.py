"""What travels, in an order in which every row comes after those that it refers to."""

from __future__ import annotations

from nexus_tasks.storage.models import (
    Base,
    Derivation,
    DigestRequest,
    Evidence,
    Extraction,
    Memory,
    ObservationChunk,
    ObservationLog,
    ObservationReflection,
    PerspectiveRow,
    ReflectionChange,
    ReflectionRow,
    Session,
    SessionDigest,
    Topic,
    TopicSource,
)

FORMAT, VERSION = "nexus-tasks memory", 1

TABLES: tuple[type[Base], ...] = (
    Session,
    PerspectiveRow,
    ReflectionRow,
    Memory,
    Derivation,
    DigestRequest,
    Evidence,
    SessionDigest,
    ReflectionChange,
    ObservationLog,
    ObservationChunk,
    ObservationReflection,
    Extraction,
    Topic,
    TopicSource,
)

# What stays behind. Vectors and what search keeps are made anew; jobs, dead letters and the bill belong to the
# deployment that had them, and answers that are not used yet to its jobs.
LEFT_BEHIND = frozenset(
    {
        *("embeddings", "embedding_gaps", "postings", "common_words", "search_totals"),
        *("job_runs", "dead_letters", "dreams", "model_calls", "budget_holds", "saved_answers", "open_questions"),
        *("batch_requests", "message_batches"),
    }
)

# Columns of the namespace itself that travel.
SETTINGS = ("observers", "budget_usd_per_day", "concurrency", "observe")
