"""The tables of the database, as SQLAlchemy models.

Every table except ``namespaces``, ``database_identity``, ``audit_log``, ``cells`` and ``placements`` has the column
``namespace_id``. Postgres
never gives the same id to two rows of a table, even after a deletion. Columns of times have the type ``timestamptz``.

Some tables are the outbox of a job kind: their rows say which jobs of the kind are wanted.
"""

from nexus_tasks.storage.models.access import AuditRow, Token
from nexus_tasks.storage.models.base import Base
from nexus_tasks.storage.models.cells import CellRow, Placement
from nexus_tasks.storage.models.conversations import Derivation, ErasedId, Namespace, SessionRow
from nexus_tasks.storage.models.digests_and_dreams import DigestRequest, Dream, SessionDigest
from nexus_tasks.storage.models.extraction import Extraction, Topic, TopicSource
from nexus_tasks.storage.models.jobs import DatabaseIdentity, DeadLetter, JobRun, WantedJob
from nexus_tasks.storage.models.knowledge import (
    Embedding,
    EmbeddingGap,
    Evidence,
    Memory,
    PerspectiveRow,
    ReflectionChange,
    ReflectionRow,
)
from nexus_tasks.storage.models.model_use import (
    BatchRequest,
    BudgetHold,
    MessageBatch,
    ModelCall,
    OpenQuestion,
    SavedAnswer,
)
from nexus_tasks.storage.models.observation import (
    ObservationChunk,
    ObservationGeneration,
    ObservationLog,
    ObservationReflection,
)
from nexus_tasks.storage.models.search import CommonWord, Posting, SearchTotal
from nexus_tasks.storage.models.webhooks import WebhookDelivery, WebhookRow

__all__ = [
    "AuditRow",
    "Base",
    "BatchRequest",
    "BudgetHold",
    "CellRow",
    "CommonWord",
    "DatabaseIdentity",
    "DeadLetter",
    "Derivation",
    "DigestRequest",
    "Dream",
    "Embedding",
    "EmbeddingGap",
    "ErasedId",
    "Evidence",
    "Extraction",
    "JobRun",
    "Memory",
    "MessageBatch",
    "ModelCall",
    "Namespace",
    "ObservationChunk",
    "ObservationGeneration",
    "ObservationLog",
    "ObservationReflection",
    "OpenQuestion",
    "PerspectiveRow",
    "Placement",
    "Posting",
    "ReflectionChange",
    "ReflectionRow",
    "SavedAnswer",
    "SearchTotal",
    "SessionDigest",
    "SessionRow",
    "Token",
    "Topic",
    "TopicSource",
    "WantedJob",
    "WebhookDelivery",
    "WebhookRow",
]
