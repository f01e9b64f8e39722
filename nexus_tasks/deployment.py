"""A deployment: one set of settings, and everything in this process that depends on the settings.

    deployment = Deployment(Settings(database_url=..., redis_url=..., key_prefix="staging"))
    nexus = Nexus(deployment)

The database, claims, Celery application, model, embedder and caches of a deployment are made at their first use.
Importing this module or making a deployment starts nothing. Two deployments in one process share nothing when their
database, key prefix and home differ. In a forked child a deployment makes its own connections and threads.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

from celery import Celery, signals

from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.config import CeleryConfig, add_queues, add_queues_and_schedule
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.embeddings.choose import embedder
from nexus_tasks.endpoints import Endpoints, endpoints_of
from nexus_tasks.errors import ConfigurationError, NexusError, SchemaOutdated
from nexus_tasks.idempotency import kind as kinds
from nexus_tasks.idempotency.celery_patches.closing import close_connections
from nexus_tasks.idempotency.celery_patches.forking import forget_connections
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.engine import JobEngine, Limits, attach, has_jobs
from nexus_tasks.idempotency.producer.result import RunResult
from nexus_tasks.idempotency.task import add_tasks
from nexus_tasks.idempotency.worker.holder import LeaseHolder
from nexus_tasks.idempotency.worker.isolation import Isolation
from nexus_tasks.llm.anthropic import AnthropicModel
from nexus_tasks.llm.base import LanguageModel
from nexus_tasks.llm.choose import language_model
from nexus_tasks.outbox import PostgresJobStorage
from nexus_tasks.settings import Settings, load_settings
from nexus_tasks.storage import namespaces, schema
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.namespaces import NamespaceSettings

T = TypeVar("T")

# The worker steps, in the order of their work. `nexus_tasks/worker.py` describes each step.
WORKER_STEPS = (
    "nexus_tasks.worker:PatchStep",
    "nexus_tasks.worker:RedisClientStep",
    "nexus_tasks.worker:ConsumerTimeoutStep",
    "nexus_tasks.worker:DatabasePoolStep",
    "nexus_tasks.worker:ForkServerStep",
    "nexus_tasks.worker:EndStep",
    "nexus_tasks.worker:IdentityStep",
    "nexus_tasks.worker:SweepStep",
    "nexus_tasks.worker:ReconcileStep",
    "nexus_tasks.worker:WatchdogStep",
    "nexus_tasks.worker:BufferStep",
)
NAMESPACE_REMEMBERED_SECONDS = 10.0
POOL_SIZE, SPARE_CONNECTIONS = 10, 4  # the spare ones are for the sweep, reconcile and the session buffer


class _Once(Generic[T]):
    """An attribute that is made at its first read and then kept. All threads get the same object."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, deployment: None, owner: type) -> _Once[T]: ...
    @overload
    def __get__(self, deployment: Any, owner: type) -> T: ...
    def __get__(self, deployment: Any, owner: type) -> Any:
        if deployment is None:
            return self
        with deployment._making:
            if self._name not in deployment._made:
                deployment._made[self._name] = self._make(deployment)
            return deployment.__dict__.setdefault(self._name, deployment._made[self._name])


