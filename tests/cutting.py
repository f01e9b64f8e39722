"""Cutting a call off at any of its steps: the death of its process, or a connection that breaks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import redis
from redis.connection import AbstractConnection


class Died(BaseException):
    """The process of a call ends here. No handler of errors goes on."""


class Cuts:
    """Cuts a call off at one of its steps: a statement, a commit, a command to Redis, or a write of a file.

    Args:
        end_backend: ends the Postgres backend with this process id.
    """

    def __init__(self, patch: pytest.MonkeyPatch, end_backend: Callable[[int], None]) -> None:
        self.kind, self.left, self.dead, self.where = "", 0, False, ""
        self._end_backend = end_backend
        patch.setattr(
            psycopg.Cursor, "execute", self._postgres(psycopg.Cursor.execute, lambda cursor: cursor.connection)
        )
        patch.setattr(psycopg.Connection, "commit", self._postgres(psycopg.Connection.commit, lambda found: found))
        for name, kind in (("send_packed_command", "before"), ("read_response", "after")):
            patch.setattr(AbstractConnection, name, self._redis(getattr(AbstractConnection, name), kind))
        for name in ("fsync", "replace", "unlink", "link"):
            patch.setattr(os, name, self._file(getattr(os, name)))

    @contextmanager
    def at(self, kind: str, step: int) -> Iterator[None]:
        """Cut off, at its ``step``, what the block calls. ``kind``: died, before or after; empty: not at all."""
        self.kind, self.left, self.dead, self.where = kind, step, False, ""
        try:
            yield
        finally:
            self.kind, self.dead = "", False

    def _now(self, name: str) -> bool:
        if not self.kind:
            return False
        if self.dead:
            raise Died
        self.left -= 1
        if self.left != 0:
            return False
        self.where = name
        if self.kind == "died":
            self.dead = True
            raise Died
        return True

    def _postgres(self, call: Callable[..., Any], connection_of: Callable[[Any], Any]) -> Callable[..., Any]:
        def cut(one: Any, *args: Any, **options: Any) -> Any:
            if not self._now(f"{call.__name__} {str(args[:1])[:200]}"):
                return call(one, *args, **options)
            kind, self.kind = self.kind, ""
            connection = connection_of(one)
            if kind == "before":
                self._end_backend(connection.info.backend_pid)
                return call(one, *args, **options)
            call(one, *args, **options)
            self._end_backend(connection.info.backend_pid)
            connection.pgconn.finish()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        return cut

    def _redis(self, call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def cut(connection: Any, *args: Any, **options: Any) -> Any:
            if (self.kind in (kind, "died") or self.dead) and self._now(f"redis {call.__name__}"):
                self.kind = ""
                if kind == "after":
                    call(connection, *args, **options)
                connection.disconnect()
                raise redis.ConnectionError("Connection closed by server.")
            return call(connection, *args, **options)

        return cut

    def _file(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def cut(*args: Any, **options: Any) -> Any:
            if self.kind == "died":
                self._now(f"{call.__name__} {args[:1]}")
            return call(*args, **options)

        return cut
