"""A PgBouncer of a test's own, in the mode `transaction`, with one connection to the server for all clients."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.rabbitmq import _free_ports
from tests.sandbox import eventually


def missing() -> str:
    """Why no PgBouncer can be started here; empty when one can."""
    if shutil.which("pgbouncer"):
        return ""
    return "PgBouncer is not installed: `apt-get install pgbouncer`, or `make pgbouncer` as root."


@contextmanager
def pooled(url: str, *, servers: int = 1) -> Iterator[str]:
    """The address of the database ``url`` behind a PgBouncer that has ``servers`` connections to it."""
    parts = urlsplit(url)
    socket_folder = parse_qs(parts.query)["host"][0]
    [port] = _free_ports(1)
    folder = Path(tempfile.mkdtemp(prefix="pgb", dir="/tmp"))
    owner = pwd.getpwuid(os.stat(socket_folder).st_uid)
    (folder / "users").write_text(f'"{parts.username}" ""\n')
    account = f"user = {owner.pw_name}\n" if os.geteuid() == 0 else ""
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={socket_folder} user={parts.username}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {folder}/users\npool_mode = transaction\ndefault_pool_size = {servers}\n"
        f"ignore_startup_parameters = extra_float_digits\nmax_client_conn = 200\n{account}"
    )
    for path in (folder, *folder.iterdir()):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    command = ["pgbouncer", str(folder / "pgbouncer.ini")]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        eventually(lambda: process.poll() is not None or _answers(port), within=30, why="PgBouncer does not start")
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        yield f"{parts.scheme}://{parts.username}@127.0.0.1:{port}{parts.path}"
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
