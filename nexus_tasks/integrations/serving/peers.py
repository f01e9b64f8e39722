"""Find which user of this machine has opened a connection to a port of this machine."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # the second has connections to ::ffff:127.0.0.1
Address = tuple[str, int]


def is_of_another_user(client: Address, server: Address) -> bool:
    """Whether another user of this machine has opened the connection from ``client`` to ``server``.

    Root, and the user who has started this process with ``sudo``, do not count as others. Only Linux tells. The answer
    is ``False`` on other systems, and for connections of other machines.
    """
    uid = _uid(_shown(client), _shown(server))
    return uid is not None and uid not in _own()


def _own() -> set[int]:
    return {0, os.geteuid(), int(os.environ.get("SUDO_UID", "0"))}


def _uid(client: str, server: str) -> int | None:
    for table in _TABLES:
        with suppress(OSError), open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[1].endswith(client) and fields[2].endswith(server):
                    return int(fields[7])
    return None


def _shown(address: Address) -> str:
    """An IPv4 address and port as the table shows them, at the end of an address of IPv6 too."""
    host = int.from_bytes(socket.inet_aton(address[0]), "little")
    return f"{host:08X}:{address[1]:04X}"
