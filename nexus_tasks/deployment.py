"""A deployment: one set of settings, and everything in this process that depends on the settings.

    deployment = Deployment(Settings(database_url=..., redis_url=..., key_prefix="staging"))
    nexus = Nexus(deployment)

The database, claims, Celery application, model, embedder and caches of a deployment are made at their first use.
Importing this module or making a deployment starts nothing. Two deployments in one process share nothing when their
databases, Redis key prefixes and home folders differ. In a forked child a deployment makes its own connections and
threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from weakref import WeakSet

from celery import Celery, signals
from sqlalchemy import text

from nexus_tasks import forks
from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.cells_file import read_cells
from nexus_tasks.config import CeleryConfig, Overridden, add_queues, add_queues_and_schedule
from nexus_tasks.endpoints import Endpoints, buffer_of, endpoints_of
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
from nexus_tasks.importing import PAUSE, Imports
from nexus_tasks.model_totals import count_call
from nexus_tasks.outbox import PostgresJobStorage
from nexus_tasks.settings import Settings, cell_settings, load_settings, refuse_several
from nexus_tasks.silence import Silence
from nexus_tasks.storage import identity, namespaces, schema, tenancy
from nexus_tasks.storage.engine import Database, Watch
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.storage.placing import place_new

if TYPE_CHECKING:  # commands that neither derive nor search need no model, and start faster without these modules
    from nexus_tasks.cognition.resources import Resources
    from nexus_tasks.embeddings.base import Embedder
    from nexus_tasks.llm.anthropic import AnthropicModel
    from nexus_tasks.llm.base import LanguageModel

T = TypeVar("T")

# The worker steps, in the order of their work. `nexus_tasks/worker.py` describes each step.
WORKER_STEPS = (
    "nexus_tasks.worker:PatchStep",
    "nexus_tasks.worker:RedisClientStep",
    "nexus_tasks.worker:ConsumerTimeoutStep",
    "nexus_tasks.worker:DatabasePoolStep",
    "nexus_tasks.worker:GarbageStep",
    "nexus_tasks.worker:ForkServerStep",
    "nexus_tasks.worker:EndStep",
    "nexus_tasks.worker:IdentityStep",
    "nexus_tasks.worker:SweepStep",
    "nexus_tasks.worker:ReconcileStep",
    "nexus_tasks.worker:WatchdogStep",
    "nexus_tasks.worker:BufferStep",
    "nexus_tasks.worker:MonitoringStep",
)
CONSUMER_STEP = "nexus_tasks.worker:EventBatchesStep"
NAMESPACE_REMEMBERED_SECONDS = 10.0
_POSTGRES = "Postgres"  # the name of a deployment's database in its `Silence`
_PROBE = text("SELECT 1")
# Connections to Postgres. The spare connections are for the sweep, reconcile and the session buffer.
POOL_SIZE, SPARE_CONNECTIONS = 10, 4


def pool_size(settings: Settings, threads: int) -> int:
    """How many connections to Postgres a process with so many job threads keeps open. It may open as many more."""
    return settings.database_pool_size or max(POOL_SIZE, threads + SPARE_CONNECTIONS)


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
        forks.check()
        with suppress(KeyError):
            return deployment._made[self._name]
        with deployment._making:
            if self._name not in deployment._made:
                deployment._made[self._name] = self._make(deployment)
            return deployment._made[self._name]


class Deployment:
    """One set of settings with its database, claims, Celery application, model and caches. Thread-safe.

    Args:
        settings: with ``None``, the settings of the environment's ``NEXUS_*`` variables.
        app: an existing Celery application that gets this deployment's jobs (see :func:`nexus_tasks.register`). With
            ``None`` the deployment makes an application of its own.

    Raises:
        ConfigurationError: a setting is wrong, or only one of ``database_url`` and ``redis_url`` is set.
    """

    def __init__(self, settings: Settings | None = None, *, app: Celery | None = None) -> None:
        self.settings = (settings or load_settings()).checked()
        if settings is None:
            refuse_several(self.settings)
        self._of_the_environment = settings is None
        self._config: Any = CeleryConfig(self.settings, lambda: self.endpoints)
        self._given_app = app
        self._inherited: list[Any] = []
        self.threads = 0  # the number of threads that run jobs, set by `DatabasePoolStep` in a worker
        self.placing: Callable[[str], None] | None = None  # of a cell: notes where a new namespace is made
        self.watch: Watch | None = None  # of a cell: notes whether its database answers
        self._start_afresh()
        if app is not None:
            self._join(app)
            # The application's settings name its queues, and the settings may still change. Therefore our queues are
            # added later, when a worker or beat has read the settings.
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
        """The addresses of the servers. The first read may start the embedded Postgres and Redis.

        Raises:
            EmbeddedError: an embedded server could not be started.
        """
        return endpoints_of(self.settings)

    @_Once
    def database(self) -> Database:
        """The connections to Postgres. An embedded database is first upgraded to this version's schema."""
        url = self.endpoints.database_url
        if self.settings.embedded:
            _bring_up_to_date(url)
        watch = self.watch or partial(self.local(Silence).note, _POSTGRES)
        return Database(url, pool_size(self.settings, self.threads), placing=self._placing(), watch=watch)

    def _placing(self) -> Callable[[str], None] | None:
        """The function that notes in which cell a new namespace is made; ``None``: there are no cells."""
        return self.placing or (self._place_new if self.is_cell else None)

    @property
    def is_cell(self) -> bool:
        """Whether this is one of several cells, so that its namespaces may move."""
        return self.placing is not None or bool(self.settings.cells and self.settings.cell)

    def _place_new(self, namespace: str) -> None:
        """Note a new namespace in the directory. No connection is kept for it, because a namespace is rarely made.

        The caller holds a connection of this deployment's pool. A second one of the same pool may never come, because
        every other caller may hold one, too. So this method uses pools of its own.
        """
        file, cell = read_cells(str(self.settings.cells)), str(self.settings.cell)
        with (
            closing(Deployment(cell_settings(file, cell))) as here,
            closing(Deployment(cell_settings(file, file.directory))) as directory,
        ):
            with tenancy.unlimited(), here.database.transaction() as tx:
                own = identity.of_database(tx)
            place_new(directory.database, namespace, cell, directory_name=file.directory, own=own)

    @_Once
    def claims(self) -> Claims:
        """The claims in Redis."""
        return self._claims()

    def _claims(self, **options: Any) -> Claims:
        settings = self.settings
        return Claims(self.endpoints.redis_url, settings.key_prefix, master_name=settings.redis_master, **options)

    @_Once
    def buffer(self) -> SessionBuffer:
        """The session buffer of this machine, below the deployment's home, with this deployment's entries."""
        return buffer_of(self.settings)

    # --- jobs ---------------------------------------------------------------------------------------------------------
    @_Once
    def app(self) -> Celery:
        """The Celery application: the application that was given, or else the deployment's own."""
        if self._given_app is not None:
            return self._given_app
        app = Celery("nexus_tasks", set_as_current=False, fixups=None if _of_an_operator() else [])
        app.config_from_object(self._config)
        # Celery's own class would wait for ever for an ignored result.
        app.AsyncResult = app.subclass_with_self(RunResult)
        self._join(app)
        return app

    def _join(self, app: Celery) -> None:
        """Put the jobs and the worker steps into ``app``."""
        attach(app, lambda: self.engine)
        app.steps["worker"].update(WORKER_STEPS)
        app.steps["consumer"].add(CONSUMER_STEP)
        add_tasks(app)

    @_Once
    def engine(self) -> JobEngine:
        """The engine, through which producers and workers reach the claims, the broker and the jobs' storage."""
        lease = self.settings.lease_seconds
        if self._given_app is not None:
            add_queues(self._given_app)  # a worker has added the queues at its start, but a producer has not
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
        """This process as a holder of leases (the times for which running claims stay valid).

        The holder's folder is shared with all processes that have the same home folder, Redis and key prefix.
        """
        claims = hashlib.sha256(f"{self.endpoints.redis_url} {self.settings.key_prefix}".encode()).hexdigest()[:16]
        return LeaseHolder(self.settings.home / "workers" / claims)

    @_Once
    def isolation(self) -> Isolation:
        """The fork server for jobs that have crashed twice."""
        return Isolation(self._fork_server_command)

    def _fork_server_command(self) -> list[str]:
        modules = [str(module) for module in self.app.conf.include]  # named by `celery worker --include`
        # The fork server finds modules where this process finds them. The option `-P` keeps modules of the current
        # folder from shadowing others.
        main = ["-P", "-m", "nexus_tasks.idempotency.worker.fork_server_main"]
        return [*main, json.dumps(sys.path), self.app_path(), *modules]

    def app_path(self) -> str:
        """The import path from which a child process loads the Celery application.

        Raises:
            ConfigurationError: the application is not a global variable of an imported module.
        """
        if self._of_the_environment and self._given_app is None:  # a child process has the same environment
            return "nexus_tasks.celery:app"
        app = self.app
        for name, module in list(sys.modules.items()):
            # With `python -m shop` the module is named __main__, and its spec is named `shop`. A script has no spec.
            path = getattr(module.__spec__, "name", "") if name == "__main__" else name
            if not path or path.partition(".")[0] == "celery":  # Celery's modules refer to it, but do not define it
                continue
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is app:
                    return f"{path}:{attribute}"
        raise ConfigurationError(
            "The Celery application is not a global variable of a module, so another process cannot load it.",
            remedy="Assign the application to a global variable of a module, as for `celery -A module:name`.",
        )

    # --- models -------------------------------------------------------------------------------------------------------
    @_Once
    def embedder(self) -> Embedder:
        """The embedder, which turns texts into vectors. A search needs the embedder and no language model.

        Raises:
            ConfigurationError: no embedder has the configured name, or a setting that the embedder needs is missing.
        """
        from nexus_tasks.embeddings.choose import embedder

        return embedder(self.settings)

    @_Once
    def model(self) -> LanguageModel:
        """The language model.

        Raises:
            ConfigurationError: ``NEXUS_MODEL=auto`` finds no usable credentials (see :func:`language_model`).
        """
        from nexus_tasks.llm.choose import language_model

        return language_model(self.settings)

    @_Once
    def claude(self) -> AnthropicModel:
        """The Claude client, which counts tokens even when jobs use another model. Only its calls need credentials."""
        from nexus_tasks.llm.anthropic import AnthropicModel

        return AnthropicModel(self.settings)

    @_Once
    def resources(self) -> Resources:
        """The database, model, embedder and settings that every job works with.

        Raises:
            ConfigurationError: the :attr:`model` or the :attr:`embedder` cannot be made.
        """
        from nexus_tasks.cognition.resources import Resources

        return Resources(
            database=self.database,
            model=self.model,
            embedder=self.embedder,
            settings=self.settings,
            note_call=lambda call: count_call(self.claims, call),
        )

    def preload(self) -> None:
        """Load what the first jobs would have to wait for. The libraries of the models take over 1 s to load.

        After this call no thread runs and no connection is open.

        Raises:
            ConfigurationError: the :attr:`model` cannot be made.
        """
        import nexus_tasks.cognition.reflect  # noqa: F401 - the job kinds import it at its first use

        self.model.preload()

    # --- namespaces ---------------------------------------------------------------------------------------------------
    def namespace(self, name: str) -> NamespaceSettings | None:
        """The settings of a namespace, or ``None`` when the namespace does not exist.

        Every job needs the settings, so they are cached for 10 s. Settings with a budget or a pause are not cached, and
        neither are those of a namespace that moves to another cell. A
        raised budget wakes the waiting jobs. With the old budget, these jobs would wait for the next hour or day again.
        """
        read_at, known = self._namespaces.get(name, (float("-inf"), None))
        if known is None or time.monotonic() - read_at > NAMESPACE_REMEMBERED_SECONDS:
            with tenancy.unlimited(), self.database.transaction() as tx:  # all callers share the cache
                known = namespaces.read(tx, name)
            without_budget = self.settings.budget_usd_per_day is None and (
                known is None or known.budget_usd_per_day is None
            )
            settled = known is None or (known.paused_at is None and known.residence == "here")
            if without_budget and settled:
                self._namespaces[name] = time.monotonic(), known
            else:
                self._namespaces.pop(name, None)
        return known

    def forget_namespace(self, name: str) -> None:
        """Remove a namespace's settings from the cache, because this process has changed them."""
        self._namespaces.pop(name, None)

    def cap(self, name: str) -> int:
        """The largest number of runs that a namespace may have at a time: 0 while it is paused, or not only here.

        While Postgres does not answer, it is the deployment's setting ``namespace_concurrency``.
        """
        try:
            known = self.namespace(name)
        except NexusError:
            known = None
        if known and (known.paused_at or known.residence != "here"):
            return 0
        return known.concurrency if known and known.concurrency else self.settings.namespace_concurrency

    # --- this process -------------------------------------------------------------------------------------------------
    def local(self, factory: type[T]) -> T:
        """The deployment's only object of the class ``factory``, made at the first call. Caches are such objects."""
        forks.check()
        with self._making:
            if factory not in self._local:
                self._local[factory] = factory()
            found: T = self._local[factory]
            return found

    def unless_silent(self, call: Callable[[], T]) -> T:
        """While Postgres is silent, let one call at a time wait for it, and refuse the others at once.

        Otherwise the waiting calls would hold all threads of an application's event loop, which needs them for other
        work, such as looking up a host.

        Raises:
            StorageUnavailable: Postgres is silent.
            any error of ``call``.
        """
        if self.watch is not None:  # the router of the cells does this
            return call()
        silence = self.local(Silence)

        def ask_first() -> T:
            with self.database.reading() as tx:
                tx.execute(_PROBE)  # its answer lets the other calls go on, also when `call` first does something else
            return call()

        return silence.ask(_POSTGRES, ask_first if silence.holds(_POSTGRES) else call)

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

    def _after_fork(self) -> None:
        """Forget the parent's connections, locks and threads in a forked child. The next use makes new ones.

        The child keeps references to the parent's objects, so that Python never deletes these objects. Deleting them
        would close them, and closing would write to the parent's sockets.
        """
        self.threads = 0
        made, local, app = self._made, self._local, self._given_app or self._made.get("app")
        if "engine" in made:
            made["engine"].holder.leave_to_parent()
        self._inherited += [made, local]
        self._start_afresh()
        if app is not None:
            self._made["app"] = app
            self._inherited.append(forget_connections(app))


