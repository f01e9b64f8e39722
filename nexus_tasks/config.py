"""Celery's settings. A ``celeryconfig.py`` may override any of them for the default deployment.

Most settings are constants. :data:`OF_THE_SETTINGS` and :data:`OF_THE_ENDPOINTS` name the settings that depend on the
deployment. :class:`CeleryConfig` computes these settings when Celery first asks for them. They are not computed at
import, because reading the servers' addresses may start the embedded servers (this package's own Postgres and Redis).
Celery can also load this module as its configuration module. In this case the ``NEXUS_*`` variables describe the
deployment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from celery import Celery
from celery.utils.imports import import_from_cwd, symbol_by_name
from kombu import Exchange, Queue

from nexus_tasks.endpoints import Endpoints, endpoints_of
from nexus_tasks.settings import Settings, load_settings

imports = ("nexus_tasks.tasks", "nexus_tasks.worker")

# --- delivery ---------------------------------------------------------------------------------------------------------
# When a message is lost, the sweep (a loop of every worker) sends the message again after 10 s or more. A message that
# a killed process of the same machine had received is sent again sooner.
task_acks_late = True
task_reject_on_worker_lost = True
worker_prefetch_multiplier = 1
worker_disable_prefetch = True  # a busy worker must not take messages that an idle worker could take
task_ignore_result = True  # a row in Postgres (`job_runs`) says how a job ended
task_annotations = {"celery.ping": {"ignore_result": False}}  # Celery's testing worker waits for this result
task_track_started = True
worker_send_task_events = True
broker_connection_retry_on_startup = True
broker_connection_max_retries = None  # with Celery's 100 tries, a worker ends after an outage of 50 minutes
broker_pool_acquire_timeout = 5
# Seconds, for RabbitMQ. A worker whose connection has been silent for twice as long makes another one.
broker_heartbeat = 6

# --- the format of messages and results -------------------------------------------------------------------------------
task_serializer = result_serializer = "json"
accept_content = ["json"]
result_accept_content = ["json"]
enable_utc = True
timezone = "UTC"

# --- Redis ------------------------------------------------------------------------------------------------------------
# The longest wait for an answer of Redis, in seconds. After this time the caller gets an error, and the next caller
# makes a new connection. The limit is as short as 5 s, because a worker must go on within 30 s after its connections
# died, and its event loop may wait for several dead connections one after the other.
ANSWER_WITHIN = 5
redis_socket_timeout = float(ANSWER_WITHIN)
redis_socket_connect_timeout = float(ANSWER_WITHIN)
redis_backend_health_check_interval = 25
result_expires = 86_400
result_chord_expires = 7 * 86_400  # seconds; when a chord waits longer, its body never runs

# --- queues -----------------------------------------------------------------------------------------------------------
# The messages of a job that a reader waits for go to `urgent`, not to the queue of the job's kind.
# In RabbitMQ the queues are of the type `classic`, or of the type `quorum` when Celery's setting
# `task_default_queue_type` says so, which NEXUS_QUEUE_TYPE sets.
QUEUES = ("derive", "reflect", "digest", "capture", "maintenance", "urgent")
_exchange = Exchange("nexus", type="direct")
# Celery declares 28 queues for messages with an ETA, when a queue is a quorum queue. The jobs have no ETA.
broker_native_delayed_delivery_queue_type = "classic"
task_default_queue = "maintenance"
task_default_exchange = "nexus"
task_default_routing_key = "maintenance"
task_create_missing_queues = False  # a misspelt queue raises an error in the producer

# --- workers ----------------------------------------------------------------------------------------------------------
# The pool has threads, because jobs mostly wait for the network. For a prefork pool give `--pool processes`, Celery's
# other name of this pool. With `--pool prefork` the worker still has threads: `prefork` is also the option's default,
# so Celery takes the option for missing and uses the setting `worker_pool`.
worker_pool = "threads"
# A namespace may have 16 runs (`NEXUS_NAMESPACE_CONCURRENCY`). A slow model makes them last for minutes. Meanwhile the
# other threads run the jobs of the other namespaces.
worker_concurrency = 20
worker_hijack_root_logger = True
worker_redirect_stdouts = False

# --- beat -------------------------------------------------------------------------------------------------------------
beat_enable_remote_control = True
beat_scheduler = "nexus_tasks.idempotency.celery_patches.schedule_file:Scheduler"
beat_schedule = {
    "dream_due": {"task": "nexus_tasks.dream_due", "schedule": 60.0},
    "recover_buffers": {"task": "nexus_tasks.recover_buffers", "schedule": 300.0},
    "find_embedding_gaps": {"task": "nexus_tasks.find_embedding_gaps", "schedule": 3_600.0},
    "keep_search_fast": {"task": "nexus_tasks.keep_search_fast", "schedule": 60.0},
    "prune": {"task": "nexus_tasks.prune", "schedule": 3_600.0},
}


# --- the settings that depend on the deployment -----------------------------------------------------------------------
# In Celery the variable CELERY_BROKER_URL overrides `broker_url`, and another application may have set this variable.
# Therefore `broker_read_url` and `broker_write_url` are set too. The variable does not override these two settings.
_BROKER_URLS = ("broker_url", "broker_read_url", "broker_write_url")
OF_THE_ENDPOINTS = (*_BROKER_URLS, "broker_use_ssl", "result_backend")
OF_THE_SETTINGS = (
    "task_queues",
    "task_default_queue_type",
    "broker_transport_options",
    "result_backend_transport_options",
    "redis_socket_keepalive",
    "beat_schedule_filename",
)
_CONSTANTS = tuple(
    name for name, value in globals().items() if name.islower() and name[0] != "_" and not callable(value)
)


class CeleryConfig:
    """The Celery settings of one deployment, as the object that ``Celery.config_from_object`` takes.

    Args:
        settings: the settings of the deployment.
        endpoints: a function that returns the deployment's addresses. It is called when Celery asks for an address.
    """

    def __init__(self, settings: Settings, endpoints: Callable[[], Endpoints]) -> None:
        self._settings, self._endpoints = settings, endpoints

    def __getattr__(self, name: str) -> Any:
        if name in _BROKER_URLS:
            return self._endpoints().broker_url
        if name == "broker_use_ssl":
            return self._endpoints().broker_tls
        if name == "result_backend":
            return self._endpoints().result_url
        if name in OF_THE_SETTINGS:
            return _of(self._settings)[name]
        if name in _CONSTANTS:
            return globals()[name]
        raise AttributeError(name)

    def __dir__(self) -> list[str]:
        return [*_CONSTANTS, *OF_THE_SETTINGS, *OF_THE_ENDPOINTS]


class Overridden:
    """The Celery settings of a deployment, of which a module overrides some.

    ``imports`` of the module are added to ours: a worker without ours would have no jobs and no sweep.

    Args:
        module: the module's name, such as ``celeryconfig``. The current folder is searched too, as Celery does.
        ours: the settings that count where the module sets none.
    """

    def __init__(self, module: str, ours: CeleryConfig) -> None:
        self._module, self._ours = module, ours

    def _theirs(self) -> Any:
        try:
            if ":" in self._module:
                return symbol_by_name(self._module, imp=import_from_cwd)
            return import_from_cwd(self._module)
        except AttributeError as error:  # to Celery it would mean that a setting is missing
            raise ImportError(f"{self._module} cannot be imported: {error}") from error

    def __getattr__(self, name: str) -> Any:
        theirs = self._theirs()
        if not hasattr(theirs, name):
            return getattr(self._ours, name)
        value = getattr(theirs, name)
        if name != "imports":
            return value
        return (*imports, *(one for one in value if one not in imports))

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._theirs()), *dir(self._ours)})


def queue_of(name: str, kind: str) -> Queue:
    """Our queue ``name``, of RabbitMQ's type ``kind``: ``classic`` or ``quorum``."""
    arguments = {"x-queue-type": "quorum"} if kind == "quorum" else None
    return Queue(name, _exchange, routing_key=name, queue_arguments=arguments)


