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
from urllib.parse import parse_qs, quote, urlsplit

from tests.authority import Authority
from tests.rabbitmq import free_ports
from tests.sandbox import eventually


def missing() -> str:
    """Why no PgBouncer can be started here; empty when one can."""
    if shutil.which("pgbouncer"):
        return ""
    return "PgBouncer is not installed: `apt-get install pgbouncer`, or `make pgbouncer` as root."


@contextmanager
def pooled(
    url: str, *, servers: int = 1, mode: str = "transaction", authority: Authority | None = None, password: str = ""
) -> Iterator[str]:
    """The address of the database ``url`` behind a PgBouncer that has ``servers`` connections to it.

    With an ``authority``, PgBouncer takes only clients that use TLS and know ``password``.
    """
    parts = urlsplit(url)
    socket_folder = parse_qs(parts.query)["host"][0]
    [port] = free_ports(1)
    folder = Path(tempfile.mkdtemp(prefix="pgb", dir="/tmp"))
    owner = pwd.getpwuid(os.stat(socket_folder).st_uid)
    quoted = password.replace('"', '""')
    (folder / "users").write_text(f'"{parts.username}" "{quoted}"\n')
    tls, auth = "", "any"
    if authority is not None:
        for name in ("key", "certificate"):
            shutil.copy(getattr(authority, name), folder / name)
        tls = f"client_tls_sslmode = require\nclient_tls_key_file = {folder}/key\n"
        tls += f"client_tls_cert_file = {folder}/certificate\n"
        auth = "scram-sha-256"
    account = f"user = {owner.pw_name}\n" if os.geteuid() == 0 else ""
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={socket_folder} user={parts.username}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = {auth}\n"
        f"auth_file = {folder}/users\npool_mode = {mode}\n{tls}default_pool_size = {servers}\n"
        f"ignore_startup_parameters = extra_float_digits\nmax_client_conn = 200\n{account}"
    )
    for path in (folder, *folder.iterdir()):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    command = ["pgbouncer", str(folder / "pgbouncer.ini")]
    # A file and not a pipe: no test reads the log, and PgBouncer would stand still when a pipe has 65,536 bytes.
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output)
    try:
        eventually(lambda: process.poll() is not None or _answers(port), within=30, why="PgBouncer does not start")
        assert process.poll() is None, log.read_text()
        if authority is None:
            yield f"{parts.scheme}://{parts.username}@127.0.0.1:{port}{parts.path}"
        else:
            user = f"{parts.username}:{quote(password, safe='')}"
            options = f"sslmode=verify-full&sslrootcert={authority.root}"
            yield f"postgresql://{user}@localhost:{port}{parts.path}?{options}"
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
