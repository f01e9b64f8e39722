"""Find out whether another process is connected to the embedded Postgres or Redis."""

from __future__ import annotations

_OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


def in_use(database_url: str, redis_url: str) -> bool:
    """Whether another client is connected to Redis or Postgres. The connections of this call do not count.

    The result is ``False`` when a server does not answer, because another process is then stopping the servers.
    """
    import psycopg
    import redis

    try:
        with redis.Redis.from_url(redis_url) as client:
            if len(client.client_list()) > 1:
                return True
        with psycopg.connect(database_url.replace("+psycopg", "", 1)) as connection:
            row = connection.execute(_OTHERS).fetchone()
    except (redis.ConnectionError, psycopg.OperationalError):
        return False
    return row is not None and row[0] > 0
