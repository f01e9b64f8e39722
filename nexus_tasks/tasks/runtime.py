"""What a process needs to do or ask for jobs, made on first use: database, claims, model, embedder."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cached_property, lru_cache

from nexus_tasks.cognition.resources import Resources
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.embeddings.choose import embedder as choose_embedder
from nexus_tasks.endpoints import endpoints
from nexus_tasks.errors import NexusError, SchemaOutdated
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.llm.anthropic import AnthropicModel
from nexus_tasks.llm.choose import language_model
from nexus_tasks.settings import Settings, get_settings
from nexus_tasks.storage import namespaces, schema
from nexus_tasks.storage.engine import Database, database
from nexus_tasks.storage.namespaces import NamespaceSettings

_REMEMBERED_SECONDS = 10.0


@dataclass(frozen=True)
class Runtime:
    """One process's means. ``resources`` is made when first needed: a producer needs no model."""

    settings: Settings
    database: Database
    claims: Claims

    @cached_property
    def embedder(self) -> Embedder:
        """What turns texts into vectors: all that readers need of the resources.

        Raises:
            ConfigurationError: there is no embedder of that name.
        """
        return choose_embedder(self.settings)

    @cached_property
    def claude(self) -> AnthropicModel:
        """Claude, whichever model speaks here: for counting tokens. Needs no credentials until it is asked."""
        return AnthropicModel(self.settings)

    @cached_property
    def resources(self) -> Resources:
        """What jobs think with.

        Raises:
            ConfigurationError: no model can speak (see NEXUS_MODEL), or there is no such embedder.
        """
        return Resources(
            database=self.database,
            model=language_model(self.settings),
            embedder=self.embedder,
            settings=self.settings,
        )

    @cached_property
    def _namespaces(self) -> dict[str, tuple[float, NamespaceSettings | None]]:
        return {}

    def namespace(self, name: str) -> NamespaceSettings | None:
        """A namespace's settings, remembered for ten seconds: jobs ask for them all the time.

        Not those with a budget: a job that is woken because it was raised would wait for the next day again.
        """
        read_at, known = self._namespaces.get(name, (float("-inf"), None))
        if known is None or time.monotonic() - read_at > _REMEMBERED_SECONDS:
            with self.database.transaction() as tx:
                known = namespaces.find(tx, name)
            if self.settings.budget_usd_per_day is None and (known is None or known.budget_usd_per_day is None):
                self._namespaces[name] = time.monotonic(), known
            else:
                self._namespaces.pop(name, None)
        return known

    def cap(self, name: str) -> int:
        """How many runs a namespace may have at a time; the process-wide setting while Postgres is away."""
        try:
            known = self.namespace(name)
        except NexusError:
            known = None
        return known.concurrency if known and known.concurrency else self.settings.namespace_concurrency


@lru_cache(maxsize=1)
def _runtime(_pid: int) -> Runtime:
    settings = get_settings()
    where = endpoints()
    if settings.embedded:
        _bring_up_to_date(where.database_url)
    return Runtime(
        settings=settings,
        database=database(where.database_url, settings.database_pool_size),
        claims=Claims(where.redis_url, settings.key_prefix),
    )


def _bring_up_to_date(url: str) -> None:
    """The embedded database is ours alone: it follows the installed version by itself."""
    found, needed = schema.versions(url)
    if found is not None and found > needed:
        raise SchemaOutdated(
            f"The embedded database is at schema {found}, this version knows {needed}.",
            remedy="Upgrade nexus-tasks; it was used with a newer version before.",
        )
    if found != needed:
        schema.upgrade(url)


def runtime() -> Runtime:
    """This process's runtime; a forked child gets its own."""
    return _runtime(os.getpid())
