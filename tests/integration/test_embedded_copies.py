"""A copied home folder: one of a running home is refused, one of a stopped home has servers of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from nexus_tasks import embedded
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.errors import EmbeddedError

# With the long name the sockets are outside of the home, and the link `run` leads to them.
NAMES = pytest.mark.parametrize("name", ["home", "h" * 100], ids=["sockets inside", "sockets outside"])


@pytest.fixture
def base() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="nx-"))
    yield folder
    for home in folder.iterdir():
        embedded.stop(home)
    shutil.rmtree(folder)


def copied(home: Path, name: str) -> Path:
    copy = home.with_name(name)
    subprocess.run(["cp", "-a", home, copy], check=True)
    return copy


def keep(addresses: ServerAddresses, table: str) -> None:
    with psycopg.connect(addresses.database_url.replace("+psycopg", "")) as connection:
        connection.execute(f"CREATE TABLE {table} ()")


def kept(addresses: ServerAddresses) -> list[str]:
    with psycopg.connect(addresses.database_url.replace("+psycopg", "")) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
        return [name for (name,) in rows]


@NAMES
@pytest.mark.long
def test_a_copy_of_a_running_home_is_refused_and_harms_nothing(base: Path, name: str) -> None:
    home = base / name
    addresses = embedded.ensure(home)
    keep(addresses, "mine")
    copy = copied(home, f"{name}2")
    assert embedded.running(copy) is None
    with pytest.raises(EmbeddedError, match="is a copy of") as refused:
        embedded.ensure(copy)
    assert "nexus down" in (refused.value.remedy or "")
    assert embedded.stop(copy) == []
    assert embedded.running(home) == addresses
    assert kept(addresses) == ["mine"]
    (copy / "origin").unlink()  # the remedy of somebody who knows better
    shutil.rmtree(copy)


@NAMES
@pytest.mark.long
def test_a_copy_of_a_stopped_home_has_servers_of_its_own(base: Path, name: str) -> None:
    home = base / name
    keep(embedded.ensure(home), "shared")
    embedded.stop(home)
    copy = copied(home, f"{name}2")
    addresses, others = embedded.ensure(home), embedded.ensure(copy)
    keep(addresses, "mine")
    assert (kept(addresses), kept(others)) == (["mine", "shared"], ["shared"])
    assert embedded.stop(copy)
    assert kept(addresses) == ["mine", "shared"]


def test_a_moved_home_goes_on(base: Path) -> None:
    """Also after its servers were killed: the folder is the same one."""
    home, moved = base / "home", base / "moved"
    keep(embedded.ensure(home), "mine")
    embedded.stop(home)
    (home / "postgres" / "postmaster.pid").write_text("1\n")
    home.rename(moved)
    assert kept(embedded.ensure(moved)) == ["mine"]
