"""The dataclasses of the public API: the messages that a caller gives, and the values that a caller gets back.

All dataclasses are frozen. Each dataclass that :class:`nexus_tasks.Nexus` returns has a method ``to_dict()``. It gives
the document that ``nexus … --json`` prints. Import the types from ``nexus_tasks.types``. The modules inside this
package are private.
"""

from nexus_tasks.types.context import CitedMemory, ContextBlock, ContextSection
from nexus_tasks.types.document import Document, iso, plain
from nexus_tasks.types.jobs import (
    DroppedJob,
    JobDetails,
    JobInfo,
    JobOutcome,
    JobRepair,
    MendedCounter,
    QuarantinedMessage,
)
from nexus_tasks.types.memories import (
    Citation,
    MemoryDetails,
    MemoryInfo,
    Recall,
    Recalls,
    SupportedMemory,
    TopicDetails,
    TopicInfo,
)
from nexus_tasks.types.messages import MAX_CONTENT, Message, Receipt
from nexus_tasks.types.names import (
    LEVELS,
    MAX_NAME,
    NAMESPACE,
    ROLES,
    Level,
    Role,
    Status,
    Urgency,
    as_stored,
    check_name,
    check_namespace,
    clean_text,
    to_utc,
)
from nexus_tasks.types.namespaces import NamespaceDetails, NamespaceInfo
from nexus_tasks.types.reflections import DreamPlan, PlannedInsight, PlannedRelation, ReflectionPlan, UndoReceipt
from nexus_tasks.types.sessions import DigestText, ObservationStats, SaidMessage, SessionDetails, SessionInfo
from nexus_tasks.types.status import (
    HeldReflection,
    HeldThreads,
    JobCounts,
    NamespaceStatus,
    PausedKind,
    StatusReport,
    WaitingJob,
)
from nexus_tasks.types.transfer import ForgetReceipt, MarkdownExport, MarkdownImport, TransferReceipt

__all__ = [
    "LEVELS",
    "MAX_CONTENT",
    "MAX_NAME",
    "NAMESPACE",
    "ROLES",
    "Citation",
    "CitedMemory",
    "ContextBlock",
    "ContextSection",
    "DigestText",
    "Document",
    "DreamPlan",
    "DroppedJob",
    "ForgetReceipt",
    "HeldReflection",
    "HeldThreads",
    "JobCounts",
    "JobDetails",
    "JobInfo",
    "JobOutcome",
    "JobRepair",
    "Level",
    "MarkdownExport",
    "MarkdownImport",
    "MemoryDetails",
    "MemoryInfo",
    "MendedCounter",
    "Message",
    "NamespaceDetails",
    "NamespaceInfo",
    "NamespaceStatus",
    "ObservationStats",
    "PausedKind",
    "PlannedInsight",
    "PlannedRelation",
    "QuarantinedMessage",
    "Recall",
    "Recalls",
    "Receipt",
    "ReflectionPlan",
    "Role",
    "SaidMessage",
    "SessionDetails",
    "SessionInfo",
    "Status",
    "StatusReport",
    "SupportedMemory",
    "TopicDetails",
    "TopicInfo",
    "TransferReceipt",
    "UndoReceipt",
    "Urgency",
    "WaitingJob",
    "as_stored",
    "check_name",
    "check_namespace",
    "clean_text",
    "iso",
    "plain",
    "to_utc",
]
