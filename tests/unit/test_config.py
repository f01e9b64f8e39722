"""The Celery settings that jobs rely on: each would cost messages, chords or money if it were lost."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from nexus_tasks import config
from nexus_tasks.deployment import Deployment
from nexus_tasks.settings import Settings

RELIED_ON: dict[str, Any] = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,
    "task_ignore_result": True,
    "task_track_started": True,
    "worker_send_task_events": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_pool_acquire_timeout": 5,
    "redis_socket_timeout": 5.0,
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    "result_accept_content": ["json"],
    "result_chord_expires": 7 * 86_400,
    "task_create_missing_queues": False,
    "worker_pool": "threads",
    "beat_enable_remote_control": True,
}
TRANSPORT: dict[str, Any] = {
    "visibility_timeout": 3_600,
    "unacked_restore_throttle": 1,
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 2,
}


@pytest.mark.parametrize("name", RELIED_ON)
def test_celery_reads_what_jobs_rely_on(name: str) -> None:
    assert Deployment().app.conf[name] == RELIED_ON[name]


@pytest.mark.parametrize(
    ("url", "keeps_alive"),
    [("redis://somewhere/0", True), ("rediss://a", True), ("unix:///run/redis.sock?db=1", False)],
)
def test_a_connection_by_tcp_is_kept_alive(url: str, keeps_alive: bool) -> None:
    """redis-py takes no such option for a Unix socket: chords failed with it."""
    settings = Settings(redis_url=SecretStr(url), database_url=SecretStr("postgresql://somewhere/nexus"))
    assert Deployment(settings).app.conf.redis_socket_keepalive is keeps_alive


def test_the_broker_is_asked_to_wait_check_and_restore() -> None:
    assert {name: config.broker_transport_options[name] for name in TRANSPORT} == TRANSPORT


def test_nothing_turns_batches_of_messages_off() -> None:
    """Any retry option of redis-py does, without a word: see kombu's ``supports_batch_publish``."""
    assert not [name for name in config.broker_transport_options if "retry" in name]


def test_every_queue_is_consumed_from() -> None:
    assert (
        set(Deployment().app.amqp.queues)
        == set(config.QUEUES)
        == {"derive", "reflect", "digest", "capture", "maintenance", "urgent"}
    )


def test_a_namespace_with_slow_calls_leaves_threads_of_a_worker_to_others() -> None:
    """With as many threads as a namespace may have runs, no other namespace's job began for as long as a call lasts."""
    runs = Settings.model_fields["namespace_concurrency"].default
    assert config.worker_concurrency - runs >= runs // 4
