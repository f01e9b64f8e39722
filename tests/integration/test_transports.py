"""Each way to reach the servers that the docs name, with a server of its own: TLS, passwords, ACL, quorum queues.

``test_sentinel.py`` and ``test_pgbouncer.py`` start Sentinels, and PgBouncer in the mode ``transaction``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.tasks.ticks import beat_ticked
from tests import databases, pgbouncer, rabbitmq
from tests.authority import Authority, authority
from tests.commandline import nexus
from tests.integration.jobkinds import ROOT, WITH_KINDS, play
from tests.pages import ROOT as REPOSITORY
from tests.sandbox import Sandbox, Worker, eventually

PASSWORD = "p@ss:/?#%;word"
REDIS = Path("/usr/bin/redis-server")  # the embedded one is built without TLS

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("openssl"), reason="the command openssl is not installed"),
]


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority, which signed no server's certificate."""
    return authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(autouse=True)
def waits_for_the_disk(servers: ServerAddresses) -> Iterator[None]:
    with databases.durable(servers):
        yield


def works(here: Sandbox, **environment: str) -> Worker:
    """A worker runs a job, and every command says so without a password; the doctor finds nothing amiss."""
    Nexus().create_namespace("acme")
    worker = here.worker(*WITH_KINDS, **ROOT, **environment)
    beat = here.beat(**environment)
    assert play.delay(name="first").wait(60).status == "completed"
    eventually(lambda: beat_ticked(default_deployment()), within=30)
    for command in (["status", "--json"], ["metrics"], ["doctor"], ["doctor", "--json", "--canary"]):
        done = nexus(*command)
        hides_the_password(done.stdout + done.stderr)
        assert done.returncode == 0, done.stdout + done.stderr
    hides_the_password(worker.text() + beat.text())
    beat.kill()
    return worker


def fails(check: str, said: str = "ertificate") -> None:
    """`nexus doctor` names the check that fails and why, without a password."""
    done = nexus("doctor", "--json")
    hides_the_password(done.stdout + done.stderr)
    [found] = [one["found"] for one in json.loads(done.stdout)["checks"] if not one["ok"] and one["name"] == check]
    assert said in found, found


def hides_the_password(text: str) -> None:
    for form in (PASSWORD, quote(PASSWORD, safe="")):
        assert form not in text


@pytest.mark.skipif(bool(pgbouncer.missing()), reason=pgbouncer.missing() or "PgBouncer is here")
def test_postgres_by_tls(
    here: Sandbox, deploy: Callable[..., Sandbox], trusted: Authority, stranger: Authority
) -> None:
    """PgBouncer ends the TLS, in the mode that workers need; libpq checks the certificate as with Postgres."""
    options = {"servers": 30, "mode": "session", "authority": trusted, "password": PASSWORD}
    with pgbouncer.pooled(here.database_url, **options) as url:  # type: ignore[arg-type]
        there = deploy(NEXUS_DATABASE_URL=url)
        works(there).stop()
        there.deployment.close()
    for wrong in (url.replace(str(trusted.root), str(stranger.root)), url.replace("localhost", "127.0.0.1")):
        with pgbouncer.pooled(here.database_url, **options) as again:  # type: ignore[arg-type]
            port = again.partition("@localhost:")[2].partition("/")[0]
            deploy(NEXUS_DATABASE_URL=wrong.replace(wrong.rpartition("@")[2].partition("/")[0].partition(":")[2], port))
            fails("postgres")


