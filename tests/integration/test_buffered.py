"""From the session buffer into Postgres: what was kept while it was away is stored once, by whoever has the folder."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import typer
from sqlalchemy import text

from nexus_tasks import Message, Nexus, worker
from nexus_tasks.buffer import SessionBuffer, entry
from nexus_tasks.buffer.session import SessionFiles
from nexus_tasks.cli import buffer as buffer_commands
from nexus_tasks.deployment import Deployment, default_deployment, use
from nexus_tasks.errors import Transient
from nexus_tasks.services import buffer_entries, buffer_flush
from nexus_tasks.storage import namespaces
from tests import commandline
from tests.commandline import nexus
from tests.integration.serve_process import serve_process
from tests.sandbox import Sandbox, app, eventually


@contextmanager
def away(name: str) -> Iterator[None]:
    """Meanwhile the server of this setting does not answer."""
    with pytest.MonkeyPatch.context() as patch:
        # The database keeps its name: only the deployment that buffered a message stores it.
        nowhere = "unix:///nowhere/redis.sock?db=0" if "REDIS" in name else f"{os.environ[name]}&hostaddr=127.0.0.1"
        patch.setenv(name, nowhere)
        elsewhere = Deployment()
        with use(elsewhere):
            yield
        elsewhere.close()


@pytest.fixture
def buffer(here: Sandbox) -> SessionBuffer:
    """The deployment's session buffer, as another process sees it."""
    return SessionBuffer(here.folder / "buffer")


def said(here: Sandbox) -> list[str]:
    return [content for (content,) in here.sql("SELECT content FROM memories WHERE level = 'raw' ORDER BY id")]


def turns(*texts: str) -> list[Message]:
    return [Message(content=text) for text in texts]


def run(*arguments: str) -> Any:
    """The document that a command prints, run in this process."""
    return json.loads(commandline.nexus(*arguments, "--json").stdout)


def test_with_postgres_away_ingest_buffers_and_the_next_call_stores(here: Sandbox, buffer: SessionBuffer) -> None:
    nexus = Nexus()
    with away("NEXUS_DATABASE_URL"):
        receipt = nexus.ingest("acme", "chat", turns("one", "ok", "ok"))
        assert (receipt.messages, receipt.stored, receipt.enqueued, receipt.buffered) == (3, 0, 0, 3)
        assert nexus.remember("acme", "tea").buffered == 1
        assert buffer.has("acme", "chat")
    assert nexus.ingest("acme", "chat", turns("two")).buffered == 0
    assert said(here) == ["one", "ok", "ok", "tea", "two"]
    assert not buffer.pending()
    assert here.sql("SELECT count(*) FROM derivations WHERE state = 'wanted'") == [(5,)]


