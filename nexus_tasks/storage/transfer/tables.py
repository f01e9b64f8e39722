"""The tables that an export contains, in their order. A table comes after the tables that its foreign keys refer to."""

from __future__ import annotations

from nexus_tasks.storage.models import (
    Base,
    Derivation,
    DigestRequest,
    ErasedId,
    Evidence,
    Extraction,
    Memory,
    ObservationChunk,
    ObservationGeneration,
    ObservationLog,
    ObservationReflection,
    PerspectiveRow,
    ReflectionChange,
    ReflectionRow,
    SessionDigest,
    SessionRow,
    Topic,
    TopicSource,
)

FORMAT, VERSION = "nexus-tasks memory", 1  # both are in the header of every export

TABLES: tuple[type[Base], ...] = (
    SessionRow,
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
    ObservationGeneration,
    Extraction,
    Topic,
    TopicSource,
    ErasedId,
)

# The tables that an export leaves out. Vectors and search tables are made again after the import. Jobs, dead letters,
# the ledger, saved answers, tokens, webhooks and the audit log belong to the deployment that wrote them. A move to
# another cell leaves out none of them (``copying.py``).
LEFT_BEHIND = frozenset(
    {
        *("embeddings", "embedding_gaps", "postings", "common_words", "search_totals"),
        *(
            "database_identity",
            "job_runs",
            "wanted_jobs",
            "dead_letters",
            "dreams",
            "model_calls",
            "budget_holds",
            "saved_answers",
            "open_questions",
        ),
        *("batch_requests", "message_batches"),
        *("tokens", "audit_log", "webhooks", "webhook_deliveries"),
        *("cells", "placements"),
    }
)

# The columns of the table ``namespaces`` that an export contains.
SETTINGS = (
    *("observers", "budget_usd_per_day", "concurrency", "observe", "scrub", "time_zone", "language", "instructions"),
)