def _of(settings: Settings) -> dict[str, Any]:
    return {
        "task_queues": [queue_of(name, settings.queue_type) for name in QUEUES],
        "task_default_queue_type": settings.queue_type,
        "broker_transport_options": {
            "global_keyprefix": f"{settings.key_prefix}:celery:",
            "queue_order_strategy": "nexus_tasks.tasks.queue_order:DerivationOften",
            "master_name": settings.redis_master,  # used with Sentinels only
            # Seconds after which kombu delivers a message again that no worker has acknowledged. kombu reads this
            # option only from here. The sweep recovers a lost job earlier.
            "visibility_timeout": 3_600,
            "unacked_restore_throttle": 1,
            "socket_timeout": ANSWER_WITHIN,
            "socket_connect_timeout": ANSWER_WITHIN,
            "socket_keepalive": True,
            # The same limit for RabbitMQ. To close a connection, Celery's client asks the broker to close it, and waits
            # for the answer. Without a limit, closing a dead connection would hang.
            "read_timeout": ANSWER_WITHIN,
            "write_timeout": ANSWER_WITHIN,
            # A worker waits for messages with the command BRPOP, which Redis answers after 1 s at the latest. When
            # there is no answer 3 s after the command (1 s and these 2 s), the connection counts as dead, and kombu
            # makes a new one. kombu checks this every 2 s. A message that a dead connection has taken is sent again.
            "health_check_interval": 2,
        },
        "result_backend_transport_options": {
            "global_keyprefix": f"{settings.key_prefix}:results:",
            "master_name": settings.redis_master,
        },
        # A connection of redis-py to a Unix socket does not take this option. The embedded Redis has a Unix socket.
        "redis_socket_keepalive": _by_tcp(settings),
        "beat_schedule_filename": str(settings.home / "beat-schedule"),
    }