class Deployment:
    """One set of settings with its database, claims, Celery application, model and caches. Thread-safe.

    Args:
        settings: with ``None``, the settings of the environment's ``NEXUS_*`` variables.
        app: an existing Celery application that carries this deployment's jobs (see :func:`nexus_tasks.register`);
            with ``None`` the deployment makes its own.

    Raises:
        ConfigurationError: a setting is wrong, or only one of the two URLs is set.
    """

    def __init__(self, settings: Settings | None = None, *, app: Celery | None = None) -> None:
        self.settings = (settings or load_settings()).checked()
        self._of_the_environment = settings is None
        self._config: Any = CeleryConfig(self.settings, lambda: self.endpoints)
        self._given_app = app
        self._inherited: list[Any] = []
        self.threads = 0  # how many jobs this process runs at a time; a worker of threads says so
        self._start_afresh()
        if app is not None:
            self._join(app)
            # The queues come from the application's settings, which may still change. They are added when a worker or
            # beat has read the settings.
            signals.import_modules.connect(_on_import_modules, sender=app, weak=False)
        _deployments.add(self)

    def _start_afresh(self) -> None:
        self._making = threading.RLock()
        self._made: dict[str, Any] = {}
        self._local: dict[type, Any] = {}
        self._namespaces: dict[str, tuple[float, NamespaceSettings | None]] = {}

    # --- servers ------------------------------------------------------------------------------------------------------
    @_Once
    def endpoints(self) -> Endpoints:
        """Where the servers are. The first read may start the embedded ones.

        Raises:
            EmbeddedError: an embedded server could not be started.
        """
        return endpoints_of(self.settings)

    @_Once
    def database(self) -> Database:
        """The connections to Postgres. The embedded database is brought to this version's schema first."""
        url = self.endpoints.database_url
        if self.settings.embedded:
            _bring_up_to_date(url)
        return Database(url, self.settings.database_pool_size or max(POOL_SIZE, self.threads + SPARE_CONNECTIONS))

    @_Once
    def claims(self) -> Claims:
        """The claims in Redis."""
        return self._claims()

    def _claims(self, **options: Any) -> Claims:
        settings = self.settings
        return Claims(self.endpoints.redis_url, settings.key_prefix, master_name=settings.redis_master, **options)

    @_Once
    def buffer(self) -> SessionBuffer:
        """The session buffer of this machine, below the deployment's home."""
        settings = self.settings
        folder = str(settings.home / "buffer")
        return SessionBuffer(folder, fsync=settings.buffer_fsync, max_bytes=settings.buffer_max_bytes)

    # --- jobs ---------------------------------------------------------------------------------------------------------
    @_Once
    def app(self) -> Celery:
        """The Celery application: the given one, else the deployment's own."""
        if self._given_app is not None:
            return self._given_app
        app = Celery("nexus_tasks", set_as_current=False)
        app.config_from_object(self._config)
        app.AsyncResult = app.subclass_with_self(RunResult)  # Celery's own waits for ever for an ignored result
        self._join(app)
        return app

    def _join(self, app: Celery) -> None:
        """Put the jobs and the worker steps into ``app``."""
        attach(app, lambda: self.engine)
        app.steps["worker"].update(WORKER_STEPS)
        add_tasks(app)

    @_Once
    def engine(self) -> JobEngine:
        """The engine, through which producers and workers reach the claims, the broker and the jobs' storage."""
        lease = self.settings.lease_seconds
        if self._given_app is not None:
            add_queues(self._given_app)  # a worker added them at its start, a producer did not
        return JobEngine(
            self.app,
            deployment=self,
            claims=self.claims,
            heartbeat_claims=self._claims(timeout=lease / 4),
            storage=PostgresJobStorage(self),
            limits=Limits(
                lease=lease,
                max_attempts=self.settings.max_attempts,
                retry_for=self.settings.retry_for,
                shutdown_grace=self.settings.shutdown_grace,
            ),
            kinds=kinds.declared,
            isolation=self.isolation,
            holder=self._lease_holder(),
        )

    def _lease_holder(self) -> LeaseHolder:
        """This process among the workers of this deployment that have the same home."""
        claims = hashlib.sha256(f"{self.endpoints.redis_url} {self.settings.key_prefix}".encode()).hexdigest()[:16]
        return LeaseHolder(self.settings.home / "workers" / claims)

    @_Once
    def isolation(self) -> Isolation:
        """The fork server for jobs that have crashed twice."""
        return Isolation(self._fork_server_command)

    def _fork_server_command(self) -> list[str]:
        modules = [str(module) for module in self.app.conf.include]  # of `celery worker --include`
        return ["-m", "nexus_tasks.idempotency.worker.fork_server_main", self.app_path(), *modules]

    def app_path(self) -> str:
        """The import path of the Celery application, by which a child process loads it.

        Raises:
            ConfigurationError: the application is no global of an imported module.
        """
        if self._of_the_environment and self._given_app is None:  # the child has the same environment
            return "nexus_tasks.celery:app"
        app = self.app
        for name, module in list(sys.modules.items()):
            # `python -m shop` names the module __main__, and its spec has the name `shop`. A script has no spec.
            path = getattr(module.__spec__, "name", "") if name == "__main__" else name
            if not path or path.partition(".")[0] == "celery":  # Celery's own modules only refer to the application
                continue
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is app:
                    return f"{path}:{attribute}"
        raise ConfigurationError(
            "The Celery application is no global of a module, so that another process cannot load it.",
            remedy="Assign it to a module's global, as `celery -A module:name` needs it.",
        )

    # --- models -------------------------------------------------------------------------------------------------------
    @_Once
    def embedder(self) -> Embedder:
        """The embedder, which turns texts into vectors. A search needs the embedder and no language model.

        Raises:
            ConfigurationError: there is no embedder of that name.
        """
        return embedder(self.settings)

    @_Once
    def model(self) -> LanguageModel:
        """The language model.

        Raises:
            ConfigurationError: ``NEXUS_MODEL=auto`` finds no usable credentials (see :func:`language_model`).
        """
        return language_model(self.settings)

    @_Once
    def claude(self) -> AnthropicModel:
        """Claude, which counts tokens even when jobs use another model. Making it needs no credentials; a call does."""
        return AnthropicModel(self.settings)

    @_Once
    def resources(self) -> Resources:
        """The database, model, embedder and settings that every job works with.

        Raises:
            ConfigurationError: the :attr:`model` or the :attr:`embedder` cannot be made.
        """
        return Resources(database=self.database, model=self.model, embedder=self.embedder, settings=self.settings)

    def preload(self) -> None:
        """Load the model's library before the first job. Claude's library takes over 1 s to load.

        No thread and no connection is left afterwards.

        Raises:
            ConfigurationError: the :attr:`model` cannot be made.
        """
        if self.model.name == "anthropic":
            import anthropic

            with anthropic.Anthropic(api_key="unused") as client:
                _ = client.messages  # the library loads much of itself only when a client is made and used

    # --- namespaces ---------------------------------------------------------------------------------------------------
    def namespace(self, name: str) -> NamespaceSettings | None:
        """A namespace's settings, or ``None``. Cached for 10 s, because every job asks for them.

        Settings with a budget or a pause are not cached: a job that is woken because the budget was raised would read
        the old budget and wait for the next day again.
        """
        read_at, known = self._namespaces.get(name, (float("-inf"), None))
        if known is None or time.monotonic() - read_at > NAMESPACE_REMEMBERED_SECONDS:
            with self.database.transaction() as tx:
                known = namespaces.find(tx, name)
            without_budget = self.settings.budget_usd_per_day is None and (
                known is None or known.budget_usd_per_day is None
            )
            if without_budget and (known is None or known.paused_at is None):
                self._namespaces[name] = time.monotonic(), known
            else:
                self._namespaces.pop(name, None)
        return known

    def forget_namespace(self, name: str) -> None:
        """Read a namespace's settings anew at the next use, because this process has changed them."""
        self._namespaces.pop(name, None)

    def cap(self, name: str) -> int:
        """How many runs a namespace may have at a time; 0 while it is paused.

        While Postgres does not answer, the deployment's setting.
        """
        try:
            known = self.namespace(name)
        except NexusError:
            known = None
        if known and known.paused_at:
            return 0
        return known.concurrency if known and known.concurrency else self.settings.namespace_concurrency

    # --- this process -------------------------------------------------------------------------------------------------
    def local(self, factory: type[T]) -> T:
        """The deployment's one object of the class ``factory``, made at the first call. Such objects hold caches."""
        with self._making:
            if factory not in self._local:
                self._local[factory] = factory()
            found: T = self._local[factory]
            return found

    def close(self) -> None:
        """Close connections and end threads. The next use makes them again."""
        with self._making:
            if "engine" in self._made:
                self.engine.close()
            if self._given_app is None and {"app", "endpoints"} <= self._made.keys():  # else no connection exists
                close_connections(self.app)
            if "isolation" in self._made:
                self.isolation.close()
            if "database" in self._made:
                self.database.dispose()
            for name in self._made.keys() - {"app"}:
                del self._made[name]
                self.__dict__.pop(name, None)

    def _after_fork(self) -> None:
        """Forget the parent's connections, locks and threads in a forked child. The next use makes new ones.

        The child keeps the parent's objects, so that they are never collected: closing them would write to the
        parent's sockets.
        """
        self.threads = 0
        made, local, app = self._made, self._local, self._given_app or self._made.get("app")
        if "engine" in made:
            made["engine"].holder.leave_to_parent()
        self._inherited += [made, local]
        for name in made:
            self.__dict__.pop(name, None)
        self._start_afresh()
        if app is not None:
            self._made["app"] = app
            self._inherited.append(forget_connections(app))


