"""The Celery settings that jobs rely on: each would cost messages, chords or money if it were lost."""

from __future__ import annotations

from typing import Any

import pytest

from nexus_tasks import config
from nexus_tasks.deployment import Deployment

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
    "redis_socket_keepalive": True,
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
    "health_check_interval": 5,
}


@pytest.mark.parametrize("name", RELIED_ON)
def test_celery_reads_what_jobs_rely_on(name: str) -> None:
    assert Deployment().app.conf[name] == RELIED_ON[name]


def test_the_broker_is_asked_to_wait_check_and_restore() -> None:
    assert {name: config.broker_transport_options[name] for name in TRANSPORT} == TRANSPORT


def test_nothing_turns_batches_of_messages_off() -> None:
    """Any retry option of redis-py does, without a word: see kombu's ``supports_batch_publish``."""
    assert not [name for name in config.broker_transport_options if "retry" in name]


def test_every_queue_is_consumed_from() -> None:
    assert (
        set(Deployment().app.amqp.queues)
        == set(config.QUEUES)
        == {"derive", "reflect", "digest", "capture", "maintenance"}
    )
