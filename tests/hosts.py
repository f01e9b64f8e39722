"""A host of its own for a worker: a network namespace with two links to this host. Takes root."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVER = "nexus-server"  # the name by which the other host knows this one


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Host:
    """Another host. It reaches this one as ``nexus-server``, over one of two links."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.etc = Path("/etc/netns") / name
        number = int(name[-4:], 16)
        self._nets = [f"10.{97 + n}.{number >> 8}.{number & 252}" for n in range(2)]

    @property
    def within(self) -> tuple[str, ...]:
        """What runs a command there."""
        return "ip", "netns", "exec", self.name

    def fail_over(self) -> bool:
        """Take the link down, as when the server's host is lost, and name the other link's address. ``True``."""
        _ip("link", "set", f"{self.name}-0", "down")
        self._name_server(1)
        return True

    def _name_server(self, link: int) -> None:
        address = self._address(link, 1)
        (self.etc / "hosts").write_text(f"127.0.0.1 localhost\n{address} {SERVER}\n")

    def _address(self, link: int, end: int) -> str:
        head, _, last = self._nets[link].rpartition(".")
        return f"{head}.{int(last) + end}"

    def start(self) -> None:
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")
        for link in range(2):
            ours, theirs = f"{self.name}-{link}", f"there-{link}"
            _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self.name)
            _ip("addr", "add", f"{self._address(link, 1)}/30", "dev", ours)
            _ip("-n", self.name, "addr", "add", f"{self._address(link, 2)}/30", "dev", theirs)
            _ip("link", "set", ours, "up")
            _ip("-n", self.name, "link", "set", theirs, "up")
        self.etc.mkdir(parents=True)
        self._name_server(0)

    def stop(self) -> None:
        for link in range(2):
            subprocess.run(["ip", "link", "del", f"{self.name}-{link}"], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)
        shutil.rmtree(self.etc, ignore_errors=True)


@contextmanager
def host() -> Iterator[Host]:
    """Make a host; skips the test where this process may not."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("another host takes root and the command `ip`")
    made = Host(f"nxt{uuid.uuid4().hex[:4]}")
    try:
        try:
            made.start()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this root may make no network namespace: {error.stderr.decode().strip()}")
        yield made
    finally:
        made.stop()
