"""A holder of leases: other processes of the machine see by its file whether it lives."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from nexus_tasks.idempotency.worker import holder as holders
from nexus_tasks.idempotency.worker.holder import LeaseHolder, this_machine
from tests.holders import another


def test_a_killed_process_is_seen_before_its_parent_has_reaped_it(tmp_path: Path) -> None:
    mine = LeaseHolder(tmp_path)
    assert mine.id
    with another(tmp_path) as (other, process):
        assert list(mine.dead()) == []
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie: its process id still exists
        assert list(mine.dead()) == [other]
    assert list(mine.dead()) == [], "it is forgotten"
    assert list(LeaseHolder(tmp_path).dead()) == [], "this process lives"


def test_a_frozen_process_is_not_dead(tmp_path: Path) -> None:
    with another(tmp_path) as (_, process):
        process.send_signal(signal.SIGSTOP)
        assert list(LeaseHolder(tmp_path).dead()) == []


def test_a_process_that_replaced_itself_under_its_own_id_is_dead(tmp_path: Path) -> None:
    then = """
import os
os.execv(sys.executable, [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"])
"""
    with another(tmp_path, then) as (other, process):
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        assert list(LeaseHolder(tmp_path).dead()) == [other]


def test_a_dead_process_whose_claims_could_not_be_given_back_is_seen_again(tmp_path: Path) -> None:
    with another(tmp_path) as (other, _):
        pass
    mine = LeaseHolder(tmp_path)
    with suppress(ConnectionError):
        for _ in mine.dead():
            raise ConnectionError("Redis is away")
    assert list(mine.dead()) == [other]


def test_a_copied_file_does_not_make_its_living_process_dead(tmp_path: Path) -> None:
    """As when all of a running worker's ``NEXUS_HOME`` is copied, and another worker starts on the copy."""
    home, copy = tmp_path / "home", tmp_path / "copy"
    with another(home):
        shutil.copytree(home, copy)
        assert list(LeaseHolder(copy).dead()) == []
    assert list(LeaseHolder(home).dead()) != []


def test_another_machine_with_the_same_folder_is_not_judged(tmp_path: Path) -> None:
    file = tmp_path / "another-machine.0123456789abcdef"
    file.touch()
    assert list(LeaseHolder(tmp_path).dead()) == []
    assert file.exists()
    os.utime(file, (0, 0))
    assert list(LeaseHolder(tmp_path).dead()) == []
    assert not file.exists(), "its file does not stay for ever"


def test_a_child_does_not_hold_its_parents_file(tmp_path: Path) -> None:
    then = """
import os
if os.fork() == 0:
    holder.leave_to_parent()
    print("left", flush=True)
    os.close(1)
    time.sleep(5)
    sys.exit()
"""
    with another(tmp_path, then) as (other, process):
        assert process.stdout is not None
        assert process.stdout.readline() == "left\n"
        process.kill()
        process.wait()
        assert list(LeaseHolder(tmp_path).dead()) == [other]


def test_without_a_folder_a_process_still_has_an_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    holder = LeaseHolder(tmp_path / "file" / "workers")
    assert holder.id == holder.id != ""
    assert "wait for the end of their leases" in caplog.text


def test_without_proc_the_machine_is_named_by_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "BOOT_ID", "/nowhere")
    this_machine.cache_clear()
    try:
        assert this_machine() == os.uname().nodename.replace(".", "-")
    finally:
        this_machine.cache_clear()
