"""The session buffer: appending, sealing, recovering, and what it says when it cannot."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from nexus_tasks import files
from nexus_tasks.buffer import BufferError, Segment, SessionBuffer, default_home, home_of_deployment, places, session
from nexus_tasks.buffer.syncing import Syncer
from nexus_tasks.endpoints import buffer_of
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.settings import Settings, load_settings


def buffer(folder: Path, **options: object) -> SessionBuffer:
    return SessionBuffer(folder / "buffer", **options)  # type: ignore[arg-type]


def payloads(segments: list[Segment]) -> list[object]:
    return [entry.payload for segment in segments for entry in segment.entries]


def only(folder: Path, ending: str) -> Path:
    [found] = folder.glob(f"buffer/sessions/*/*{ending}")
    return found


def test_what_is_appended_comes_back_in_order_until_it_is_acknowledged(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    kept.start("acme", "chat")
    seqs = [kept.append("acme", "chat", {"content": f"turn {n}"}) for n in range(25)]
    assert seqs == list(range(1, 26))
    segments = kept.flush("acme", "chat")
    assert [len(one.entries) for one in segments] == [10, 10, 5]
    assert payloads(segments) == [{"content": f"turn {n}"} for n in range(25)]
    assert payloads(buffer(tmp_path).flush_all()) == payloads(segments)
    assert kept.acknowledge(segments) == 25
    assert kept.acknowledge(segments) == 0
    assert not kept.has("acme", "chat")
    assert kept.append("acme", "chat", "later") == 26
    assert buffer(tmp_path).append("acme", "chat", "from another process") == 27


@pytest.mark.parametrize("asks", [lambda kept: kept.pending(), lambda kept: kept.has("acme", "chat")])
def test_an_entry_is_there_while_another_process_seals_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: Callable[[SessionBuffer], bool]
) -> None:
    """Otherwise an erasure would not reach the entry, and a later message would be stored before it."""
    kept, other, scandir = buffer(tmp_path), buffer(tmp_path), os.scandir
    kept.append("acme", "chat", "said")
    folder = str(only(tmp_path, ".open").parent)

    def sealed_meanwhile(path: str) -> Iterator[os.DirEntry[str]]:
        found = list(scandir(path))
        if path == folder:
            other.flush("acme", "chat")
        return iter(found)

    monkeypatch.setattr(os, "scandir", sealed_meanwhile)
    assert asks(kept)


def test_acknowledging_leaves_what_came_meanwhile(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    kept.append("acme", "chat", "one")
    segments = kept.flush_all()
    kept.append("acme", "chat", "two")
    kept.acknowledge(segments)
    assert payloads(kept.flush_all()) == ["two"]


def test_a_segment_that_is_not_as_it_was_read_is_not_deleted(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    kept.append("acme", "chat", "one")
    segments = kept.flush_all()
    with open(segments[0].path, "ab") as file:
        file.write(b"more")
    assert kept.acknowledge(segments) == 0
    assert kept.has("acme", "chat")


def test_an_old_segment_is_sealed_however_few_entries_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SEAL_SECONDS", 0.0)
    kept = buffer(tmp_path)
    for n in range(3):
        kept.append("acme", "chat", n)
    assert len(list(tmp_path.glob("buffer/sessions/*/*.sealed"))) == 2


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".", "", "ä" * 300, "line\nbreak", "\x00"])
def test_names_are_never_paths(tmp_path: Path, name: str) -> None:
    kept = buffer(tmp_path)
    kept.append(name, name, "kept")
    assert kept.list() == [(name, name)]
    assert kept.has(name, name)
    assert not kept.has(name, "another")
    assert {path.name for path in tmp_path.iterdir()} == {"buffer"}


def test_status_and_clear(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    assert kept.status() == []
    for n in range(12):
        kept.append("acme", "chat", n)
    [found] = kept.status()
    assert (found["agent"], found["session"], found["entries"], found["last_flush"]) == ("acme", "chat", 12, None)
    assert found["started_at"] <= found["oldest_unacknowledged"]
    assert found["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("buffer/sessions/*/*[0-9].*"))
    kept.acknowledge(kept.flush_all())
    [found] = kept.status()
    assert (found["entries"], found["bytes"], found["oldest_unacknowledged"]) == (0, 0, None)
    assert found["last_flush"] is not None
    assert kept.clear("acme", "chat")
    assert not kept.clear("acme", "chat")
    assert kept.append("acme", "chat", "begun again") == 1


def test_who_holds_a_cleared_session_begins_it_again(tmp_path: Path) -> None:
    first, second = buffer(tmp_path), buffer(tmp_path)
    first.append("acme", "chat", "one")
    [before] = first.flush_all()
    assert second.clear("acme", "chat")
    assert first.append("acme", "chat", "two") == 1
    [after] = second.flush_all()
    assert payloads([after]) == ["two"]
    assert before.start_id != after.start_id  # entry_seq begins again, and names other entries


def test_a_session_that_another_process_has_cleared_and_begun_again_is_stored(tmp_path: Path) -> None:
    """Before, a worker that had the first folder open never saw the second one."""
    worker, other = buffer(tmp_path), buffer(tmp_path)
    for text in ("one", "two", "three"):
        other.append("acme", "chat", text)
        found = worker.flush("acme", "chat") if text == "three" else worker.flush_all()
        assert payloads(found) == [text]
        worker.acknowledge(found)
        assert other.clear("acme", "chat")


@pytest.mark.parametrize("tail", [b'{"entry_seq":3,"time":1', b"\0" * 4096, b'{"entry\0\0\0'])
def test_a_torn_last_line_is_cut_and_reported_and_the_rest_kept(tmp_path: Path, tail: bytes) -> None:
    buffer(tmp_path).append("acme", "chat", "one")
    buffer(tmp_path).append("acme", "chat", "two")
    with only(tmp_path, ".open").open("ab") as file:
        file.write(tail)
    found = buffer(tmp_path).recover()
    assert payloads(found.segments) == ["one", "two"]
    [damage] = found.damages
    assert (damage.kind, damage.line, damage.length) == ("torn", 3, len(tail))
    assert json.loads(Path(damage.kept_as).read_text())["offset"] == damage.offset > 0
    assert buffer(tmp_path).append("acme", "chat", "three") == 3


def test_the_next_append_cuts_what_a_dead_writer_left(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    kept.append("acme", "chat", "one")
    with only(tmp_path, ".open").open("ab") as file:
        file.write(b'{"entry_seq":2,')
    assert kept.append("acme", "chat", "two") == 2
    assert payloads(kept.flush_all()) == ["one", "two"]
    assert len(list(tmp_path.glob("buffer/quarantine/*-torn.json"))) == 1


def test_a_corrupt_line_is_set_aside_with_its_position(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    for n in range(5):
        kept.append("acme", "chat", f"payload {n}")
    kept.flush_all()
    path = only(tmp_path, ".sealed")
    path.write_bytes(path.read_bytes().replace(b"payload 2", b"payload X"))
    found = buffer(tmp_path).recover()
    assert payloads(found.segments) == [f"payload {n}" for n in (0, 1, 3, 4)]
    [damage] = found.damages
    assert (damage.kind, damage.line, damage.agent) == ("corrupt", 3, "acme")
    assert path.read_bytes()[damage.offset :].startswith(b'{"entry_seq":3')
    again = buffer(tmp_path).recover()
    assert again.damages == found.damages
    assert len(list(tmp_path.glob("buffer/quarantine/*"))) == 1


def test_what_follows_zeros_is_kept(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    for n in range(3):
        kept.append("acme", "chat", n)
    kept.flush_all()
    path = only(tmp_path, ".sealed")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"\0" * len(lines[0]) + lines[1] + lines[2])
    found = buffer(tmp_path).recover()
    assert payloads(found.segments) == [1, 2]
    assert [one.reason for one in found.damages] == ["zeros before it"]


@pytest.mark.parametrize("about", [b"\0" * 40, None], ids=["damaged", "missing"])
def test_a_folder_that_does_not_say_whose_it_is_is_set_aside(tmp_path: Path, about: bytes | None) -> None:
    buffer(tmp_path).append("acme", "chat", "one")
    found = only(tmp_path, "session.json")
    found.unlink() if about is None else found.write_bytes(about)
    assert buffer(tmp_path).append("acme", "chat", "two") == 1
    assert payloads(buffer(tmp_path).flush_all()) == ["two"]
    [kept] = tmp_path.glob("buffer/quarantine/*.folder")
    assert b"one" in b"".join(path.read_bytes() for path in kept.iterdir())


def test_who_has_a_folder_open_that_was_set_aside_goes_on_in_the_new_one(tmp_path: Path) -> None:
    """Else it would hold another lock than the others, and give the entries other ids."""
    first, second = buffer(tmp_path), buffer(tmp_path)
    first.append("acme", "chat", "one")
    only(tmp_path, "session.json").write_bytes(b"\0" * 40)
    assert second.append("acme", "chat", "two") == 1
    assert first.append("acme", "chat", "three") == 2
    [mine], [others] = first.flush_all(), second.flush_all()
    assert payloads([mine]) == payloads([others]) == ["two", "three"]
    assert mine.start_id == others.start_id


def test_threads_share_a_session(tmp_path: Path) -> None:
    kept, other = buffer(tmp_path), buffer(tmp_path)

    def write(writer: int) -> None:
        for n in range(100):
            (kept if writer % 2 else other).append("acme", "chat", [writer, n])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    segments = kept.flush_all()
    seqs = [entry.entry_seq for segment in segments for entry in segment.entries]
    assert seqs == list(range(1, 801))
    for writer in range(8):
        mine = [payload[1] for payload in payloads(segments) if payload[0] == writer]  # type: ignore[index]
        assert mine == list(range(100))


def test_a_forked_child_has_locks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock on a descriptor that it shares with its parent would not keep it out."""
    kept = buffer(tmp_path)
    kept.append("acme", "chat", "parent")
    held = kept._sessions.get_or_make("acme", "chat")
    flock = fcntl.flock
    flock(held._lock_fd, fcntl.LOCK_EX)
    child = os.fork()
    if not child:
        code = 1
        try:
            monkeypatch.setattr(
                fcntl, "flock", lambda fd, how: flock(fd, how if how == fcntl.LOCK_UN else how | fcntl.LOCK_NB)
            )
            kept.append("acme", "chat", "child")
        except BufferError as error:
            code = 0 if isinstance(error.__cause__, BlockingIOError) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    flock(held._lock_fd, fcntl.LOCK_UN)
    assert os.waitstatus_to_exitcode(status) == 0
    assert payloads(kept.flush_all()) == ["parent"]


