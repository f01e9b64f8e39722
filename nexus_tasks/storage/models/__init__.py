"""The tables. The namespace is in every unique key and every query; ids are never reused, times are UTC."""

from nexus_tasks.storage.models.base import Base
from nexus_tasks.storage.models.batches import BatchRequest, MessageBatch
from nexus_tasks.storage.models.derivations import Derivation
from nexus_tasks.storage.models.digests import DigestRequest, SessionDigest
from nexus_tasks.storage.models.dreams import Dream
from nexus_tasks.storage.models.jobs import DeadLetter, JobRun
from nexus_tasks.storage.models.ledger import BudgetHold, ModelCall, OpenQuestion, SavedAnswer
from nexus_tasks.storage.models.memories import Embedding, EmbeddingGap, Evidence, Memory
from nexus_tasks.storage.models.namespaces import Namespace
from nexus_tasks.storage.models.observations import ObservationChunk, ObservationLog, ObservationReflection
from nexus_tasks.storage.models.perspectives import PerspectiveRow
from nexus_tasks.storage.models.reflections import ReflectionChange, ReflectionRow
from nexus_tasks.storage.models.searching import CommonWord, Posting, SearchTotal
from nexus_tasks.storage.models.sessions import Session
from nexus_tasks.storage.models.topics import Extraction, Topic, TopicSource

__all__ = [
    "Base",
    "BatchRequest",
    "BudgetHold",
    "CommonWord",
    "DeadLetter",
    "Derivation",
    "DigestRequest",
    "Dream",
    "Embedding",
    "EmbeddingGap",
    "Evidence",
    "Extraction",
    "JobRun",
    "Memory",
    "MessageBatch",
    "ModelCall",
    "Namespace",
    "ObservationChunk",
    "ObservationLog",
    "ObservationReflection",
    "OpenQuestion",
    "PerspectiveRow",
    "Posting",
    "ReflectionChange",
    "ReflectionRow",
    "SavedAnswer",
    "SearchTotal",
    "Session",
    "SessionDigest",
    "Topic",
    "TopicSource",
]
