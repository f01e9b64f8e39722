"""The resources of every job: the database, a model, an embedder and the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.llm.base import LanguageModel
from nexus_tasks.settings import Settings
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.ledger import PaidCall


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The database, model, embedder and settings of a process. Each job's function gets this object as an argument."""

    database: Database
    model: LanguageModel
    embedder: Embedder
    settings: Settings
    note_call: Callable[[PaidCall], None]  # gets each model call when it is in the ledger