def test_a_full_disk_is_a_clear_error_and_leaves_the_segment_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = buffer(tmp_path)
    kept.append("acme", "chat", "one")

    def full(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", full)
        with pytest.raises(BufferError, match=r"is full.*Free some space"):
            kept.append("acme", "chat", "two")
    assert kept.append("acme", "chat", "three") == 2
    found = kept.recover()
    assert payloads(found.segments) == ["one", "three"]
    assert found.damages == []
    assert kept.quarantined() == 0  # nor had anybody to cut what the failed append had written


def test_what_is_refused_after_a_new_beginning_lies_beside_what_was_refused_before(tmp_path: Path) -> None:
    """A session's folder is deleted after a week without an entry, and its next entry has the number 1 again."""
    kept = buffer(tmp_path)
    for text in ("one", "two"):
        kept.append("acme", "chat", text)
        [segment] = kept.flush_all()
        first = kept.refuse(segment, segment.entries[0], "of no use")
        assert kept.refuse(segment, segment.entries[0], "of no use") == first
        kept.acknowledge([segment])
        kept.clear("acme", "chat")
    aside = kept.quarantine()
    assert sorted(entry.payload for _, entry in aside if entry) == ["one", "two"]


@pytest.mark.parametrize("step", ["rename", "open"])
def test_an_entry_counts_as_kept_although_its_segment_cannot_be_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A disk may have room for a line, but for no further file."""
    kept = buffer(tmp_path)
    for n in range(9):
        kept.append("acme", "chat", n)

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "rename") if step == "rename" else (session.SessionFiles, "_open")), full)
        assert kept.append("acme", "chat", 9) == 10
    assert kept.append("acme", "chat", 10) == 11
    assert payloads(kept.flush_all()) == list(range(11))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(files, "make_folder", refuse)
    with pytest.raises(BufferError, match=r"cannot be written.*set NEXUS_HOME"):
        buffer(tmp_path).append("acme", "chat", "one")


@pytest.mark.parametrize("foreign", ["buffer", "buffer/sessions"])
def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: str) -> None:
    """Who has made it first, in a folder where all may write, could put messages into it."""
    kept = buffer(tmp_path)
    kept.append("acme", "chat", "one")
    me, stat = os.geteuid() or 1_000, os.stat
    monkeypatch.setattr(os, "geteuid", lambda: me)

    def of_others(path: str, **options: object) -> os.stat_result:
        found = stat(path, **options)  # type: ignore[arg-type]
        uid = me + 1 if path == str(tmp_path / foreign) else me
        return os.stat_result((*found[:4], uid, *found[5:]))

    monkeypatch.setattr(os, "stat", of_others)
    for use in (lambda: kept.append("acme", "chat", "two"), lambda: kept.flush("acme", "chat"), kept.recover):
        with pytest.raises(BufferError, match="belongs to another user"):
            use()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert payloads(kept.flush_all()) == ["one"]


def test_a_session_that_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(BufferError, match="full"):
        buffer(tmp_path).append("acme", "chat", "one")
    assert list((tmp_path / "buffer" / "sessions").iterdir()) == []


def test_something_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "buffer").write_text("a file")
    with pytest.raises(BufferError, match="buffer"):
        buffer(tmp_path).start("acme", "chat")


def test_a_full_buffer_fails_loudly_and_drops_nothing(tmp_path: Path) -> None:
    kept = buffer(tmp_path, max_bytes=3_000)
    stored = 0
    refused: BufferError | None = None
    while refused is None:
        try:
            kept.append("acme", "chat", "x" * 100)
            stored += 1
        except BufferError as error:
            refused = error
    assert "may hold 3,000" in refused.message
    assert "nexus buffer flush" in refused.remedy
    segments = kept.flush_all()
    assert 5 < len(payloads(segments)) == stored < 30
    kept.acknowledge(segments)
    kept.append("acme", "chat", "there is room again")


@pytest.mark.parametrize("payload", [object(), float("nan"), {"a": {1, 2}}])
def test_what_is_no_json_is_refused(tmp_path: Path, payload: object) -> None:
    with pytest.raises(BufferError, match="is not JSON"):
        buffer(tmp_path).append("acme", "chat", payload)


def test_half_characters_and_line_breaks_come_back_as_they_were(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    odd = "\ud800 \u2028 \n \r \0 ä \U0001f600"
    kept.append("acme", "chat", {odd: odd})
    assert payloads(kept.flush_all()) == [{odd: odd}]


@pytest.mark.parametrize("policy", ["always", "interval", "off"])
def test_every_policy_keeps_what_it_takes(tmp_path: Path, policy: str) -> None:
    kept = buffer(tmp_path, fsync=policy)
    for n in range(12):
        kept.append("acme", "chat", n)
    kept.close()
    assert payloads(buffer(tmp_path).flush_all()) == list(range(12))


def test_with_always_every_append_is_synced_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_size))
    kept = buffer(tmp_path, fsync="always")
    for n in range(3):
        kept.append("acme", "chat", n)
        assert synced[-1] == only(tmp_path, ".open").stat().st_size
    assert len(synced) == 3


def test_with_interval_a_thread_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    kept = buffer(tmp_path)
    kept.start("acme", "chat")
    monkeypatch.setattr(files, "sync", lambda path: done.set() if path.endswith(".open") else None)
    kept.append("acme", "chat", "one")
    assert done.wait(60)


def test_a_forked_child_that_has_written_nothing_ends(tmp_path: Path) -> None:
    """Its parent's thread may have been in a sync when it was forked. Nobody releases the child's copy of the lock."""
    syncer = Syncer(60.0)
    syncer.written(str(tmp_path))
    with syncer._syncing:
        child = os.fork()
        if not child:
            signal.alarm(5)
            syncer.now()  # as at its exit
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BufferError, match=r"always, interval or off"):
        buffer(tmp_path, fsync="sometimes")


def test_the_environment_sets_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))
    monkeypatch.setenv("NEXUS_BUFFER_FSYNC", "always")
    monkeypatch.setenv("NEXUS_BUFFER_MAX_BYTES", "5000")
    made = SessionBuffer()
    assert (made.folder, made.fsync, made.max_bytes) == (str(tmp_path / "buffer"), "always", 5000)


def test_no_setting_names_a_file_by_a_relative_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder would have settings of its own, also an untrusted project's."""
    named = {
        name
        for name, field in Settings.model_fields.items()
        if field.annotation is Path or (field.description or "").startswith(("file", "folder"))
    }
    assert named == {"home", "cells"}
    for name in named:
        for value in ("data.json", "./data.json", "../data.json"):
            with pytest.raises(ValidationError, match="not absolute"):
                Settings(**{name: value})
    monkeypatch.setenv("NEXUS_HOME", "data")
    with pytest.raises(ConfigurationError, match="not absolute"):
        default_home()
    monkeypatch.delenv("NEXUS_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert default_home() == str(Settings().home)
    assert Settings().home.is_absolute()


def test_its_home_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for value in (None, "", str(tmp_path), "~/elsewhere"):
        monkeypatch.delenv("NEXUS_HOME", raising=False)
        if value is not None:
            monkeypatch.setenv("NEXUS_HOME", value)
        assert default_home() == str(Settings().home)
    monkeypatch.delenv("NEXUS_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_home() == str(Settings().home)


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); from nexus_tasks.buffer import SessionBuffer;"
        "SessionBuffer(sys.argv[1]).append('a', 's', 1);"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'nexus_tasks'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (None, "embedded"),
        ("", "embedded"),
        ("postgresql://ann:s3cret@db.example.com/nexus", "db.example.com/nexus"),
        ("postgresql+psycopg://other@DB.example.com:5432/nexus?sslmode=require", "db.example.com/nexus"),
        ("postgres://ann:p/w?s3cret@db:6000/nexus", "db:6000/nexus"),
        ("postgresql://nexus@/nexus?host=/var/run&password=s3cret", "/var/run/nexus"),
        ("postgresql://nexus@/nexus?host=%2Fvar%2Frun&port=6000", "/var/run:6000/nexus"),
    ],
)
def test_a_deployment_is_named_without_its_password(url: str | None, name: str) -> None:
    assert places.deployment_name(url) == name