def test_a_session_is_shown_and_ended_with_what_waits_in_the_buffer(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter gives the session to a model, and erases its newest message."""
    monkeypatch.setattr(buffer_flush, "LOOK_EVERY", 0.0)
    nexus = Nexus()
    nexus.ingest("acme", "chat", turns("one"))
    with away("NEXUS_DATABASE_URL"):
        nexus.ingest("acme", "chat", turns("two"))
    assert [one.content for one in nexus.session("acme", "chat", newest=True).said] == ["one", "two"]
    assert not buffer.pending()
    with away("NEXUS_DATABASE_URL"):
        nexus.ingest("acme", "chat", turns("three"))
    nexus.end_session("acme", "chat")
    assert said(here) == ["one", "two", "three"]
    assert nexus.session("acme", "chat").ended_at is not None


def test_a_message_stays_behind_those_that_another_process_has_just_buffered(
    here: Sandbox, buffer: SessionBuffer
) -> None:
    nexus = Nexus()
    nexus.ingest("acme", "chat", turns("one"))  # so this process has looked at the buffer
    with away("NEXUS_DATABASE_URL"):
        nexus.ingest("acme", "chat", turns("two"))
    nexus.ingest("acme", "chat", turns("three"))
    assert said(here) == ["one", "two", "three"]
    with away("NEXUS_DATABASE_URL"):
        nexus.ingest("acme", "chat", turns("four"))
    nexus.end_session("acme", "chat")
    assert said(here) == ["one", "two", "three", "four"]
    assert not buffer.pending()


def test_the_look_of_one_tenant_is_not_the_look_of_another(here: Sandbox, buffer: SessionBuffer) -> None:
    """A server of several namespaces stores each one's buffered messages before what that one says next."""
    tenants = "acme", "brook"
    with away("NEXUS_DATABASE_URL"):
        for tenant in tenants:
            assert Nexus(namespaces=[tenant]).ingest(tenant, "chat", turns(f"{tenant} one")).buffered == 1
    for tenant in tenants:  # in one process, and within a second
        assert Nexus(namespaces=[tenant]).ingest(tenant, "chat", turns(f"{tenant} two")).stored == 1
    assert said(here) == ["acme one", "acme two", "brook one", "brook two"]
    assert not buffer.pending()


def test_a_write_behind_buffered_messages_waits_for_another_call_that_stores_them(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_flush, "_PATIENCE", 30.0)  # a busy machine may take long to release the lock
    with away("NEXUS_DATABASE_URL"):
        Nexus().ingest("acme", "chat", turns("one"))
    with ThreadPoolExecutor() as pool:
        with buffer.storing() as mine:
            assert mine
            writing = pool.submit(Nexus().ingest, "acme", "chat", turns("two"))
            time.sleep(0.3)  # long enough for a write that does not wait
            assert not writing.done()
        assert writing.result().stored == 1
    assert said(here) == ["one", "two"]


def test_a_write_is_buffered_behind_messages_that_another_process_stores_for_long(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an outage, when a worker stores thousands of messages. Other sessions do not wait."""
    monkeypatch.setattr(buffer_flush, "_PATIENCE", 0.1)
    nexus = Nexus()
    with away("NEXUS_DATABASE_URL"):
        nexus.ingest("acme", "chat", turns("one"))
    with buffer.storing() as mine:
        assert mine
        assert nexus.ingest("acme", "chat", turns("two")).buffered == 1
        assert nexus.ingest("acme", "another", turns("elsewhere")).stored == 1
        with pytest.raises(Transient, match="chat"):  # the messages would open the session again
            nexus.end_session("acme", "chat")
    assert nexus.ingest("acme", "chat", turns("three")).stored == 1
    assert said(here) == ["elsewhere", "one", "two", "three"]


def test_a_server_that_takes_no_writes_shows_what_it_has(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text in the buffer of the machine does not keep it from reading a standby."""
    monkeypatch.setattr(buffer_flush, "LOOK_EVERY", 0.0)
    nexus = Nexus()
    nexus.ingest("acme", "chat", turns("Ann drinks tea."))
    with away("NEXUS_DATABASE_URL"):
        nexus.ingest("acme", "chat", turns("Ann drinks coffee."))
    with monkeypatch.context() as patch:
        patch.setenv("NEXUS_DATABASE_URL", f"{here.database_url}&options=-c%20default_transaction_read_only%3Don")
        with here.another():
            assert [one.content for one in Nexus().session("acme", "chat").said] == ["Ann drinks tea."]
            assert [one.content for one in Nexus().search("acme", "tea")] == ["Ann drinks tea."]
            assert Nexus().ingest("acme", "chat", turns("Ann drinks milk.")).buffered == 1
    assert buffer.pending()
    assert nexus.ingest("acme", "chat", turns("Ann drinks water.")).stored == 1
    assert said(here) == ["Ann drinks tea.", "Ann drinks coffee.", "Ann drinks milk.", "Ann drinks water."]


def test_the_same_call_again_is_a_repeat_whether_it_was_buffered_or_not(here: Sandbox) -> None:
    nexus = Nexus()
    call = [
        *turns("one", "ok", "ok"),
        Message(content="timed", occurred_at=datetime(2026, 3, 1)),
        Message(id="m", content="x"),
    ]
    nexus.ingest("acme", "first", call)
    with away("NEXUS_DATABASE_URL"):
        nexus.ingest("acme", "first", call)
        nexus.ingest("acme", "second", call)
    with here.another():  # which stores what is buffered first
        assert Nexus().ingest("acme", "second", call).duplicates == 5
    assert here.sql("SELECT count(*) FROM memories WHERE level = 'raw'") == [(10,)]


def test_observers_the_end_and_the_time_of_buffering_are_kept(here: Sandbox) -> None:
    nexus = Nexus()
    before = datetime.now(UTC)
    with away("NEXUS_DATABASE_URL"):
        nexus.ingest("acme", "chat", turns("one"), observers=["ops", "assistant"], end=True)
    after = datetime.now(UTC)
    assert buffer_flush.store_buffer(default_deployment()).stored == 1
    assert here.sql("SELECT observer FROM derivations ORDER BY observer") == [("assistant",), ("ops",)]
    assert here.sql("SELECT ended_at IS NOT NULL FROM sessions") == [(True,)]
    assert here.sql("SELECT reason FROM digest_requests") == [("session_end",)]
    [(occurred_at,)] = here.sql("SELECT occurred_at FROM memories")
    assert before <= occurred_at <= after


def test_entries_that_say_the_same_are_two_and_storing_again_adds_none(here: Sandbox, buffer: SessionBuffer) -> None:
    for message in ("ok", "ok", "fine"):
        buffer.append("acme", "chat", message)
    buffer.append("acme", "chat", {"role": "assistant", "content": "bye", "id": "mine"})
    buffer.close()
    copies = {path: path.read_bytes() for path in Path(buffer.folder).rglob("*.open")}
    assert buffer_flush.store_buffer(default_deployment()).stored == 4
    for path, data in copies.items():  # what a power cut does to a deletion that had not reached the disk
        path.write_bytes(data)
    with here.another():  # and another process stores it then
        report = buffer_flush.store_buffer(default_deployment())
    assert (report.stored, report.duplicates) == (0, 4)
    assert said(here) == ["ok", "ok", "fine", "bye"]


def test_a_copied_buffer_adds_its_own_entries_and_repeats_none(
    here: Sandbox, buffer: SessionBuffer, tmp_path: Path
) -> None:
    """Two machines that were made from one image use the same session, or a home was restored from a backup."""
    buffer.append("acme", "chat", "before")
    shutil.copytree(buffer.folder, tmp_path / "buffer")
    copy = SessionBuffer(tmp_path / "buffer")
    buffer.append("acme", "chat", "on the first machine")
    copy.append("acme", "chat", "on the second machine")
    assert buffer_flush.store_buffer(default_deployment()).stored == 2
    report = buffer_flush.store_buffer(default_deployment(), buffer=copy)
    assert (report.stored, report.duplicates) == (1, 1)
    assert said(here) == ["before", "on the first machine", "on the second machine"]


def test_what_can_never_be_stored_is_set_aside_and_the_rest_stored(here: Sandbox, buffer: SessionBuffer) -> None:
    buffer.append("acme", "chat", "good")
    buffer.append("acme", "chat", {"content": "bad", "role": "nobody"})
    buffer.append("acme", "chat", {"content": ""})
    buffer.append("acme", "chat", "fine")
    buffer.append("acme", "chat", "what", "a type of another release")
    buffer.append("not a namespace!", "chat", "lost?")
    report = buffer_flush.store_buffer(default_deployment())
    assert (report.stored, report.unknown) == (2, 1)
    assert [damage.kind for damage in report.damages] == ["refused"] * 3
    [lost] = [damage for damage in report.damages if damage.agent != "acme"]
    assert b'"lost?"' in b64decode(json.loads(Path(lost.kept_as).read_text())["raw_base64"])
    assert said(here) == ["good", "fine"]
    assert buffer.pending(), "an entry of another release waits for that release"
    assert run("buffer", "status")["quarantined"] == 3


def test_an_entry_of_a_newer_release_waits_until_that_release_stores_it(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer.append("acme", "chat", "one")
    buffer.append("acme", "chat", "two", "sketch")
    for _ in range(2):
        report = buffer_flush.store_buffer(default_deployment())
        assert (report.unknown, report.damages) == (1, [])
    assert "does not know their type" in nexus("buffer", "flush").stderr
    assert said(here) == ["one"]
    monkeypatch.setattr(buffer_entries, "MESSAGE", "sketch")  # the newer release knows the type
    [(_, only)] = [(one, entry) for one in buffer.recover().segments for entry in one.entries if entry.entry_seq == 2]
    assert only.payload == "two"
    monkeypatch.setattr(buffer_entries, "KNOWN", frozenset(("sketch",)))
    assert buffer_flush.store_buffer(default_deployment()).stored == 1
    assert said(here) == ["one", "two"]


def test_a_refused_entry_is_released_once_although_the_release_is_killed(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer.append("acme", "chat", {"content": "good", "role": "oracle"})
    buffer.append("acme", "chat", {"content": "bad", "role": "nobody"})
    when = [entry.time for one in buffer.recover().segments for entry in one.entries]
    assert len(buffer_flush.store_buffer(default_deployment()).damages) == 2
    listed = run("buffer", "quarantine")
    assert [(one["kind"], one["releasable"]) for one in listed] == [("refused", True)] * 2
    assert "role" in nexus("buffer", "quarantine").stdout
    for path in map(Path, (one["kept_as"] for one in listed)):  # as if this release knew the role that the other had
        document = json.loads(path.read_text())
        raw = b64decode(document["raw_base64"]).replace(b"oracle", b"user")
        path.write_text(json.dumps(document | {"raw_base64": b64encode(raw).decode()}))
    with monkeypatch.context() as killed:
        killed.setattr(SessionBuffer, "discard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer_flush.release(buffer)
    assert run("buffer", "release", "--all") == {"released": 2}
    report = buffer_flush.store_buffer(default_deployment())
    assert (report.stored, [damage.kind for damage in report.damages]) == (1, ["refused"])
    assert said(here) == ["good"]
    [(stored_at,)] = here.sql("SELECT occurred_at FROM memories")
    assert stored_at.timestamp() == pytest.approx(when[0], abs=0.01)
    [left] = run("buffer", "quarantine")
    assert "nobody" in left["reason"] or "role" in left["reason"]
    told = nexus("buffer", "release", "no-such-file.json", "--json")
    assert (told.returncode, "no file" in told.stdout) == (1, True)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_cleared_buffer_has_asked_and_said_what_is_lost(here: Sandbox, buffer: SessionBuffer) -> None:
    for session in ("one", "two"):
        buffer.append("acme", session, "kept for now")
    buffer.append("other", "one", "kept")
    buffer.close()
    told = nexus("buffer", "clear", "--namespace", "acme")
    assert (told.returncode, "2 entries of 2 sessions are not stored yet" in told.stderr) == (1, True)
    assert run("buffer", "status")["entries"] == 3
    assert run("buffer", "clear", "--namespace", "acme", "--yes") == {"entries": 2, "sessions": 2}
    assert run("buffer", "status")["entries"] == 1
    buffer_flush.store_buffer(default_deployment())
    assert said(here) == ["kept"]


def test_an_entry_that_arrives_during_the_question_is_not_deleted(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer.append("acme", "chat", "one")
    asked = list[str]()

    def meanwhile(question: str, **_: object) -> bool:
        asked.append(question)
        buffer.append("acme", "chat", "two")
        return True

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", meanwhile)
    buffer_commands.clear()
    assert [question.partition(".")[0] for question in asked] == ["1 entry of 1 session is not stored yet"]
    assert "1 entry of 1 session deleted" in capsys.readouterr().out
    buffer_flush.store_buffer(default_deployment())
    assert said(here) == ["two"]


def test_a_session_that_ended_and_went_on_is_open(here: Sandbox, buffer: SessionBuffer) -> None:
    buffer.append("acme", "chat", "one")
    buffer.append("acme", "chat", None, "end")
    buffer.append("acme", "chat", "two")
    buffer_flush.store_buffer(default_deployment())
    assert here.sql("SELECT ended_at FROM sessions") == [(None,)]
    buffer.append("acme", "chat", None, "end")
    buffer.append("acme", "never begun", None, "end")
    buffer_flush.store_buffer(default_deployment())
    assert here.sql("SELECT ended_at IS NOT NULL FROM sessions") == [(True,)]


def test_beat_and_workers_store_their_machines_buffer(buffer: SessionBuffer) -> None:
    buffer.append("acme", "chat", "one")
    assert worker.recover_buffers(default_deployment()) == {"stored": 1, "enqueued": 1}
    assert worker.recover_buffers(default_deployment()) == {"stored": 0, "enqueued": 0}


def test_who_finds_somebody_else_storing_leaves_it_to_them(buffer: SessionBuffer) -> None:
    buffer.append("acme", "chat", "one")
    with buffer.storing() as mine:
        assert mine
        assert buffer_flush.store_buffer(default_deployment()).busy
    assert buffer.pending()


def test_what_a_thread_buffers_while_another_one_stores_is_stored_by_the_next_call(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the session's next message would be stored before it, and it would wait for a worker."""
    store = buffer_flush.store_buffer

    def stored_while_another_call_is_buffered(deployment: Deployment, **options: Any) -> Any:
        report = store(deployment, **options)
        monkeypatch.setattr(buffer_flush, "store_buffer", store)
        buffer_flush.keep(deployment, "acme", "chat", turns("meanwhile"), None, observe=None, end=False)
        return report

    buffer.append("acme", "chat", "before")
    monkeypatch.setattr(buffer_flush, "store_buffer", stored_while_another_call_is_buffered)
    Nexus().ingest("acme", "other", turns("one"))
    Nexus().ingest("acme", "chat", turns("afterwards"))
    assert said(here) == ["before", "one", "meanwhile", "afterwards"]


def test_a_namespace_that_an_import_keeps_locked_holds_up_no_other(here: Sandbox, buffer: SessionBuffer) -> None:
    client = Nexus()
    client.create_namespace("other")
    buffer.append("arriving", "chat", "The first to wait.")
    buffer.append("arriving", "talk", "Of the same namespace.")
    buffer.append("other", "chat", "I like juniper berries.")
    with default_deployment().database.transaction() as importing:
        importing.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        namespaces.ensure(importing, "arriving")
        began = time.monotonic()
        assert [found.content for found in client.search("other", "juniper berries", limit=1)] == [
            "I like juniper berries."
        ]
        assert time.monotonic() - began < 7.0  # one wait of a second, and not LOCK_TIMEOUT_MS for each session
        report = buffer_flush.store_buffer(default_deployment(), briefly=True)
        assert (report.locked, report.stored) == ({"arriving": 2}, 0)
    assert buffer_flush.store_buffer(default_deployment()).stored == 2
    assert set(said(here)) >= {"The first to wait.", "Of the same namespace."}


def test_nothing_is_stored_before_what_waits_for_a_locked_namespace(here: Sandbox, buffer: SessionBuffer) -> None:
    client = Nexus()
    client.create_namespace("other")
    buffer.append("arriving", "chat", "The first.")
    with ThreadPoolExecutor(1) as pool:
        with default_deployment().database.transaction() as importing:
            importing.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            namespaces.ensure(importing, "arriving")
            client.search("other", "juniper berries")  # looks at the buffer, and leaves the entry
            call = pool.submit(client.ingest, "arriving", "chat", [{"content": "The second."}])
            eventually(lambda: call.done() or here.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
        call.result(timeout=60)
    client.search("arriving", "The first")
    assert said(here)[-2:] == ["The first.", "The second."]


def test_a_buffer_that_cannot_be_read_keeps_nobody_from_storing(
    here: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    (here.folder / "buffer").write_text("something in the way")
    assert Nexus().ingest("acme", "chat", turns("one")).stored == 1
    assert "not stored yet" in caplog.text


def test_with_redis_away_ingest_stores_and_enqueues_nothing(here: Sandbox) -> None:
    with away("NEXUS_REDIS_URL"):
        receipt = Nexus().ingest("acme", "chat", turns("one"))
    assert (receipt.stored, receipt.enqueued, receipt.buffered) == (1, 0, 0)
    assert here.sql("SELECT state FROM derivations") == [("wanted",)]  # what reconcile looks for


def test_the_commands(here: Sandbox, buffer: SessionBuffer) -> None:
    assert run("buffer", "status")["entries"] == 0
    for n in range(12):
        buffer.append("acme", "chat", f"turn {n}")
    found = run("buffer", "status")
    assert (found["entries"], found["sessions"], found["fsync"]) == (12, 1, "interval")
    [session] = run("buffer", "list")["sessions"]  # type: ignore[misc]
    assert (session["agent"], session["session"], session["entries"]) == ("acme", "chat", 12)
    with next(Path(buffer.folder).rglob("*.open")).open("ab") as file:
        file.write(b"torn")
    recovered = run("buffer", "recover")
    assert recovered["entries"] == 12
    [damage] = recovered["damages"]  # type: ignore[misc]
    assert damage["kind"] == "torn"
    flushed = run("buffer", "flush")
    assert (flushed["entries"], flushed["stored"], flushed["damages"]) == (12, 12, [])
    assert said(here) == [f"turn {n}" for n in range(12)]


def test_a_worker_stores_its_machines_buffer_when_it_starts(buffer: SessionBuffer) -> None:
    buffer.append("acme", "chat", "one")
    step = worker.BufferStep(None)
    step.start(type("Worker", (), {"app": app}))
    try:
        eventually(lambda: not buffer.pending(), within=60)
    finally:
        step.stop(None)
    assert "nexus-buffer" not in [thread.name for thread in threading.enumerate()]


def test_a_fault_of_a_context_file_does_not_end_the_storing_of_the_buffer(
    buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_deployment: object) -> None:
        raise PermissionError("a file of another user")

    monkeypatch.setattr(worker.context_cache, "refresh", fails)
    monkeypatch.setattr(worker, "STORE_EVERY", 0.1)
    monkeypatch.setattr(worker, "REFRESH_EVERY", 0.1)
    step = worker.BufferStep(None)
    step.start(type("Worker", (), {"app": app}))
    try:
        for text in ("one", "two"):
            buffer.append("acme", "chat", text)
            eventually(lambda: not buffer.pending(), within=60)
    finally:
        step.stop(None)


# --- entries of another deployment ------------------------------------------------------------------------------------
def test_another_deployment_never_stores_an_entry(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that were buffered for production must not appear in the embedded database, or in staging's."""
    monkeypatch.setenv("NEXUS_DATABASE_URL", "postgresql://me:s3cret@127.0.0.1:1/production?connect_timeout=2")
    with here.another():
        assert Nexus().ingest("acme", "chat", turns("for production")).buffered == 1
    monkeypatch.setenv("NEXUS_DATABASE_URL", here.database_url)
    assert not buffer.pending()
    assert Nexus().ingest("acme", "chat", turns("for us")).stored == 1
    assert worker.recover_buffers(default_deployment()) == {"stored": 0, "enqueued": 0}
    assert run("buffer", "flush")["entries"] == 0
    assert said(here) == ["for us"]
    found = run("buffer", "status")
    assert (found["entries"], found["deployment"]) == (0, buffer.deployment)
    name = "127.0.0.1:1/production"
    assert found["other_deployments"] == [{"deployment": name, "entries": 1, "sessions": 1}]
    told = commandline.nexus("buffer", "status")
    assert f"--of {name}" in " ".join(told.stderr.split())
    assert "s3cret" not in told.stdout + told.stderr
    assert commandline.nexus("buffer", "flush", "--of", "nobody").returncode == 1
    assert run("buffer", "flush", "--of", name)["stored"] == 1  # its database has moved here, says the operator
    assert said(here) == ["for us", "for production"]
    assert run("buffer", "status")["other_deployments"] == []


def test_entries_of_the_release_before_are_stored(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release 0.1.0 named no deployment, and gave its entries no ids."""
    with monkeypatch.context() as before:
        before.setattr(entry, "line", _line_of_the_release_before)
        buffer.append("acme", "chat", "old")
    buffer.close()
    [folder] = Path(buffer.folder, "sessions").iterdir()
    about = json.loads((folder / "session.json").read_text())
    del about["deployment"]
    (folder / "session.json").write_text(json.dumps(about))
    folder.rename(folder.with_name(folder.name.partition("-")[0]))
    again = SessionBuffer(buffer.folder)
    assert (again.pending(), again.has("acme", "chat")) == (True, True)
    again.append("acme", "chat", "new")
    assert run("buffer", "status")["entries"] == 2
    assert Nexus().ingest("acme", "chat", turns("newest")).stored == 1
    assert said(here) == ["old", "new", "newest"]
    # The release before may have stored the message, and may have died before it deleted the entry.
    repeat = Message(content="old", id=f"entry:{about['start_id']}:1")
    assert Nexus().ingest("acme", "chat", [repeat]).duplicates == 1
    assert again.clear("acme", "chat")
    assert again.list() == []


def _line_of_the_release_before(entry_seq: int, time: float, context_type: bytes, payload: bytes) -> bytes:
    body = b'{"entry_seq":%d,"time":%.6f,"context_type":%s,"payload":%s' % (entry_seq, time, context_type, payload)
    return b'%s,"checksum":"%08x"}\n' % (body, crc32(body))


@pytest.mark.parametrize(
    "payload",
    [
        {"messages": 3},
        {"messages": {"content": "lost?"}},
        {"messages": [{"content": "lost?"}], "observers": 5},
        {"messages": [{"content": "lost?"}], "observers": "ann"},
        {"messages": [{"content": "lost?"}], "observe": "often"},
    ],
    ids=str,
)
def test_an_entry_with_fields_of_other_types_holds_up_no_other(
    here: Sandbox, buffer: SessionBuffer, payload: dict[str, Any]
) -> None:
    """Before, one such entry kept all entries behind it in the buffer for ever."""
    buffer.append("acme", "chat", payload, buffer_entries.INGEST)
    buffer.append("acme", "chat", "good")
    buffer.append("acme", "later", "fine")
    report = buffer_flush.store_buffer(default_deployment())
    assert [damage.kind for damage in report.damages] == ["refused"]
    assert said(here) == ["good", "fine"]
    assert not buffer.pending()


def test_while_postgres_is_away_no_call_reads_the_whole_buffer(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a day's outage that would take seconds for each message."""
    buffer.append("acme", "chat", "one")
    read = list[str]()
    plain = SessionFiles.flush

    def noted(files: SessionFiles, *arguments: Any) -> Any:
        read.append(files.session)
        return plain(files, *arguments)

    monkeypatch.setattr(SessionFiles, "flush", noted)
    with away("NEXUS_DATABASE_URL"):
        assert Nexus().ingest("acme", "chat", turns("two")).buffered == 1
        assert Nexus().ingest("acme", "chat", turns("three")).buffered == 1
    assert read == []
    assert Nexus().ingest("acme", "chat", turns("four")).stored == 1
    assert said(here) == ["one", "two", "three", "four"]


def test_a_buffer_larger_than_is_read_at_once_is_stored_whole(
    here: Sandbox, buffer: SessionBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_flush, "_READ_AT_ONCE", 2_000)
    texts = {f"Message {number} of {key}." for key in ("one", "two", "three") for number in range(45)}
    for one in sorted(texts):
        buffer.append("acme", one.split()[-1].rstrip("."), one)
    buffer.append("acme", "one", {"role": "nobody", "content": "refused"})
    report = buffer_flush.store_buffer(default_deployment())
    assert (report.stored, report.sessions, len(report.damages)) == (135, 3, 1)
    assert set(said(here)) == texts
    assert not buffer.pending()


@pytest.mark.parametrize(
    ("command", "options"),
    [(("serve",), ()), (("serve",), ("--processes", "2")), (("mcp", "--http"), ())],
    ids=["http", "processes", "mcp"],
)
def test_a_server_stores_the_buffer_without_a_call_and_at_its_end(
    here: Sandbox, command: tuple[str, ...], options: tuple[str, ...]
) -> None:
    """A container of a server has a folder of its own, without a worker. The next call may reach another container."""
    with serve_process(here, *options, command=command, NEXUS_HTTP_TOKEN="x" * 40, NEXUS_MCP_TOKEN="y" * 40):
        with away("NEXUS_DATABASE_URL"):
            assert Nexus().ingest("acme", "s", turns("The ferry to Delos is late.")).buffered == 1
        eventually(lambda: said(here) == ["The ferry to Delos is late."], within=30)
        with away("NEXUS_DATABASE_URL"):
            assert Nexus().ingest("acme", "s", turns("It leaves at noon.")).buffered == 1
    assert said(here) == ["The ferry to Delos is late.", "It leaves at noon."]
