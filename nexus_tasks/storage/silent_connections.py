"""Ending a statement when its connection to Postgres is silent. A long statement on a live connection goes on.

When a network link is down, TCP ends the connection (see ``CONNECT_ARGS`` in ``engine.py``). TCP does not end the
connection when a proxy, a load balancer or a frozen server takes the bytes and never answers. A time limit for
statements would also end long statements. Therefore this module asks Postgres whether it still executes the statement:

1. When a statement has had no answer for 4 s, the process opens a second connection. On this connection it asks
   Postgres whether the session of the first connection is executing the statement.
2. If so, the process goes on waiting, and asks again every 4 s.
3. If the session is not executing the statement, or if the second connection gets no answer within 4 s, the process
   waits for 1 more second. Then it closes the first connection, and the statement raises an error.

Behind a connection pooler such as PgBouncer, this module cannot find a session by its id. Only TCP then ends a silent
connection.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

QUIET = 4.0  # the process asks about the session each time this many seconds have passed without an answer
ANSWER_WITHIN = 4  # seconds; the longest wait for the second connection to open, and for each of its answers
# Seconds of a last wait for the answer. The session may have finished the statement and sent the answer just before the
# second connection asked about the session.
GRACE = 1.0

# Another session may later have the same process id. The process id and the start time together identify a session.
WHO_AM_I = "SELECT pg_backend_pid(), backend_start::text FROM pg_stat_get_activity(pg_backend_pid())"
# A session whose wait event type is `Client` waits until it can read bytes from us or write bytes to us, while we wait
# for its answer. So bytes were lost or are held up on the way, and the session does not count as at work.
_AT_WORK = """
SELECT state NOT LIKE 'idle%%' AND coalesce(wait_event_type, '') <> 'Client'
FROM pg_stat_get_activity(%s) WHERE backend_start = %s::timestamptz
"""


class SilentConnection(psycopg.OperationalError):
    """Postgres does not answer on this connection."""


class WatchedConnection(psycopg.Connection[TupleRow]):
    """A psycopg connection that closes itself when Postgres does not answer. Its statement then raises an error."""

    session: tuple[int, str] | None = None  # the process id and the start time of the session; ``None``: not known
    introduced = False  # whether Postgres has answered ``WHO_AM_I`` on this connection

    def introduce(self, pid: int, started: str) -> None:
        """Note the answer to ``WHO_AM_I``: the process id and the start time of this connection's session."""
        # With a connection pooler, the process id that the pooler gave to the client differs from ``pid``.
        self.session = (pid, started) if pid == self.info.backend_pid else None
        self.introduced = True

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for an answer. psycopg calls this method for every statement, commit and rollback.

        Raises:
            SilentConnection: the connection was silent, and this method closed it.
        """
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run the steps of psycopg's generator ``waiting``, and watch the time without an answer.

        psycopg resumes a step with 0 when the connection was not ready for 0.1 s, and with another number when it is.
        """
        try:
            step = next(waiting)
            started = asked = time.monotonic()
            silent_since = None
            while True:
                ready = yield step
                now = time.monotonic()
                if ready:
                    asked, silent_since = now, None
                elif silent_since is not None:
                    if now - silent_since >= GRACE:
                        self.pgconn.finish()
                        raise SilentConnection(f"no answer for {now - started:.0f} s, the connection is silent")
                elif now - asked >= QUIET:
                    silent_since = None if self._session_is_at_work() else time.monotonic()
                    asked = time.monotonic()
                step = waiting.send(ready)
        except StopIteration as end:
            return end.value

    def _session_is_at_work(self) -> bool:
        """Whether the session is executing the statement.

        The result is also ``True`` when Postgres refuses the second connection or the question, and behind a pooler.
        """
        if self.session is None:
            # There are two cases. When Postgres has answered ``WHO_AM_I``, a pooler hides the session. The result is
            # then ``True``, so only TCP ends the connection. When Postgres has not answered ``WHO_AM_I``, the
            # connection is still being set up. The setup takes milliseconds, and there was no answer for 4 s. So the
            # result is ``False``: the connection is silent.
            return self.introduced
        address = self.info.get_parameters() | {"host": self.info.host, "port": str(self.info.port)}
        if "hostaddr" in address:
            address["hostaddr"] = self.info.hostaddr
        address |= {"password": self.info.password, "connect_timeout": str(ANSWER_WITHIN)}
        try:
            with _Impatient.connect(make_conninfo("", **address), autocommit=True) as other:
                found = other.execute(_AT_WORK, self.session).fetchone()
        except (psycopg.errors.ConnectionTimeout, psycopg.errors.QueryCanceled, TimeoutError):
            return False
        except psycopg.Error:
            # Either Postgres answered, for example "too many clients", so it is not silent. Or the network link is
            # down, so TCP will end the first connection.
            return True
        return bool(found and found[0] is not False)


class _Impatient(psycopg.Connection[TupleRow]):
    """The second connection. It waits for each answer at most ``ANSWER_WITHIN`` seconds."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for an answer, at most ``ANSWER_WITHIN`` seconds.

        Raises:
            TimeoutError: there is no answer. This method has closed the connection.
        """
        try:
            return super().wait(gen, interval, timeout or ANSWER_WITHIN)
        except psycopg.errors._WaitTimeout as error:
            self.pgconn.finish()
            raise TimeoutError from error