def test_the_deployment_of_a_cell_is_that_of_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook has no time to load the settings. Before, no worker stored what it kept for a cell."""
    cells = {"one": {"redis_url": "redis://one/0"}, "two": {"database_url": "$TWO", "redis_url": "redis://two/0"}}
    (tmp_path / "cells.json").write_text(json.dumps({"cells": cells}))
    monkeypatch.setenv("NEXUS_CELLS", str(tmp_path / "cells.json"))
    monkeypatch.setenv("NEXUS_DATABASE_URL", "postgresql://ann@db/nexus")
    monkeypatch.setenv("TWO", "postgresql://ann:s3cret@two:6000/nexus")
    for cell, name in (("one", "db/nexus"), ("two", "two:6000/nexus")):
        monkeypatch.setenv("NEXUS_CELL", cell)
        assert SessionBuffer(tmp_path).deployment == buffer_of(load_settings()).deployment == name
    monkeypatch.delenv("TWO")
    assert SessionBuffer(tmp_path).deployment == "db/nexus"  # kept nevertheless


@pytest.mark.parametrize("home", ["/srv/two", "~/two", None])
def test_the_buffer_of_a_cell_is_under_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """Before, the hook kept messages under NEXUS_HOME, and no worker of a cell with a home stored them."""
    cell = {"database_url": "postgresql://ann@two/nexus", "redis_url": "redis://two/0"}
    monkeypatch.setenv("NEXUS_CELLS", json.dumps({"cells": {"two": cell if home is None else cell | {"home": home}}}))
    monkeypatch.setenv("NEXUS_CELL", "two")
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))
    settings = load_settings()
    assert SessionBuffer().folder == buffer_of(settings).folder
    assert home_of_deployment() == str(settings.home)


@pytest.fixture
def nobody() -> Iterator[Callable[[int], None]]:
    """Changes the user of this process, which only root can."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    try:
        yield os.seteuid
    finally:
        os.seteuid(0)