@contextmanager
def redis_by_tls(folder: Path, trusted: Authority) -> Iterator[int]:
    """A Redis whose only way in is TLS, and whose only user may use the test's keys; its port."""
    [port] = rabbitmq.free_ports(1)
    lines = (REPOSITORY / "examples" / "redis-users.acl").read_text().replace("PASSWORD", PASSWORD)
    (folder / "users.acl").write_text(lines)
    (folder / "redis.conf").write_text(
        f"port 0\ntls-port {port}\nbind 127.0.0.1\ndir {folder}\naclfile {folder}/users.acl\n"
        f"tls-cert-file {trusted.certificate}\ntls-key-file {trusted.key}\ntls-ca-cert-file {trusted.root}\n"
        "tls-auth-clients no\nappendonly yes\nmaxmemory-policy noeviction\n"
    )
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen([REDIS, folder / "redis.conf"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        asked = redis.Redis(
            port=port, username="nexus", password=PASSWORD, ssl=True, ssl_ca_certs=str(trusted.root), host="localhost"
        )
        eventually(lambda: process.poll() is not None or answers(asked), within=30)
        assert process.poll() is None, (folder / "redis.log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(30)


def answers(asked: redis.Redis) -> bool:
    try:
        return bool(asked.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.skipif(not REDIS.exists(), reason="Debian's redis-server is not installed: `make redis` as root")
def test_redis_by_tls_with_a_user_of_its_own(
    deploy: Callable[..., Sandbox], trusted: Authority, stranger: Authority, tmp_path: Path
) -> None:
    with redis_by_tls(tmp_path, trusted) as port:
        url = f"rediss://nexus:{quote(PASSWORD, safe='')}@localhost:{port}/0?ssl_ca_certs={trusted.root}"
        here = deploy(NEXUS_REDIS_URL=url, NEXUS_BROKER_URL=url, NEXUS_KEY_PREFIX="nexus")
        worker = works(here)
        assert "NOPERM" not in worker.text()
        worker.kill()
        waiting = play.delay(name="second")
        here.worker(*WITH_KINDS, **ROOT)
        assert waiting.wait(60).status == "completed"
        for wrong in (url.replace(str(trusted.root), str(stranger.root)), url.replace("localhost", "127.0.0.1")):
            deploy(NEXUS_REDIS_URL=wrong, NEXUS_BROKER_URL=wrong)
            fails("redis")
            fails("broker")


@pytest.mark.skipif(bool(rabbitmq.missing()), reason=rabbitmq.missing() or "RabbitMQ is here")
def test_rabbitmq_by_tls_with_quorum_queues(
    deploy: Callable[..., Sandbox], trusted: Authority, stranger: Authority
) -> None:
    [port] = rabbitmq.free_ports(1)
    tls = f"listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {trusted.root}\n"
    tls += f"ssl_options.certfile = {trusted.certificate}\nssl_options.keyfile = {trusted.key}\n"
    with rabbitmq.own_node(settings=tls) as node:
        rabbitmq.make_vhost(node.address, "quorum")
        node.control("change_password", "guest", PASSWORD)
        url = f"amqps://guest:{quote(PASSWORD, safe='')}@localhost:{port}/quorum?ssl_ca_certs={trusted.root}"
        here = deploy(NEXUS_BROKER_URL=url, NEXUS_QUEUE_TYPE="quorum")
        works(here).kill()
        waiting = play.delay(name="second")
        here.worker(*WITH_KINDS, **ROOT)
        assert waiting.wait(60).status == "completed"
        node.control("change_password", "guest", "guest")
        server = node.address.partition("@")[2].partition("/")[0]
        assert kinds_of_queues(server) == {"quorum"}
        node.control("change_password", "guest", PASSWORD)
        for wrong in (url.replace(str(trusted.root), str(stranger.root)), url.replace("localhost", "127.0.0.1")):
            deploy(NEXUS_BROKER_URL=wrong, NEXUS_QUEUE_TYPE="quorum")
            fails("broker")


def kinds_of_queues(server: str) -> set[str]:
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(_Guest()))
    with opener.open(f"http://{server}/api/queues/quorum", timeout=30) as answer:
        queues = json.load(answer)
    return {one["type"] for one in queues if one["name"] in ("derive", "reflect", "digest", "maintenance", "urgent")}


class _Guest(urllib.request.HTTPPasswordMgrWithDefaultRealm):
    def find_user_password(self, *_: object) -> tuple[str, str]:
        return "guest", "guest"