def _on_import_modules(sender: Celery, **_kwargs: object) -> None:
    """Add queues and schedule after a worker or beat has read the application's settings and before it uses them."""
    add_queues_and_schedule(sender)


_deployments: WeakSet[Deployment] = WeakSet()  # for forked children only


def _reset_in_child() -> None:
    _choosing.release()
    for deployment in list(_deployments):
        deployment._after_fork()


def _bring_up_to_date(url: str) -> None:
    """Upgrade the embedded database. This is safe, because only this release uses the database."""
    found, needed = schema.versions(url)
    if found is not None and found > needed:
        raise SchemaOutdated(
            f"The embedded database is at schema {found}, this version knows {needed}.",
            remedy="Upgrade nexus-tasks: a newer version has used this database.",
        )
    if found != needed:
        schema.upgrade(url)


# --- the default deployment -------------------------------------------------------------------------------------------
_default: Deployment | None = None
_choosing = threading.RLock()
# A fork takes the lock first. Otherwise another thread could hold it, and the child's copy would stay locked for ever.
os.register_at_fork(before=_choosing.acquire, after_in_parent=_choosing.release, after_in_child=_reset_in_child)


def default_deployment() -> Deployment:
    """The default deployment: inside :func:`use` the given one, else the one of the ``NEXUS_*`` variables.

    ``Nexus()`` and ``derive_memory.delay()`` use it, and ``nexus_tasks.celery.app`` is its Celery application. The
    first call outside :func:`use` makes the deployment of the variables.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    global _default
    with _choosing:
        if _default is None:
            _default = _DefaultDeployment()
        return _default


@contextmanager
def use(deployment: Deployment) -> Iterator[Deployment]:
    """Make ``deployment`` the default one of this process inside the block."""
    global _default
    with _choosing:
        before, _default = _default, deployment
    try:
        yield deployment
    finally:
        with _choosing:
            _default = before


class _DefaultDeployment(Deployment):
    """The deployment of the ``NEXUS_*`` variables. A ``celeryconfig.py`` may override its Celery settings."""

    def __init__(self, app: Celery | None = None) -> None:
        super().__init__(app=app)
        # CELERY_CONFIG_MODULE, else the current folder's celeryconfig.py, else the package's own settings.
        named = os.environ.get("CELERY_CONFIG_MODULE")
        if named or Path("celeryconfig.py").is_file():
            self._config = named or "celeryconfig"


def default_deployment_in(app: Celery) -> Deployment:
    """Make the environment's deployment the default one, with ``app`` as its Celery application.

    Raises:
        ConfigurationError: a setting is wrong, or this process has already used the default deployment.
    """
    global _default
    with _choosing:
        if _default is not None and not has_jobs(app):
            raise ConfigurationError(
                "The default deployment has a Celery application already.",
                remedy="Call register(app) before anything else uses nexus-tasks, or call register(app, settings).",
            )
        _default = _DefaultDeployment(app)
        return _default