def test_what_root_has_put_beside_a_users_messages_holds_up_no_other(nobody: Callable[[int], None]) -> None:
    """Before, one command as root in a user's home stopped that user's hook from keeping anything, without a word."""
    user = 65_534
    folder = Path(tempfile.mkdtemp())
    try:
        os.chown(folder, user, -1)
        nobody(user)
        buffer(folder).append("acme", "mine", "one")
        nobody(0)
        buffer(folder).append("acme", "of root", "two")
        nobody(user)
        kept = buffer(folder)
        assert kept.append("acme", "mine", "three") == 2
        found = kept.recover()
        assert payloads(found.segments) == ["one", "three"]
        [left] = found.damages
        assert (left.kind, left.reason) == ("unreadable", "it belongs to another user")
        kept.acknowledge(found.segments)
        assert kept.pending(), "an erasure must not take it for empty"
        assert kept.list() == [("acme", "mine")]
        nobody(0)
        assert payloads(buffer(folder).recover().segments) == ["two"]
    finally:
        nobody(0)
        shutil.rmtree(folder)


def test_a_child_that_is_forked_while_its_parent_stores_keeps_nobody_from_storing(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    with kept.storing() as mine:
        child = os.fork()
        if not child:
            signal.pause()
    try:
        with buffer(tmp_path).storing() as later:
            assert (mine, later) == (True, True)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_after_a_flush_by_root_the_user_goes_on_with_the_session(nobody: Callable[[int], None]) -> None:
    """Before, `sudo nexus buffer flush` took the session from its user: the hook could keep nothing more of it."""
    user = 65_534
    folder = Path(tempfile.mkdtemp())
    try:
        os.chown(folder, user, -1)
        nobody(user)
        buffer(folder).append("acme", "mine", "one")
        nobody(0)
        root = buffer(folder)
        with root.storing():
            assert root.acknowledge(root.recover().segments) == 1
        nobody(user)
        kept = buffer(folder)
        assert kept.append("acme", "mine", "two") == 2
        with kept.storing() as mine:
            found = kept.recover()
            assert (mine, payloads(found.segments), found.damages) == (True, ["two"], [])
            assert kept.acknowledge(found.segments) == 1
    finally:
        nobody(0)
        shutil.rmtree(folder)


def test_what_root_sets_aside_stays_the_users(nobody: Callable[[int], None]) -> None:
    """Before, the user's next damaged line stopped the session, and an erasure left what root had set aside."""
    user = 65_534
    folder = Path(tempfile.mkdtemp())
    try:
        os.chown(folder, user, -1)
        nobody(user)
        kept = buffer(folder)
        for session in ("first", "second"):
            kept.append("acme", session, "one")
        for path in folder.glob("buffer/sessions/*/*.open"):
            with path.open("a") as file:
                file.write("torn")
        nobody(0)
        [first, _] = buffer(folder).recover().damages
        nobody(user)
        assert buffer(folder).append("acme", "first", "two")
        [left] = [one for one, _ in buffer(folder).quarantine() if one.kept_as == first.kept_as]
        buffer(folder).discard(left)
        assert not os.path.exists(first.kept_as)
    finally:
        nobody(0)
        shutil.rmtree(folder)


def test_a_folder_that_the_user_has_closed_is_an_error(nobody: Callable[[int], None]) -> None:
    user = 65_534
    folder = Path(tempfile.mkdtemp())
    try:
        os.chown(folder, user, -1)
        nobody(user)
        kept = buffer(folder)
        kept.append("acme", "mine", "one")
        only(folder, ".open").parent.chmod(0o500)
        with pytest.raises(BufferError, match="cannot be written"):
            buffer(folder).recover()
    finally:
        nobody(0)
        shutil.rmtree(folder)


def test_a_copy_of_a_segment_under_another_name_stops_nothing(tmp_path: Path) -> None:
    buffer = SessionBuffer(tmp_path / "buffer")
    for number in range(12):  # a sealed segment and an open one
        buffer.append("shop", "chat", f"message {number}")
    buffer.close()
    [folder] = (tmp_path / "buffer" / "sessions").iterdir()
    for segment in [*folder.glob("*.sealed"), *folder.glob("*.open")]:
        copy = segment.with_name(f"{segment.stem} (conflicted copy){segment.suffix}")
        copy.write_bytes(segment.read_bytes())
    other = SessionBuffer(tmp_path / "buffer")
    assert other.append("shop", "chat", "one more") == 13
    assert other.pending()
    assert [one["session"] for one in other.status()] == ["chat"]
    recovery = other.recover()
    kept = {entry.entry_seq: entry.payload for segment in recovery.segments for entry in segment.entries}
    assert list(kept) == list(range(1, 14))
    other.acknowledge(recovery.segments)
    assert not other.recover().segments
    assert not other.pending()


def test_a_file_among_the_sessions_stops_nothing(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    kept.append("acme", "chat", "one")
    stray = [tmp_path / "buffer" / "sessions" / name for name in ("desktop.ini", "0" * 32, "\u00e9 (copy)")]
    for path in stray:
        path.write_bytes(b"of another program")
    other = buffer(tmp_path)
    assert [one["session"] for one in other.status()] == ["chat"]
    assert other.list() == [("acme", "chat")]
    assert payloads(other.recover().segments) == ["one"]
    assert all(path.read_bytes() == b"of another program" for path in stray)


def test_a_large_buffer_is_read_in_parts(tmp_path: Path) -> None:
    kept = buffer(tmp_path)
    wanted = [f"{number} of {key}" for key in ("one", "two") for number in range(40)]
    for said in wanted:
        kept.append("acme", said.rpartition(" ")[2], said)
    known, found = set[str](), list[object]()
    while segments := kept.recover(known=known, most=1_500).segments:
        assert sum(one.size for one in segments[:-1]) < 1_500
        assert known.isdisjoint(one.path for one in segments)
        known |= {one.path for one in segments}
        found += payloads(segments)
    assert len(known) == 8
    assert sorted(map(str, found)) == sorted(wanted)
