"""A Redis with a replica, and a Sentinel that watches both: over TCP, because Sentinels know no unix sockets."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from nexus_tasks.embedded.redis import executable

MASTER, PASSWORD = "memory", "p@ss;word"
START_WITHIN = 60.0


@dataclass
class Watched:
    """Two servers and their Sentinel."""

    folder: Path
    servers: list[tuple[int, subprocess.Popen[bytes]]] = field(default_factory=list)
    sentinel: int = 0

    def client(self, port: int) -> redis.Redis:
        """A client of one server, past the Sentinel."""
        password = None if port == self.sentinel else PASSWORD
        return redis.Redis(port=port, password=password, decode_responses=True, socket_timeout=10)

    def master(self) -> int:
        """The port of whichever server the Sentinel takes for the master."""
        return int(self.client(self.sentinel).sentinel_get_master_addr_by_name(MASTER)[1])

    def kill_master(self) -> None:
        """SIGKILL, once the replica has everything."""
        port = self.master()
        assert self.client(port).wait(1, 30_000) == 1
        [process] = [process for known, process in self.servers if known == port]
        process.kill()
        process.wait()

    def start(self, settings: str, *options: str) -> int:
        """Start a server on a port that nobody has; its port."""
        while True:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port: int = free.getsockname()[1]
            file = self.folder / f"{port}.conf"
            file.write_text(f"port {port}\nbind 127.0.0.1\ndir {self.folder}\n{settings}\n")
            with (self.folder / f"{port}.log").open("wb") as log:
                process = subprocess.Popen(
                    [executable(), str(file), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            self.servers.append((port, process))
            deadline = time.monotonic() + START_WITHIN
            while process.poll() is None:  # else somebody was faster: another port
                try:
                    self.client(port).ping()
                except redis.ConnectionError:
                    assert time.monotonic() < deadline, (self.folder / f"{port}.log").read_text()
                    time.sleep(0.05)
                else:
                    return port


@contextmanager
def pair() -> Iterator[Watched]:
    """Start a server and its replica, without a Sentinel; ends them."""
    one = Watched(Path(tempfile.mkdtemp(prefix="nexus-sentinel-")))
    common = f'requirepass "{PASSWORD}"\nmasterauth "{PASSWORD}"\nmaxmemory-policy noeviction\nsave ""'
    try:
        master = one.start(common)
        one.start(f"{common}\nreplicaof 127.0.0.1 {master}\nrepl-diskless-sync-delay 0")
        yield one
    finally:
        for _, process in one.servers:
            process.kill()
            process.wait()
        shutil.rmtree(one.folder, ignore_errors=True)


@contextmanager
def watched() -> Iterator[Watched]:
    """Start a server, its replica, and a Sentinel that watches both; ends them."""
    with pair() as one:
        master = one.servers[0][0]
        one.sentinel = one.start(
            f"sentinel monitor {MASTER} 127.0.0.1 {master} 1\nsentinel auth-pass {MASTER} {PASSWORD}\n"
            f"sentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} 5000",
            "--sentinel",
        )
        yield one
