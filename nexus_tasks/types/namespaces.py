"""Namespaces (tenants) and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nexus_tasks.types.document import Document


@dataclass(frozen=True, kw_only=True)
class NamespaceInfo(Document):
    """A namespace and its settings."""

    namespace: str
    observers: tuple[str, ...]  # each observer gets facts of its own from every message
    budget_usd_per_day: float | None  # US dollars per day (UTC); None: the process-wide setting
    concurrency: int | None  # largest number of jobs that run at a time; None: the process-wide setting
    # Whether long conversations are observed: a job writes notes that replace their old messages in a context block.
    # `ingest(observe=...)` overrides this setting for a session.
    observe: bool
    scrub: bool  # whether secrets in messages are replaced before the messages are stored
    time_zone: str  # of speakers whose messages name no time zone
    language: str | None = None  # of all its texts, such as german; None: guessed for each text
    instructions: str = ""  # what models should keep, and what they should leave out


@dataclass(frozen=True, kw_only=True)
class NamespaceDetails(NamespaceInfo):
    """A namespace with its settings and the number of its memories."""

    memories: Mapping[str, int]  # level → number of memories that are valid now; every level has an entry
