"""Patch of kombu 5.7's connections to Redis: a worker keeps one client per channel, and checks idle ones before use.

kombu makes a client object for each acknowledgement and event. Each new client fills a table of about 200 callbacks.
Therefore making a client takes more time than the Redis command itself. For short jobs, a worker spends a fifth of its
time on making clients.

After a failover without RST, the connections of a channel's pool are silent. The worker's event loop would wait 5 s for
an answer on each of them, one after the other: for acknowledgements, for events, for messages. The pool of this patch
pings a connection that was idle for 1 s, and a lost connection takes the idle ones of its pool with it.

A worker that has lost its connection to Redis makes a new one. At each of its turns, kombu's event loop still calls the
lost connection, and so keeps the connection's objects and its epoll file. With this patch, the event loop forgets a
connection that is closed.

When the key of a queue is no list, because another program has written it, kombu's error would end every worker. This
patch renames the key. Reconcile and the sweep send the messages again that were in it.
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import Any

from celery import bootsteps
from kombu.transport import redis
from redis.exceptions import ResponseError

from nexus_tasks.idempotency.redis_client import WaryPool

log = logging.getLogger(__name__)

KEPT_SECONDS = 30 * 86_400  # of a key that was renamed


class Channel(redis.Channel):  # type: ignore[misc]
    """A channel of kombu that keeps one Redis client. Threads may share this client."""

    _kept: Any = None
    keyprefix_fanout: str

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)
        kept = self._kept
        if kept is None or kept.connection_pool is not self.pool:  # a lost connection leads to a new pool
            kept = self._kept = super()._create_client()
        return kept

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except ResponseError as error:
            self._set_aside(error, *self.active_queues)
            raise Empty from None

    def _size(self, queue: str) -> int:
        try:
            return int(super()._size(queue))
        except ResponseError as error:
            self._set_aside(error, queue)
            return 0

    def _set_aside(self, error: ResponseError, *queues: str) -> None:
        if "WRONGTYPE" not in str(error):
            raise error
        for queue in queues:
            key, aside = f"{self.global_keyprefix}{queue}", f"{self.global_keyprefix}damaged:{queue}"
            if self.client.type(key) not in (b"list", b"none"):
                self.client.rename(key, aside)
                self.client.expire(aside, KEPT_SECONDS)
                log.warning("The key %s was no list, and is set aside as %s: it must be a queue.", key, aside)

    def _get_pool(self, asynchronous: bool = False) -> Any:
        if asynchronous:  # the event loop itself reads from these connections
            return super()._get_pool(asynchronous=True)
        options = self._connparams()
        self.keyprefix_fanout = self.keyprefix_fanout.format(db=options["db"])  # as kombu does
        return WaryPool(**options)


class Poller(redis.MultiChannelPoller):  # type: ignore[misc]
    """A connection's part in the event loop. It ends with the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.on_tick, self.own = set[Any](), set[Any]()  # what the loop calls at each turn, and what of it is ours

    def close(self) -> None:
        """Take out of the event loop what :func:`register_with_event_loop` has added."""
        super().close()
        self.on_tick -= self.own


_register = redis.Transport.register_with_event_loop


def register_with_event_loop(transport: Any, connection: Any, loop: Any) -> None:
    """Do what kombu's method does, and note in the transport's :class:`Poller` what the loop then calls."""
    before = set(loop.on_tick)
    _register(transport, connection, loop)
    transport.cycle.on_tick, transport.cycle.own = loop.on_tick, loop.on_tick - before


class RedisClientStep(bootsteps.Step):  # type: ignore[misc]
    """Makes this worker process use :class:`Channel` and :class:`Poller` for its connections to Redis.

    Other brokers are not affected.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        redis.Transport.Channel = Channel
        redis.MultiChannelPoller = Poller
        redis.Transport.register_with_event_loop = register_with_event_loop
