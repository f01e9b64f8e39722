"""Patch of kombu 5.7: a worker whose Redis takes no writes waits for it, instead of ending or losing messages.

Redis refuses writes while its memory or its disk is full, and while it is a replica. For kombu these answers are errors
of a command: one in the event loop ends the worker. With this patch they are lost connections, and no consumer connects
while Redis takes no writes. So Celery says why, and tries to connect again after 2 s, 4 s and so on up to 30 s.
Meanwhile the worker takes no message out of a queue, and acknowledges the messages of runs that end.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError, ResponseError

from nexus_tasks.idempotency.redis_client import takes_no_writes


def lost_when_refused(connection_class: Any, *, probe: str) -> Any:
    """A subclass of redis-py's ``connection_class`` that a refused write closes.

    Args:
        probe: a key for the question, at connecting, whether Redis takes writes; empty: do not ask.
    """

    class Connection(connection_class):  # type: ignore[misc]
        def on_connect_check_health(self, *args: Any, **options: Any) -> None:
            super().on_connect_check_health(*args, **options)
            if probe:
                # Redis checks this command like any write, and it changes nothing.
                self.send_command("SETRANGE", probe, 0, "", check_health=False)
                self.read_response()

        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except ResponseError as error:
                if not takes_no_writes(error):
                    raise
                self.disconnect()  # a pipeline leaves answers unread
                raise ConnectionError(f"Redis takes no writes: {error}") from error

    return Connection
