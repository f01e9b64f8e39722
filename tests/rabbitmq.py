"""A RabbitMQ node of the test run's own: its own name, ports, folder and port mapper; nothing of it stays behind."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # past Debian's wrapper, which wants an account of its own
START_WITHIN = 120.0


def missing() -> str:
    """Why no node can be started here; empty when one can."""
    if SERVER.exists() and shutil.which("epmd"):
        return ""
    return "Debian's rabbitmq-server is not installed: `apt-get install rabbitmq-server`, or `make rabbitmq` as root."


@dataclass(frozen=True)
class Node:
    """A running node."""

    address: str  # of its management, with the account in it
    environment: dict[str, str]

    def control(self, *arguments: str) -> None:
        """Run a command of ``rabbitmqctl``."""
        command = [CONTROL, *arguments]
        subprocess.run(command, env=self.environment, check=True, timeout=60, stdout=subprocess.DEVNULL)


@contextmanager
def node() -> Iterator[str]:
    """Start a node for the whole run; its management address."""
    with own_node() as started:
        yield started.address


@contextmanager
def own_node(advanced: str = "", settings: str = "") -> Iterator[Node]:
    """Start a node; ``advanced`` are Erlang terms of its configuration, ``settings`` more lines of ``rabbitmq.conf``.

    Ends the node and its port mapper.
    """
    amqp, distribution, management, mapper = free_ports(4)
    # Short, because Erlang and unix sockets take only so much.
    folder = Path(tempfile.mkdtemp(prefix="rmq", dir="/tmp"))
    (folder / "plugins").write_text("[rabbitmq_management].\n")
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp}\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management}\n"
        "vm_memory_high_watermark.relative = 0.8\ndisk_free_limit.absolute = 1MB\n"
        f"{settings}"
    )
    if advanced:
        (folder / "advanced.config").write_text(advanced)
    (folder / "env.conf").touch()
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))},
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"nexus{amqp}@localhost",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "db"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_DIST_PORT": str(distribution),
    }
    # Otherwise the node starts one that outlives it.
    epmd = subprocess.Popen(["epmd", "-port", str(mapper), "-address", "127.0.0.1"], env=environment)
    with (folder / "output").open("wb") as output:
        server = subprocess.Popen(
            [SERVER], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _until_it_listens(server, amqp, folder / "output")
        yield Node(f"http://guest:guest@127.0.0.1:{management}/{amqp}", environment)
    finally:
        _end(server)
        epmd.kill()
        epmd.wait()
        shutil.rmtree(folder, ignore_errors=True)


def make_vhost(address: str, name: str) -> str:
    """A broker address with queues of its own on the node behind ``address``."""
    _call(address, "PUT", f"vhosts/{name}")
    _call(address, "PUT", f"permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    return f"amqp://guest:guest@127.0.0.1:{address.rpartition('/')[2]}/{name}"


def drop_vhost(address: str, name: str) -> None:
    """Delete it with everything in it; connections to it are closed."""
    _call(address, "DELETE", f"vhosts/{name}")


def _call(address: str, method: str, path: str, body: object = None) -> None:
    server = address.partition("@")[2].partition("/")[0]
    account = base64.b64encode(b"guest:guest").decode()
    request = urllib.request.Request(
        f"http://{server}/api/{path}",
        method=method,
        data=json.dumps(body or {}).encode(),
        headers={"Authorization": f"Basic {account}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60):
        pass


def _until_it_listens(server: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + START_WITHIN
    # It listens before it is ready; this line is its last.
    while b"Server startup complete" not in output.read_bytes():
        assert server.poll() is None, output.read_text(errors="replace")[-4_000:]
        assert time.monotonic() < deadline, f"RabbitMQ does not start: {output.read_text(errors='replace')[-4_000:]}"
        time.sleep(0.1)
    with socket.create_connection(("127.0.0.1", port), timeout=10):
        pass


def _end(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all held open until the last is known."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
