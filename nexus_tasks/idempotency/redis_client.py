"""The Redis client for claims. It connects to a Redis URL, or to the master that Redis Sentinels name."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.sentinel import SentinelConnectionPool

SENTINEL_PORT = 26_379
PING_AFTER_IDLE, PONG_WITHIN = 1.0, 2.0  # seconds


class WaryPool(redis.ConnectionPool):
    """A pool that checks an idle connection before its next use.

    The pool pings a connection that has been idle for 1 s, and replaces the connection when it does not answer. A lost
    ping does no harm, whereas a command without an answer may have been executed. When one connection is lost, the pool
    closes its idle connections too. They are probably lost as well, and each would delay its next user by 2 s.
    """

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """A connection that is new, was in use less than 1 s ago, or has answered a ping."""
        connection: Any = super().get_connection(*args, **options)
        idle_since = getattr(connection, "idle_since", None)
        if idle_since is None or time.monotonic() - idle_since < PING_AFTER_IDLE:
            return connection
        try:
            connection.send_command("PING", check_health=False)
            connection.read_response(timeout=PONG_WITHIN)
        except (redis.ConnectionError, redis.TimeoutError, OSError):
            connection.disconnect()
            self.disconnect(inuse_connections=False)
            try:
                connection.connect()
            except BaseException:
                self.release(connection)
                raise
        except redis.ResponseError:
            pass  # an error is an answer too: for example, Redis takes no writes
        return connection

    def release(self, connection: Any) -> None:
        """Take a connection back. If it was lost or its answer was late, redis-py has closed it already."""
        connection.idle_since = time.monotonic()
        super().release(connection)
        if not connection.is_connected:
            self.disconnect(inuse_connections=False)


class _WarySentinelPool(WaryPool, SentinelConnectionPool):
    """A :class:`WaryPool` pool of connections to the master that Sentinels name."""


class Script:
    """A Lua script of the Redis server. It calls the server as redis-py's own ``Script`` does, with the same retries.

    It leaves out redis-py's metrics, its callbacks for answers and its choice by command. They took about a tenth of
    the CPU time of ``.delay()``, which is one such call.
    """

    def __init__(self, redis_client: Any, source: str) -> None:
        self._client, self._source = redis_client, source
        self._sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()  # the name that Redis gives it

    def __call__(self, keys: Sequence[str], args: Sequence[str | int | float]) -> Any:
        """Run the script. Raises the errors of redis-py."""
        command = ("EVALSHA", self._sha, len(keys), *keys, *args)
        try:
            return self._answer(command)
        except redis.exceptions.NoScriptError:  # the server was started or flushed after the last call
            self._client.script_load(self._source)
            return self._answer(command)

    def _answer(self, command: tuple[Any, ...]) -> Any:
        pool = self._client.connection_pool
        connection = pool.get_connection()

        def ask() -> Any:
            connection.send_command(*command)
            return connection.read_response()

        try:
            return connection.retry.call_with_retry(ask, lambda _: connection.disconnect())
        except redis.exceptions.ResponseError as error:
            if takes_no_writes(error) in _ELSEWHERE:
                # After a failover behind a proxy, this connection stays with the former primary. A new one does not.
                connection.disconnect()
            raise
        finally:
            pool.release(connection)


def client(
    url: str, *, timeout: float, master_name: str = ""
) -> Any:  # redis-py annotates synchronous and asynchronous answers alike
    """A client of the Redis at ``url``. The client connects at its first use.

    Args:
        url: the address of a Redis, or addresses of Sentinels in the format of kombu, such as
            ``sentinel://:<password>@one:26379/0;sentinel://two:26379``. User, password and database are those of the
            servers that the Sentinels watch. They are read from the first address.
        timeout: the longest wait for an answer, seconds.
        master_name: the name under which Sentinels know the master; not used with a single Redis.

    Raises:
        ValueError: ``url`` is not an address.
    """
    options: dict[str, Any] = {
        "decode_responses": True,
        "encoding_errors": "replace",  # another program may have written bytes that are no text
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, 5.0),
    }
    if not url.startswith("unix"):
        options["socket_keepalive"] = True
    if not url.startswith("sentinel"):
        return redis.Redis.from_pool(WaryPool.from_url(url, **options))
    nodes = [urlsplit(node) for node in url.split(";")]
    first = nodes[0]
    watchers: Any = redis.Sentinel(  # type: ignore[no-untyped-call]
        [(node.hostname, node.port or SENTINEL_PORT) for node in nodes],
        username=first.username and unquote(first.username),
        password=first.password and unquote(first.password),
        db=int(first.path.strip("/") or 0),
        **options,
    )
    return watchers.master_for(master_name, connection_pool_class=_WarySentinelPool)


_FULL = "Raise Redis' maxmemory, or move other programs' keys out of this Redis."
_REPLICA = "Point NEXUS_REDIS_URL at the primary, or at Redis Sentinel."
_NO_REPLICAS = "Start Redis' replicas, or lower its min-replicas-to-write."
_ELSEWHERE = (_REPLICA, _NO_REPLICAS)  # a new connection may reach another server, which is the primary
# Signs of the errors with which Redis takes no writes at present, and what helps. Redis 6 wraps the error of a command
# inside a script in another text. UNBLOCKED ends a command that waits for a message when the server becomes a replica.
_TAKES_NO_WRITES = {
    "-OOM ": _FULL,
    "MISCONF ": "Redis cannot save to its disk: free space there, or correct what its log names.",
    "-READONLY ": _REPLICA,
    "UNBLOCKED ": _REPLICA,
    "NOREPLICAS ": _NO_REPLICAS,
    "BUSY ": "A script keeps Redis busy: wait, or end it with SCRIPT KILL.",
}


def takes_no_writes(error: redis.exceptions.ResponseError) -> str | None:
    """What helps when ``error`` says that Redis takes no writes at present, for example because its memory is full.

    ``None`` for another error.
    """
    if isinstance(error, redis.exceptions.OutOfMemoryError):
        return _FULL
    if isinstance(error, redis.exceptions.ReadOnlyError | redis.exceptions.MasterDownError):
        return _REPLICA
    return next((remedy for sign, remedy in _TAKES_NO_WRITES.items() if sign in str(error)), None)


_NO_CLUSTER = "Redis Cluster is not supported: name one Redis, or Redis Sentinels, in NEXUS_REDIS_URL."
_OF_CLUSTERS = (
    *(redis.exceptions.ClusterDownError, redis.exceptions.AskError, redis.exceptions.TryAgainError),
    redis.exceptions.ClusterCrossSlotError,
)
_RIGHTS = "Give the user in NEXUS_REDIS_URL the rights of examples/redis-users.acl, or name another user."
_COMMANDS = "Use Redis 6.2 or later, and no proxy that leaves out commands."
_DATABASES = "Name a database that this Redis has in NEXUS_REDIS_URL. The number 0 is always there."
# What Redis answers to a database number that it does not have. Redis Cluster only has the number 0.
_NO_DATABASE = ("DB index is out of range", "invalid DB index", "SELECT is not allowed")


def serves_us_not(error: redis.exceptions.ResponseError) -> str | None:
    """What helps when ``error`` says that this server does not take our commands, until a person corrects something.

    ``None`` for another error.
    """
    if isinstance(error, _OF_CLUSTERS):
        return _NO_CLUSTER
    # A script that may not run a command tells so in two ways, by the version of Redis.
    signs = ("user executing the script", "ACL failure in script")
    if isinstance(error, redis.exceptions.NoPermissionError) or any(sign in str(error) for sign in signs):
        return _RIGHTS
    if any(sign in str(error) for sign in _NO_DATABASE):
        return _DATABASES
    return _COMMANDS if "unknown command" in str(error).lower() else None
