"""A backup restored into an empty server and Redis: what was wanted is done, and what was paid is not paid again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nexus_tasks import Nexus, embedded
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.embedded.places import locate
from nexus_tasks.embedded.postgres import binaries, postgres_server
from nexus_tasks.embedded.server import halt
from nexus_tasks.storage import schema
from tests.databases import durable
from tests.integration.inline import NAMESPACE, facts, say
from tests.integration.test_paid_once import SAID, perspective_locked
from tests.pages import ROOT, blocks
from tests.sandbox import Sandbox, eventually
from tests.standin import StandIn

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

COMMANDS = [text for language, text in blocks(ROOT / "docs" / "operating.md") if language == "sh"]


def run(text: str, folder: Path, **variables: str) -> None:
    """Run a block of the page on operating, in a folder, with variables set."""
    path = f"{binaries()}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    subprocess.run(["sh", "-euc", text], cwd=folder, env=environment, check=True, timeout=120)


def command(program: str) -> str:
    [found] = [text for text in COMMANDS if text.strip().startswith(program)]
    return found


def libpq(url: str) -> str:
    return url.replace("postgresql+psycopg:", "postgresql:")


@pytest.fixture(autouse=True)
def waits_for_the_disk(servers: ServerAddresses) -> Iterator[None]:
    """A base backup has the settings of its server."""
    with durable(servers):
        yield


@pytest.fixture
def elsewhere() -> Iterator[ServerAddresses]:
    """An empty machine: servers of its own, whose Postgres and Redis are empty."""
    home = Path(tempfile.mkdtemp(prefix="nexus-elsewhere-"))
    try:
        yield embedded.ensure(home, announce=False)
    finally:
        embedded.stop(home)
        shutil.rmtree(home)


def half_done(here: Sandbox) -> None:
    """A deployment as a backup may find it: an answer is paid and saved, its facts are not stored, a digest is due."""
    say(*SAID)
    with perspective_locked(here):
        worker = here.worker()
        eventually(lambda: here.sql("SELECT 1 FROM saved_answers"))
        eventually(lambda: here.sql("SELECT 1 FROM pg_locks WHERE NOT granted"))
        worker.kill()
    assert facts() == []
    Nexus().digest(NAMESPACE, "chat")  # wanted, and no worker does it


def goes_on(standin: StandIn) -> None:
    """Workers do what was wanted, and ask nothing again that is paid."""
    paid = standin.counters.purposes["derive"]
    eventually(lambda: len(facts()) == len(SAID), within=60)
    eventually(lambda: Nexus().status(NAMESPACE).namespaces[0].memories["summary_short"] == 1, within=60)
    assert standin.counters.purposes["derive"] == paid == 1
    assert Nexus().status(NAMESPACE).namespaces[0].jobs.dead == 0


def test_a_dump_restored_with_an_empty_redis_goes_on(
    claude: Callable[..., Sandbox], standin: StandIn, elsewhere: ServerAddresses, tmp_path: Path
) -> None:
    here = claude(NEXUS_LEASE_SECONDS="1", NEXUS_DERIVE_MAX_WAIT="0")
    half_done(here)
    run(command("pg_dump"), tmp_path, DATABASE=libpq(here.database_url))
    # As on a server of one's own. New databases of the embedded server have the extension, and a dump of it does not.
    make = 'psql --dbname "$SERVER" --command "CREATE DATABASE own TEMPLATE template0"'
    run(make, tmp_path, SERVER=libpq(elsewhere.database_url))
    own = elsewhere.database_url.replace("/nexus?", "/own?")
    run(command("psql"), tmp_path, RESTORED=libpq(own))
    restored(here, elsewhere, own, standin)


def test_a_user_who_is_no_superuser_restores_a_dump(elsewhere: ServerAddresses, tmp_path: Path) -> None:
    """On a server of one's own an administrator makes the extension, and the user of the deployment does not own it."""
    server = libpq(elsewhere.database_url)
    roles = ("CREATE ROLE plain LOGIN", "CREATE ROLE nexus_tenant NOLOGIN", "GRANT nexus_tenant TO plain")
    databases = [f"CREATE DATABASE {name} OWNER plain TEMPLATE template0" for name in ("old", "fresh")]
    for statement in (*roles, *databases):
        run('psql --dbname "$SERVER" --command "$SQL"', tmp_path, SERVER=server, SQL=statement)
    urls = [server.replace("/nexus?", f"/{name}?") for name in ("old", "fresh")]
    for url in urls:
        run('psql --dbname "$SERVER" --command "CREATE EXTENSION vector"', tmp_path, SERVER=url)
    old, fresh = (url.replace("//nexus@", "//plain@") for url in urls)
    schema.upgrade(old)
    run(command("pg_dump"), tmp_path, DATABASE=old)
    [restore] = [line for line in command("psql").splitlines() if "pg_restore" in line]
    run(restore, tmp_path, RESTORED=fresh)
    schema.upgrade(fresh)


def test_a_base_backup_started_with_an_empty_redis_goes_on(
    claude: Callable[..., Sandbox], standin: StandIn, elsewhere: ServerAddresses, tmp_path: Path
) -> None:
    here = claude(NEXUS_LEASE_SECONDS="1", NEXUS_DERIVE_MAX_WAIT="0")
    half_done(here)
    home = Path(elsewhere.database_url.partition("host=")[2]).resolve().parents[1]
    places = locate(home)
    assert places is not None
    assert halt(postgres_server(places))
    owner = places.postgres.stat()
    shutil.rmtree(places.postgres)
    run(command("pg_basebackup"), tmp_path, DATABASE=libpq(here.database_url), COPY=str(places.postgres))
    for path in (places.postgres, *places.postgres.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    embedded.ensure(home, announce=False)
    restored(here, elsewhere, elsewhere.database_url.replace("/nexus?", f"/{here.database_name}?"), standin)


def restored(here: Sandbox, servers: ServerAddresses, url: str, standin: StandIn) -> None:
    ours = {"NEXUS_DATABASE_URL": url, "NEXUS_REDIS_URL": servers.redis_url}
    before = {name: os.environ[name] for name in ours}
    os.environ.update(ours)
    try:
        with here.another():
            from tests.commandline import nexus

            assert nexus("db", "upgrade").returncode == 0
            here.worker(**ours)
            here.beat(**ours)
            goes_on(standin)
            checks = json.loads(nexus("doctor", "--canary", "--json").stdout)["checks"]
            assert [one for one in checks if not one["ok"]] == []
    finally:
        os.environ.update(before)
