"""Behind PgBouncer in the mode `transaction`, clients of several tenants share one session of Postgres."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from nexus_tasks import Cells, Message, Nexus, Settings
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NotFound
from nexus_tasks.services.cells import moving
from nexus_tasks.services.cells.moving import move
from nexus_tasks.storage import tenancy
from tests import pgbouncer
from tests.cells import document, two_cells
from tests.sandbox import Sandbox

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(pgbouncer.missing()), reason=pgbouncer.missing() or "PgBouncer is here"),
]
TENANTS = ("hotel", "museum")
SEEN = text(
    "SELECT current_user, coalesce(nullif(current_setting('nexus.namespaces', true), ''), '-'), pg_backend_pid(),"
    " (SELECT string_agg(DISTINCT name, ',') FROM namespaces)"
)


@pytest.fixture
def behind(here: Sandbox) -> Iterator[Deployment]:
    """The deployment of the test, through a PgBouncer with one connection."""
    for tenant in TENANTS:
        Nexus().remember(tenant, f"The plan of {tenant} is a secret.")
    with pgbouncer.pooled(here.database_url) as url:
        deployment = Deployment(
            Settings(database_url=url, redis_url=here.servers.redis_url, key_prefix=here.name, home=here.folder)
        )
        try:
            yield deployment
        finally:
            deployment.close()


def test_the_limit_of_a_tenant_does_not_reach_the_next_client_of_the_session(behind: Deployment) -> None:
    database, sessions = behind.database, set[int]()
    for _ in range(20):
        for tenant in TENANTS:
            with tenancy.limited_to([tenant]), database.transaction() as tx:
                user, setting, session, names = tx.execute(SEEN).one()
                assert (user, setting, names) == (tenancy.ROLE, tenant, tenant)
                sessions.add(session)
        with database.transaction() as tx:  # without a limit
            user, setting, session, names = tx.execute(SEEN).one()
            assert (user, setting, names) == ("nexus", "-", "hotel,museum")
            sessions.add(session)
        with pytest.raises(ZeroDivisionError), tenancy.limited_to(["hotel"]), database.transaction() as tx:
            raise ZeroDivisionError(tx.execute(SEEN).one())
    assert len(sessions) == 1, "all clients share one session of Postgres"


def test_clients_of_two_tenants_at_once_see_their_own_rows(behind: Deployment) -> None:
    def use(number: int) -> None:
        tenant, other = TENANTS[number % 2], TENANTS[1 - number % 2]
        nexus = Nexus(behind, namespaces=[tenant])
        for turn in range(8):
            nexus.ingest(tenant, f"chat-{number}", [Message(content=f"{tenant} says {turn}.", id=str(turn))])
            assert {one.namespace for one in nexus.namespaces()} == {tenant}
            found = nexus.search(tenant, "the plan is a secret", limit=50)
            assert found
            assert not [hit for hit in found if other in hit.content]
            with pytest.raises(NotFound):
                nexus.session(tenant, f"chat-{number}-of-nobody")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(6)))
    contents = [one.content for one in Nexus(behind).memories("hotel", limit=1_000)]
    assert len(contents) == 1 + 3 * 8
    assert not [one for one in contents if "museum" in one]


def test_a_move_leaves_no_lock_in_a_session_of_the_pooler(
    deploy: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the next move waited for the lock until the pooler closed that session."""
    monkeypatch.setattr(moving, "NAMESPACE_REMEMBERED_SECONDS", 0.0)  # no worker remembers the namespace here
    with two_cells(deploy, tmp_path) as both, pgbouncer.pooled(both.one.database_url, servers=8) as url:
        both.nexus.remember("acme", "The shop opens in June.")
        described: dict[str, dict[str, dict[str, str]]] = document(both.one, both.two)  # type: ignore[assignment]
        described["cells"]["one"]["database_url"] = url
        file = tmp_path / "pooled.json"
        file.write_text(json.dumps(described))
        for target in ("one", "two"):
            cells = Cells(str(file))
            try:
                # Another client is in a session when the move begins, so that the move does not use one session alone.
                with psycopg.connect(url.replace("+psycopg", "")) as other:
                    other.execute("SELECT 1")
                    assert move(cells, "acme", target, note=lambda _: other.rollback()).cell == target
            finally:
                cells.close()
            assert not both.one.sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")
        assert both.nexus.search("acme", "When does the shop open?")
