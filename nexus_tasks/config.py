"""Celery's settings. A ``celeryconfig.py`` may override any of them for the default deployment.

Most settings are constants. :data:`OF_THE_SETTINGS` and :data:`OF_THE_ENDPOINTS` name the settings that depend on the
deployment. :class:`CeleryConfig` computes these settings when Celery first asks for them, because a read of the
addresses may start the embedded servers, and an import must start nothing. Celery can also load this module as its
configuration module. Then the settings are those of the deployment that the ``NEXUS_*`` variables describe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

from nexus_tasks.endpoints import Endpoints, endpoints_of
from nexus_tasks.settings import Settings, load_settings

imports = ("nexus_tasks.tasks", "nexus_tasks.worker")

# --- delivery: a lost message loses no job, but its job waits 10 s or more until the sweep sends the message again ----
task_acks_late = True
task_reject_on_worker_lost = True
worker_prefetch_multiplier = 1
worker_disable_prefetch = True  # a busy worker must not hold messages that an idle worker could run
task_ignore_result = True  # a row in Postgres (`job_runs`) says how a job ended
task_annotations = {"celery.ping": {"ignore_result": False}}  # Celery's testing worker waits for this result
task_track_started = True
worker_send_task_events = True
broker_connection_retry_on_startup = True
broker_connection_max_retries = None  # with Celery's 100 a worker ends after an outage of 50 minutes
broker_pool_acquire_timeout = 5

# --- what may be on the wire ------------------------------------------------------------------------------------------
task_serializer = result_serializer = "json"
accept_content = ["json"]
result_accept_content = ["json"]
enable_utc = True
timezone = "UTC"

# --- Redis ------------------------------------------------------------------------------------------------------------
# Seconds for each answer. A connection that has gone silent costs one user this long; the next user connects anew. A
# worker's event loop may meet several such connections in turn, and everything must go on within 30 s.
ANSWER_WITHIN = 5
redis_socket_timeout = float(ANSWER_WITHIN)
redis_socket_connect_timeout = float(ANSWER_WITHIN)
redis_backend_health_check_interval = 25
result_expires = 86_400
result_chord_expires = 7 * 86_400  # seconds; when a chord waits longer, its body never runs

# --- queues -----------------------------------------------------------------------------------------------------------
QUEUES = ("derive", "reflect", "digest", "capture", "maintenance")
_exchange = Exchange("nexus", type="direct")
task_queues = [Queue(name, _exchange, routing_key=name) for name in QUEUES]
task_default_queue = "maintenance"
task_default_exchange = "nexus"
task_default_routing_key = "maintenance"
task_create_missing_queues = False  # a misspelt queue is an error in the producer, not a message that no worker reads

# --- workers ----------------------------------------------------------------------------------------------------------
# The pool is threads, because jobs wait for the network. For a prefork pool use `--pool processes`. Celery ignores
# `--pool prefork`: prefork is its own default, so Celery takes `worker_pool` from here instead.
worker_pool = "threads"
worker_concurrency = 16
worker_hijack_root_logger = True
worker_redirect_stdouts = False

# --- beat -------------------------------------------------------------------------------------------------------------
beat_enable_remote_control = True
beat_schedule = {
    "dream_due": {"task": "nexus_tasks.dream_due", "schedule": 60.0},
    "recover_buffers": {"task": "nexus_tasks.recover_buffers", "schedule": 300.0},
    "find_embedding_gaps": {"task": "nexus_tasks.find_embedding_gaps", "schedule": 3_600.0},
    "keep_search_fast": {"task": "nexus_tasks.keep_search_fast", "schedule": 60.0},
    "prune": {"task": "nexus_tasks.prune", "schedule": 3_600.0},
}


# --- the settings that depend on the deployment -----------------------------------------------------------------------
# The read and write addresses outrank CELERY_BROKER_URL, which another application may have exported.
_BROKER_URLS = ("broker_url", "broker_read_url", "broker_write_url")
OF_THE_ENDPOINTS = (*_BROKER_URLS, "result_backend")
OF_THE_SETTINGS = (
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
        endpoints: called when Celery first asks for an address.
    """

    def __init__(self, settings: Settings, endpoints: Callable[[], Endpoints]) -> None:
        self._settings, self._endpoints = settings, endpoints

    def __getattr__(self, name: str) -> Any:
        if name in _BROKER_URLS:
            return self._endpoints().broker_url
        if name == "result_backend":
            return self._endpoints().result_url
        if name in OF_THE_SETTINGS:
            return _of(self._settings)[name]
        if name in _CONSTANTS:
            return globals()[name]
        raise AttributeError(name)

    def __dir__(self) -> list[str]:
        return [*_CONSTANTS, *OF_THE_SETTINGS, *OF_THE_ENDPOINTS]


def _of(settings: Settings) -> dict[str, Any]:
    return {
        "broker_transport_options": {
            "global_keyprefix": f"{settings.key_prefix}:celery:",
            "queue_order_strategy": "nexus_tasks.tasks.queue_order:DerivationOften",
            "master_name": settings.redis_master,  # used with Sentinels only
            "visibility_timeout": 3_600,  # seconds; kombu reads it only here; the sweep recovers jobs sooner
            "unacked_restore_throttle": 1,
            "socket_timeout": ANSWER_WITHIN,
            "socket_connect_timeout": ANSWER_WITHIN,
            "socket_keepalive": True,
            # kombu also checks every so many seconds whether the consumer's BRPOP (1 s) is overdue by as many.
            "health_check_interval": ANSWER_WITHIN,
        },
        "result_backend_transport_options": {
            "global_keyprefix": f"{settings.key_prefix}:results:",
            "master_name": settings.redis_master,
        },
        # redis-py's connections to a Unix socket, such as the embedded server's, do not take it.
        "redis_socket_keepalive": _by_tcp(settings),
        "beat_schedule_filename": str(settings.home / "beat-schedule"),
    }


def _by_tcp(settings: Settings) -> bool:
    url = settings.redis_url.get_secret_value() if settings.redis_url else "unix:"  # the embedded server has a socket
    return not url.startswith(("unix:", "socket:", "redis+socket:"))


# --- an existing application ------------------------------------------------------------------------------------------
def add_queues(app: Celery) -> None:
    """Add our queues to an existing application. A queue of the application with the same name stays as it is."""
    queues = app.amqp.queues
    for queue in task_queues:
        if queue.name not in queues:
            queues.select_add(Queue(queue.name, queue.exchange, routing_key=queue.routing_key))


def add_queues_and_schedule(app: Celery) -> None:
    """Add our queues and beat's entries to an existing application. Its own entry of the same name wins."""
    add_queues(app)
    ours = {f"nexus_tasks.{name}": entry for name, entry in beat_schedule.items()}
    app.conf.beat_schedule = {**ours, **app.conf.beat_schedule}  # a new dict: applications may share the old one


# --- as a module: `CELERY_CONFIG_MODULE=nexus_tasks.config`, or the import in a celeryconfig.py -----------------------
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
