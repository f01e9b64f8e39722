"""Patch of kombu 5.7: while Redis takes no writes, a worker waits. Without the patch the worker ends or loses messages.

Redis refuses writes while its memory or its disk is full, and while it is a replica. kombu treats a refused write as an
error of one command. Such an error in the event loop ends the worker. With this patch kombu treats a refused write as a
lost connection. The consumer does not connect while Redis takes no writes. Celery logs the reason, and tries to connect
again after 2 s, 4 s and so on up to 30 s. Until the consumer is connected, the worker takes no message out of a queue.
It still acknowledges the messages of runs that end.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError, ResponseError

from nexus_tasks.idempotency.redis_client import takes_no_writes


def lost_when_refused(connection_class: Any, *, probe: str) -> Any:
    """A subclass of redis-py's ``connection_class``. Its connections close after a refused write.

    Args:
        probe: the key of a test write that every new connection makes. With an empty text no test write is made.
    """

    class Connection(connection_class):  # type: ignore[misc]
        def on_connect_check_health(self, *args: Any, **options: Any) -> None:
            super().on_connect_check_health(*args, **options)
            if probe:
                # Redis checks this command like any other write. The command changes nothing.
                self.send_command("SETRANGE", probe, 0, "", check_health=False)
                self.read_response()

        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except ResponseError as error:
                if not takes_no_writes(error):
                    raise
                self.disconnect()  # because further answers of a pipeline may be unread
                raise ConnectionError(f"Redis takes no writes: {error}") from error

    return Connection
