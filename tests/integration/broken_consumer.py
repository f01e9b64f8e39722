"""Remote-control commands that break a worker's consumer, and a watchdog that need not be waited for so long."""

from __future__ import annotations

import time
from typing import Any

from celery.worker.control import control_command

from nexus_tasks.idempotency.worker import watchdog

watchdog.LOOK_EVERY, watchdog.PATIENCE, watchdog.TURN_WITHIN = 0.5, 4.0, 2.0


@control_command()  # type: ignore[untyped-decorator]
def stop_polling(state: Any) -> str:
    """Let the consumer ask for no more messages, as after a reconnection that went wrong."""
    channel = state.consumer.task_consumer.channel
    channel.connection.cycle.discard(channel)
    return "stopped"


@control_command()  # type: ignore[untyped-decorator]
def block_the_loop(state: Any) -> None:  # noqa: ARG001
    """Let the event loop wait for something that never comes."""
    time.sleep(1_000)