def _by_tcp(settings: Settings) -> bool:
    # Without a URL the deployment uses the embedded Redis.
    url = settings.redis_url.get_secret_value() if settings.redis_url else "unix:"
    return not url.startswith(("unix:", "socket:", "redis+socket:"))


# --- an existing application ------------------------------------------------------------------------------------------
def add_queues(app: Celery) -> None:
    """Add our queues to an existing application. A queue of the application with the same name stays as it is."""
    queues = app.amqp.queues
    for name in QUEUES:
        if name not in queues:
            queues.select_add(queue_of(name, app.conf.task_default_queue_type))


def add_queues_and_schedule(app: Celery) -> None:
    """Add our queues and our entries of beat's schedule to an existing application.

    When the application has an entry of the same name, its own entry stays.
    """
    add_queues(app)
    ours = {f"nexus_tasks.{name}": entry for name, entry in beat_schedule.items()}
    # A new dict is made, because several applications may share the old dict.
    app.conf.beat_schedule = {**ours, **app.conf.beat_schedule}


# --- this module as Celery's configuration: `CELERY_CONFIG_MODULE=nexus_tasks.config`, or an import in celeryconfig.py
__all__ = [*_CONSTANTS, *OF_THE_SETTINGS]  # noqa: PLE0604 - names of settings


@lru_cache(maxsize=1)
def _of_the_environment() -> CeleryConfig:
    settings = load_settings()
    return CeleryConfig(settings, lambda: endpoints_of(settings))


def __getattr__(name: str) -> Any:
    if name not in (*OF_THE_SETTINGS, *OF_THE_ENDPOINTS):
        raise AttributeError(name)
    return getattr(_of_the_environment(), name)


def __dir__() -> list[str]:
    return dir(_of_the_environment())
