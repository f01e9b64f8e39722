"""The remedies of ``nexus doctor`` do no harm: they close no shared folder, and promise no missing memory."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.cli.checks import machine, redis
from nexus_tasks.settings import Settings

GB = 1_000_000_000


def test_a_folder_that_all_users_share_is_not_to_be_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    check = machine.home(Settings(home=tmp_path))
    assert not check.ok
    assert "chmod" not in check.remedy
    assert "folder of your own" in check.remedy


def test_a_home_with_a_space_is_closed_and_no_other_folder(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    home.mkdir()
    home.chmod(0o755)
    embedded = {"database_url": None, "redis_url": None}
    theirs = {"database_url": "postgresql://db/nexus", "redis_url": "redis://redis"}
    for urls in (theirs, embedded):
        command = machine.home(Settings(home=home, **urls)).remedy.split("`")[1]
        assert {word for word in shlex.split(command) if str(tmp_path) in word} == {str(home)}


@pytest.mark.parametrize("name", ["x" * 300, "file/home"])
def test_a_home_that_cannot_be_made_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    settings = Settings(home=tmp_path / name)
    check = machine.home(settings)
    assert not check.ok
    assert "NEXUS_HOME" in check.remedy
    assert machine.disk(settings).found.endswith(f"at {tmp_path / 'file' if '/' in name else tmp_path}")


def test_redis_is_given_no_more_memory_than_its_machine_has() -> None:
    assert f"maxmemory {16 * GB}" in redis._memory(8 * GB, 8 * GB, 64 * GB).remedy
    assert f"maxmemory {16 * GB}" in redis._memory(8 * GB, 8 * GB, 0).remedy, "an old server does not say what it has"
    beyond = redis._memory(8 * GB, 8 * GB, 16 * GB)
    assert not beyond.ok
    assert "CONFIG" not in beyond.remedy
    assert "16,000 MB" in beyond.remedy


def test_a_replica_is_promoted_only_after_the_loss_of_the_primary() -> None:
    check = redis._role({"role": "slave", "master_host": "one", "master_port": 6379})
    assert "gone for good" in check.remedy


def test_a_torn_line_in_quarantine_can_only_be_deleted_by_hand(tmp_path: Path) -> None:
    quarantine = tmp_path / "buffer" / "quarantine"
    quarantine.mkdir(parents=True)
    (quarantine / "torn.json").write_text("{}")
    [check] = machine.buffer(Settings(home=tmp_path))
    assert not check.ok
    assert "nexus buffer release --all" in check.remedy
    assert f"by hand, in {quarantine}." in check.remedy


def test_entries_that_wait_for_another_address_of_the_database_are_told(tmp_path: Path) -> None:
    """After a restore to another server, the messages that were buffered in the outage belong to the old address."""
    here = Settings(home=tmp_path, database_url="postgresql://new.example/nexus", redis_url="redis://new.example/0")
    before = SessionBuffer(str(tmp_path / "buffer"), deployment="old.example/nexus")
    before.append("acme", "chat", "The gate opens at nine.")
    [check] = machine.buffer(here)
    assert check.ok  # its own workers may store it soon
    with patch.object(machine.time, "time", return_value=time.time() + 1_000):
        [check] = machine.buffer(here)
    assert not check.ok
    assert "old.example/nexus" in check.found
    assert "nexus buffer flush --of old.example/nexus" in check.remedy
