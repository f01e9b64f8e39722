"""Ending a statement whose connection has gone silent, and no other statement.

On a link that is down, TCP ends the connection (see ``CONNECT_ARGS`` in ``engine.py``). TCP notices nothing when a
proxy, a load balancer or a frozen server takes the bytes and never answers. A time limit would end long statements as
well, so this module asks Postgres: a statement that has had no answer for 4 s asks on a new connection whether its
session is at work. While it is, the statement goes on, and asks again every 4 s. When it is not, or when a new
connection gets no answer either, the statement ends after 1 more second.

Behind a connection pooler (PgBouncer) a session cannot be found by its id. There only TCP ends a silent connection.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

QUIET = 4.0  # seconds without an answer before a statement asks about its session, and between two questions
ANSWER_WITHIN = 4  # seconds for a new connection, and for its answer
GRACE = 1.0  # seconds for an answer that is on its way while the session is idle already

# The session's id can be used again by another server, its start cannot.
WHO_AM_I = "SELECT pg_backend_pid(), backend_start::text FROM pg_stat_get_activity(pg_backend_pid())"
# A session that waits for its client has nothing to do for the client that waits for it.
_AT_WORK = """
SELECT state NOT LIKE 'idle%%' AND coalesce(wait_event_type, '') <> 'Client'
FROM pg_stat_get_activity(%s) WHERE backend_start = %s::timestamptz
"""


class SilentConnection(psycopg.OperationalError):
    """Postgres does not answer on this connection."""


class WatchedConnection(psycopg.Connection[TupleRow]):
    """A psycopg connection whose statements end when the connection is silent."""

    session: tuple[int, str] | None = None  # the process and the start of the server's session; ``None``: not known
    introduced = False  # whether the server has said which session this is

    def introduce(self, pid: int, started: str) -> None:
        """Note the answer to ``WHO_AM_I``: the server's session of this connection."""
        self.session = (pid, started) if pid == self.info.backend_pid else None  # else a pooler stands between
        self.introduced = True

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for an answer, as psycopg does; every statement, commit and rollback passes here.

        Raises:
            SilentConnection: the connection is silent. It is closed.
        """
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass psycopg's own steps through. A step gets 0 when 0.1 s have passed without an answer."""
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
        """Whether the server's session works on the statement; ``True`` when that cannot be told."""
        if self.session is None:
            return self.introduced  # the first statements take milliseconds
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
            return True  # an answer, such as "too many clients"; or a lost link, which TCP notices here as well
        return bool(found and found[0] is not False)


class _Impatient(psycopg.Connection[TupleRow]):
    """A connection that waits for few seconds."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """As psycopg, within ``ANSWER_WITHIN``."""
        try:
            return super().wait(gen, interval, timeout or ANSWER_WITHIN)
        except psycopg.errors._WaitTimeout as error:
            self.pgconn.finish()
            raise TimeoutError from error