def _on_import_modules(sender: Celery, **_kwargs: object) -> None:
    """Add our queues and schedule. Celery calls this after a worker or beat has read the application's settings."""
    add_queues_and_schedule(sender)


_deployments: WeakSet[Deployment] = WeakSet()  # every deployment of this process; only forked children read the set


def _before_fork() -> None:
    """Take the lock :data:`_choosing` at a moment at which no other thread imports a module."""
    imports = Imports()
    while True:
        _choosing.acquire()
        # Another thread may need the lock for its import, so this one must not hold the lock while it waits.
        if not imports.are_going_on():
            return
        _choosing.release()
        time.sleep(PAUSE)


def _reset_in_child() -> None:
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
# A fork takes the lock first. Otherwise another thread could hold the lock during the fork, and in the child the lock
# would stay taken for ever.
os.register_at_fork(before=_before_fork, after_in_parent=_choosing.release, after_in_child=_choosing.release)
forks.after_in_child(_reset_in_child)


def default_deployment() -> Deployment:
    """The default deployment, which ``Nexus()`` and ``derive_memory.delay()`` use.

    Inside a block of :func:`use`, it is the deployment that the block was given. Otherwise it is the deployment that
    the ``NEXUS_*`` variables describe; the first call makes this deployment. ``nexus_tasks.celery.app`` is the Celery
    application of the default deployment.

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
    """Make ``deployment`` the default deployment of this process during the ``with`` block."""
    global _default
    with _choosing:
        before, _default = _default, deployment
    try:
        yield deployment
    finally:
        with _choosing:
            _default = before


class _DefaultDeployment(Deployment):
    """The deployment of the ``NEXUS_*`` variables.

    Its Celery settings come from the module that CELERY_CONFIG_MODULE names. Those that the module does not set come
    from ``nexus_tasks/config.py``. For the command ``celery`` a file ``celeryconfig.py`` in the current folder is this
    module when the variable is not set. No other process loads this file, because a hook, an MCP server or ``nexus``
    may run in the folder of an untrusted project.
    """

    def __init__(self, app: Celery | None = None) -> None:
        super().__init__(app=app)
        if _is_celery_command() and Path("celeryconfig.py").is_file():
            # The fork server of this worker must read the same settings.
            os.environ.setdefault("CELERY_CONFIG_MODULE", "celeryconfig")
        if named := os.environ.get("CELERY_CONFIG_MODULE"):
            self._config = Overridden(named, self._config)


def _is_celery_command() -> bool:
    """Whether this process runs the command ``celery``, which an operator starts in a folder of the operator's own."""
    return "celery.bin.celery" in sys.modules


def _of_an_operator() -> bool:
    """Whether this is the command ``celery``, or the fork server of a worker.

    Only there does Celery set up Django when DJANGO_SETTINGS_MODULE is set. It then puts the current folder first in
    the path of modules, so a command in the folder of an untrusted project would run that project's code.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _is_celery_command() or getattr(main, "name", "") == "nexus_tasks.idempotency.worker.fork_server_main"


def default_deployment_in(app: Celery) -> Deployment:
    """Make the deployment of the ``NEXUS_*`` variables with ``app`` as its Celery application, and make it the default.

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
