"""A process that freezes while it sends a statement, seen from Postgres: a relay keeps the rest of the bytes back."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import Transient
from nexus_tasks.storage import engine
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.long_statements import PIECE, size_of
from nexus_tasks.storage.reals import Reals
from tests.sandbox import Sandbox, eventually

LONG = 90.0
LOCK = 4_711
PORT = ".s.PGSQL.5432"


class Relay:
    """A socket in front of Postgres' own; once told to, it lets one more piece through, and nothing after it."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder, self.server = folder, server
        self.left: int | None = None  # bytes to let through
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / PORT))
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def stall(self) -> None:
        self.left = PIECE

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self.server))
        with client, server:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(PIECE)
                    if not data:
                        return
                    if ready is client and self.left is not None:
                        data, self.left = data[: self.left], max(self.left - len(data), 0)
                    if data:
                        (server if ready is client else client).sendall(data)


@pytest.fixture
def relay(here: Sandbox) -> Iterator[Relay]:
    [folder] = parse_qs(urlsplit(here.database_url).query)["host"]
    [server] = Path(folder).glob(".s.PGSQL.[0-9]*[0-9]")
    made = Relay(here.folder, server)
    yield made
    made.close()


def through(relay: Relay, url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query=f"host={relay.folder}&port={PORT.rpartition('.')[2]}").geturl()


def test_a_statement_that_is_kept_back_in_the_middle_costs_its_session(here: Sandbox, relay: Relay) -> None:
    database = Database(through(relay, here.database_url))
    with database.engine.connect() as connection:
        connection.execute(text("SET idle_in_transaction_session_timeout = 500"))
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        relay.stall()

        def send() -> None:
            with pytest.raises(DBAPIError):
                connection.execute(text("SELECT length(:said)"), {"said": "x" * 3 * PIECE})

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        eventually(lambda: relay.left == 0, within=LONG)
        eventually(lambda: not here.sql("SELECT 1 FROM pg_stat_activity WHERE pid = :pid", pid=pid), within=LONG)
        assert here.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = :lock", lock=LOCK) == []
        sending.join(LONG)
        assert not sending.is_alive()
        connection.invalidate()
    database.dispose()


def lock_for(database: Database, milliseconds: int) -> None:
    with database.transaction() as tx:
        tx.execute(text(f"SET LOCAL lock_timeout = {milliseconds}"))
        tx.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))


@pytest.mark.usefixtures("here")
def test_no_statement_starts_parallel_processes() -> None:
    with default_deployment().database.transaction() as tx:
        tx.execute(text("SET LOCAL parallel_setup_cost = 0"))
        tx.execute(text("SET LOCAL parallel_tuple_cost = 0"))
        tx.execute(text("SET LOCAL min_parallel_table_scan_size = 0"))
        plan = tx.scalars(text("EXPLAIN SELECT count(*) FROM pg_proc WHERE prosrc LIKE '%a'")).all()
    assert not [line for line in plan if "Gather" in line]


def test_nobody_waits_for_a_lock_for_ever(here: Sandbox) -> None:
    with default_deployment().database.transaction() as tx:
        assert tx.scalar(text("SHOW lock_timeout")) == "16s"
        tx.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        database = Database(here.database_url)
        with pytest.raises(Transient, match="lock timeout"):  # it passes: the job is run again
            lock_for(database, 50)
        database.dispose()


@pytest.mark.usefixtures("here")
def test_a_transaction_that_stands_still_is_ended_within_a_lease() -> None:
    """Postgres keeps the time; that it does is not tried here."""
    with default_deployment().database.transaction() as tx:
        allowed = tx.scalar(
            text("SELECT extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)")
        )
        assert 0 < allowed < default_deployment().settings.lease_seconds


def test_many_rows_at_once_are_written_all_the_same(here: Sandbox) -> None:
    database = Database(here.database_url)
    with database.transaction() as tx:
        tx.execute(text("CREATE TEMPORARY TABLE long (said text)"))
        tx.execute(text("INSERT INTO long VALUES (:said)"), [{"said": "x" * n} for n in (1, PIECE, 3 * PIECE)])
        assert tx.scalar(text("SELECT sum(length(said)) FROM long")) == 1 + 4 * PIECE
    database.dispose()


def test_the_size_of_a_statement_is_never_underestimated() -> None:
    vectors = Reals(np.ones((8, 384), dtype=np.float32))  # more than numpy prints
    assert size_of("SELECT 1", {"reals": vectors}) >= len("SELECT 1") + 8 * 384 * 8
    values = {"text": "ä€😀" * 9, "bytes": b"x" * 9, "list": ["é", 17, None, [0.5]], "when": datetime.now(UTC)}
    sent = sum(len(json.dumps(value, default=str, ensure_ascii=False).encode()) for value in values.values())
    assert size_of("SELECT 1", values) >= sent + len("SELECT 1")
    assert size_of("SELECT 1", None) >= len("SELECT 1")


def test_a_connection_that_was_idle_is_looked_at_before_it_is_trusted(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(here.database_url)
    with database.transaction() as tx:
        pid = tx.scalar(text("SELECT pg_backend_pid()"))
    with database.transaction() as tx:
        assert tx.scalar(text("SELECT pg_backend_pid()")) == pid
    monkeypatch.setattr(engine, "PING_AFTER_IDLE", 0.0)
    here.sql("SELECT pg_terminate_backend(:pid, 60000)", pid=pid)
    with database.transaction() as tx:
        assert tx.scalar(text("SELECT pg_backend_pid()")) != pid
    database.dispose()
